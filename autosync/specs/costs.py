"""The costs of operations on a cluster, except the bytes on its links.

Links have rates. The figures here describe everything else, for all transfers and all local work. They belong to a
cluster: its file names a profile that ships with the package and may change single figures (`cost_figures`). The code
has no figures of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

ANY_RATE = 1e9
"""The elements a second of local work of a kind that has no rate."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessorCosts:
    """The processor time of the engine's work, and of torch's own reducer if it executes a plan.

    - `ask`, `post`, `taken`: for each message, in the lanes that request it, post it and take it.
    - `asked`, `arrived`: for each message, in the connections that receive the request and the message. The second
      figure of each pair is for the backend's own collectives.
    - `per_byte`: for each byte at both ends together, to another node and within a node.
    - `transfer`, `local`: at the start of a transfer, and for a local operation in addition to its elements.
    - `gradient`, `update`, `step`: for each ready gradient, for each variable in the step, and for the step itself.
    - `stock_transfer`, `stock_gradient`, `stock_step`: the same for plans that torch's own reducer executes.

    `docs/notes/timeline.md` explains how these times were found.
    """

    ask: tuple[float, float]
    post: tuple[float, float]
    asked: tuple[float, float]
    arrived: tuple[float, float]
    taken: tuple[float, float]
    per_byte: tuple[float, float]
    transfer: float
    stock_transfer: float
    local: float
    gradient: float
    stock_gradient: float
    update: float
    step: float
    stock_step: float

    def of_message(self, *, native: bool) -> float:
        """Return the whole cost of a message, at both its ends together."""
        figures = (self.ask, self.post, self.asked, self.arrived, self.taken)
        return sum([figure[native] for figure in figures])

    def times(self, factor: float) -> ProcessorCosts:
        """Return the costs of a processor that needs so many times as long for everything."""
        found: dict[str, Any] = {one.name: _times(getattr(self, one.name), factor) for one in fields(self)}
        return ProcessorCosts(**found)


@dataclass(frozen=True, slots=True, kw_only=True)
class WithinCosts:
    """The costs of messages between two ranks of a node.

    - `hop_seconds`: the travel time of the shortest message;
    - `native_round_seconds`: the wait of a round of the backend's collectives;
    - `rate`: bytes a second between two ranks if the cluster file gives no rate within the node.

    None stands for the same time as between nodes.
    """

    hop_seconds: float | None
    native_round_seconds: float | None
    rate: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerCosts:
    """The costs of parameter servers.

    - `num_cores`: the processor cores that add up the contributions to a server's parameters at a time;
    - `update_rate`: the elements a second that a server updates, None if it is as fast as the workers' devices.
    """

    num_cores: int
    update_rate: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """Seconds, and bytes a second.

    - `transfer_seconds`: the time of a transfer on its lane's thread, however short the transfer is;
    - `round_seconds`, `native_round_seconds`: the wait of each round, for our own messages and in the backend's
      collectives;
    - `rate_added`: how fast a rank adds up the data that it receives;
    - `local_seconds`: the time of a local operation on its thread, however small it is;
    - `local_rates`: elements a second, by kind of cost (the part before the colon, or all of it);
    - `num_processors` of the machine on which the cluster is emulated, None if each node has its own;
    - `link_share`: the share of a link's rate that payload gets;
    - `bytes_ahead`: the bytes that a sender's socket takes beyond the bytes that have left its link;
    - `bytes_queued`: the most bytes of others for which a request waits in the queue of the receiver's link;
    - `queued_seconds`: the longest time that a request waits for bytes of others in the queue of its sender's link;
    - `payload_share` (only for the timeline): the share of a link's rate that payload gets message by message;
    - `hop_seconds` (only for the timeline): the travel time of the shortest message between nodes;
    - `processor` (only for the timeline): see `ProcessorCosts`;
    - `probed_message_seconds`: the processor time of a probe's small message on processors for which `processor` is
      true. Where a probe measures twice as much, all of `processor` counts double. None: no probe changes it;
    - `flow_limit`: the most bytes a second of one connection between two nodes, None if a connection can fill a link;
    - `stock_threads`: how many of its transfers torch's own reducer executes at a time;
    - `within`, `servers`: see `WithinCosts` and `ServerCosts`.
    """

    transfer_seconds: float
    round_seconds: float
    native_round_seconds: float
    rate_added: float
    local_seconds: float
    local_rates: Mapping[str, float]
    num_processors: int | None = None
    link_share: float
    bytes_ahead: float
    bytes_queued: float
    queued_seconds: float
    payload_share: float
    hop_seconds: float
    processor: ProcessorCosts
    probed_message_seconds: float | None = None
    flow_limit: float | None = None
    stock_threads: int
    within: WithinCosts
    servers: ServerCosts

    @property
    def hop_within(self) -> float:
        """The travel time of the shortest message within a node."""
        return self.hop_seconds if self.within.hop_seconds is None else self.within.hop_seconds

    @property
    def native_round_within(self) -> float:
        """The wait of a round within a node, in the backend's collectives."""
        found = self.within.native_round_seconds
        return self.native_round_seconds if found is None else found

    def local_rate(self, cost: str) -> float:
        """Return the elements a second for a kind of cost."""
        return self.local_rates.get(cost) or self.local_rates.get(cost.partition(":")[0], ANY_RATE)


def _times(figure: float | tuple[float, float], factor: float) -> float | tuple[float, float]:
    if isinstance(figure, tuple):
        return figure[0] * factor, figure[1] * factor
    return figure * factor
