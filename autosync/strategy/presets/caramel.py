"""The preset of Caramel: small gradients travel together, each message by the collective that is fastest for it."""

from __future__ import annotations

import math

from autosync.specs.cluster import ClusterSpec
from autosync.specs.model import ModelSpec
from autosync.strategy.backends import BACKENDS
from autosync.strategy.presets.buckets import assign_by_size
from autosync.strategy.presets.common import in_ready_order, interface_rate, rows_message, travels_as_rows
from autosync.strategy.presets.options import count_option, time_option
from autosync.strategy.presets.scheduling import bands_of_use, use_levels
from autosync.strategy.representation import Message, Strategy
from autosync.strategy.synchronisers.all_reduce import AllReduce
from autosync.strategy.synchronisers.base import Topology

ROUND_TIME = "500 us"
NUM_LANES = 4


def caramel(
    model: ModelSpec, cluster: ClusterSpec, *, round_time: str = ROUND_TIME, num_lanes: int = NUM_LANES
) -> Strategy:
    """Small gradients batched, each message by its fastest collective, in a window up to the parameter's next use.

    Gradients fill a batch, in the order in which they become ready, while it is small. An all-reduce among n ranks
    sends at least 2(n-1)/n of its bytes, in at least about 2 log2 n rounds of `round_time` each. A batch is small while
    its bytes take less time on the slowest link than these rounds. Each message uses the topology (ring or
    halving-doubling) that takes the least time by rounds and bytes. A transfer may last from the gradient to the
    parameter's next use, and variables that are used first go first: they are dealt to `num_lanes` lanes in bands of
    use. On a backend without overtaking (NCCL) there are batches and windows, with the backend's own topology. Rows of
    embeddings are gathered.

    A strategy cannot express all of Caramel: Caramel also reorders the computation to widen the windows, but in torch
    the user decides this order. `round_time` is our own number.

    Source: Hashemi, Abdu Jyothi, Godfrey and Campbell, "Caramel: Accelerating Decentralized Distributed Deep Learning
    with Computation Scheduling", 2020 (transfer boundaries, adaptive batching); what a collective costs in rounds and
    bytes: Thakur, Rabenseifner and Gropp, IJHPCA 2005.
    """
    round_seconds = time_option("round_time", round_time)
    backend = BACKENDS[cluster.backend]
    lanes = bands_of_use(model, count_option("num_lanes", num_lanes) if backend.overtakes else 1)
    levels = use_levels(model) if backend.overtakes else dict.fromkeys(lanes, 0)
    rate = min(interface_rate(node) for node in cluster.nodes if node.role == "worker")
    costs = RoundCosts(num_ranks=cluster.num_workers, rate=rate, round_seconds=round_seconds)
    ready = in_ready_order(model.variables)
    batches = assign_by_size(ready, (costs.smallest_large_bytes(),), lambda variable: travels_as_rows(variable, model))
    messages: list[Message] = []
    for batch in batches:
        first = min(batch, key=lambda variable: variable.use)
        priority, lane = levels[first.name], lanes[first.name]
        if travels_as_rows(first, model):
            messages.append(rows_message(first, priority=priority, lane=lane))
            continue
        num_bytes = sum(variable.num_bytes for variable in batch)
        topology: Topology = costs.fastest(num_bytes) if backend.own_rounds else "native"
        parts = tuple(variable.name for variable in batch)
        synchroniser = AllReduce(topology=topology)
        messages.append(Message(parts=parts, synchroniser=synchroniser, priority=priority, lane=lane))
    return Strategy(overlap="forward", messages=tuple(messages))


class RoundCosts:
    """The seconds of an all-reduce, from its rounds and the bytes on the busiest link, with one rank on each link.

    Halving-doubling takes the fewest rounds, a ring sends the fewest bytes. For a power of two both send equally many
    bytes. Otherwise the ranks beyond the largest power of two send all to a partner first and receive all last, in two
    more rounds. A tree has as many rounds as halving-doubling and sends more bytes, so it is never chosen.
    """

    def __init__(self, *, num_ranks: int, rate: float, round_seconds: float) -> None:
        self._rate = rate
        self._round_seconds = round_seconds
        folds = math.floor(math.log2(num_ranks))
        beyond = 2 if num_ranks > 2**folds else 0
        # The rounds, and the bytes that a link carries as a multiple of the message's bytes.
        self._forms: dict[Topology, tuple[int, float]] = {
            "halving_doubling": (2 * folds + beyond, 2 - 2 / 2**folds + beyond),
            "ring": (2 * num_ranks - 2, 2 - 2 / num_ranks),
        }

    def smallest_large_bytes(self) -> int:
        """Return the size from which on the fewest possible bytes take longer than the fewest possible rounds."""
        rounds = min(rounds for rounds, _ in self._forms.values())
        times = min(times for _, times in self._forms.values())
        return max(1, math.ceil(rounds * self._round_seconds * self._rate / times)) if times else 1

    def seconds(self, topology: Topology, num_bytes: int) -> float:
        """Return the seconds that an all-reduce takes over a topology."""
        rounds, times = self._forms[topology]
        return rounds * self._round_seconds + times * num_bytes / self._rate

    def fastest(self, num_bytes: int) -> Topology:
        """Return the topology that takes the least time; halving-doubling if both take equally long."""
        return min(self._forms, key=lambda topology: self.seconds(topology, num_bytes))
