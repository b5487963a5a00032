"""Caramel: small gradients travel together, each message by the collective that is fastest for it."""

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

    Gradients fill a batch, in the order in which they come, while it is small: while the 2(n-1)/n of its bytes that
    any all-reduce among n ranks sends take less time on the slowest link than the fewest rounds, about 2 log2 n of
    `round_time` each. Each message goes over the topology (ring or halving-doubling) that takes the least by rounds
    and bytes. A transfer's window reaches from the gradient to the next use, and what is used first goes first:
    variables are dealt to `num_lanes` lanes in bands of use. Where nothing can overtake (NCCL) there are batches and
    windows, over the backend's own topology. Rows of embeddings are gathered.

    Of Caramel this is what a strategy can say. The order of computation, which Caramel rearranges to widen the
    windows, is the user's in torch. What is small is by `round_time`, a number of ours.

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
    """What an all-reduce takes, by its rounds and by the bytes that pass the busiest link, one rank a link.

    Halving and doubling takes the fewest rounds, a ring sends the fewest bytes. Among a power of two both are the same
    in bytes; else ranks beyond it give all to a partner first and get all last, in two rounds more. A tree has as many
    rounds as halving and doubling, and more bytes.
    """

    def __init__(self, *, num_ranks: int, rate: float, round_seconds: float) -> None:
        self._rate = rate
        self._round_seconds = round_seconds
        folds = math.floor(math.log2(num_ranks))
        beyond = 2 if num_ranks > 2**folds else 0
        # Rounds, and how many times its bytes.
        self._forms: dict[Topology, tuple[int, float]] = {
            "halving_doubling": (2 * folds + beyond, 2 - 2 / 2**folds + beyond),
            "ring": (2 * num_ranks - 2, 2 - 2 / num_ranks),
        }

    def smallest_large_bytes(self) -> int:
        """Bytes from which on the fewest bytes that a message can send take longer than the fewest rounds."""
        rounds = min(rounds for rounds, _ in self._forms.values())
        times = min(times for _, times in self._forms.values())
        return max(1, math.ceil(rounds * self._round_seconds * self._rate / times)) if times else 1

    def seconds(self, topology: Topology, num_bytes: int) -> float:
        """What an all-reduce takes over a topology."""
        rounds, times = self._forms[topology]
        return rounds * self._round_seconds + times * num_bytes / self._rate

    def fastest(self, num_bytes: int) -> Topology:
        """The topology that takes the least time; of equals halving and doubling."""
        return min(self._forms, key=lambda topology: self.seconds(topology, num_bytes))
