"""The costs of operations on a cluster, except the bytes on its links.

Links have rates. A few figures describe everything else, for all transfers and all local work. A probe of the cluster
measures the rounds (`costs_of`); the other figures are estimates for an ordinary processor.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import median

from autosync.specs.calibration import Calibration, Curve, Estimate
from autosync.specs.cluster import ClusterSpec

LOOPBACK_RATE = 1.5e9
"""The bytes a second between two ranks of a node if the cluster file gives no rate within the node."""

EMULATING_PROCESSORS = 2
"""The processors of the machine that emulates a cluster, if no probe counted them: those of the machine on which the
shipped records were measured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessorCosts:
    """The processor time of the engine's work, and of torch's own reducer if it executes a plan.

    - `ask`, `post`, `taken`: for each message, in the lanes that request it, post it and take it.
    - `asked`, `arrived`: for each message, in the connections that receive the request and the message. The second
      figure of each pair is for the backend's own collectives.
    - `per_byte`: for each byte at both ends together, to another node and within a node.
    - `transfer`, `local`: at the start of a transfer, and for a local operation in addition to its elements.
    - `gradient`, `update`, `step`: for each ready gradient, for each variable in the step, and for the step itself.

    `docs/notes/timeline.md` explains how these times were found.
    """

    ask: tuple[float, float] = (27e-6, 0.0)
    post: tuple[float, float] = (27e-6, 0.0)
    asked: tuple[float, float] = (31e-6, 21e-6)
    arrived: tuple[float, float] = (27e-6, 17e-6)
    taken: tuple[float, float] = (35e-6, 21e-6)
    per_byte: tuple[float, float] = (1.9e-9, 0.3e-9)
    transfer: float = 60e-6
    stock_transfer: float = 20e-6
    local: float = 20e-6
    gradient: float = 55e-6
    stock_gradient: float = 5e-6
    update: float = 15e-6
    step: float = 3.2e-3

    def of_message(self, *, native: bool) -> float:
        """Return the whole cost of a message, at both its ends together."""
        figures = (self.ask, self.post, self.asked, self.arrived, self.taken)
        return sum([figure[native] for figure in figures])


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
    - `bytes_ahead`: the bytes that a sender's socket takes beyond those that have left its link;
    - `bytes_queued`: the most bytes of others for which a request waits in the queue of the receiver's link;
    - `queued_seconds`: the longest time that a request waits for bytes of others in the queue of its sender's link;
    - `payload_share` (only for the timeline): the share of a link's rate that payload gets message by message;
    - `hop_seconds` (only for the timeline): the travel time of the shortest message;
    - `processor` (only for the timeline): see `ProcessorCosts`.
    """

    transfer_seconds: float = 120e-6
    round_seconds: float = 120e-6
    native_round_seconds: float = 170e-6
    rate_added: float = 2.5e9
    local_seconds: float = 60e-6
    local_rates: Mapping[str, float] = field(default_factory=lambda: dict(_LOCAL_RATES))
    num_processors: int | None = None
    link_share: float = 0.97
    bytes_ahead: float = 1e6
    bytes_queued: float = 5.8e6
    queued_seconds: float = 8e-3
    payload_share: float = 0.99
    hop_seconds: float = 30e-6
    processor: ProcessorCosts = field(default_factory=ProcessorCosts)

    def local_rate(self, cost: str) -> float:
        """Return the elements a second for a kind of cost."""
        return self.local_rates.get(cost) or self.local_rates.get(cost.partition(":")[0], 1e9)


_LOCAL_RATES: Mapping[str, float] = {
    "average": 1.5e9,
    "norm": 1e9,
    "copy": 2e9,
    "take": 2e9,
    "merge_rows": 2e8,
    "read_rows": 2e8,
    "write_rows": 2e8,
    "rebuild": 2e10,
    "outer": 3e8,
    "encode": 2e8,
    "decode": 4e8,
    "project": 1e9,
}


def usual_costs(cluster: ClusterSpec) -> Costs:
    """Return the default costs of simulators. They do not depend on the machine that simulates."""
    return costs_of(cluster, num_processors=_num_processors(cluster))


def _num_processors(cluster: ClusterSpec) -> int | None:
    """Return how many processors the nodes of an emulated cluster share, by its probe; None if nodes are real."""
    if not cluster.is_emulated:
        return None
    counted = cluster.calibration.num_processors if cluster.calibration is not None else None
    return counted or EMULATING_PROCESSORS


def costs_of(cluster: ClusterSpec, *, num_processors: int | None = None) -> Costs:
    """Return the costs on a cluster: those that its probe found, else the defaults."""
    calibration = cluster.calibration
    if calibration is None:
        return Costs(num_processors=num_processors)
    ordinary = Costs()
    return Costs(
        round_seconds=_round_seconds(cluster, calibration, ("ring", "halving_doubling")) or ordinary.round_seconds,
        native_round_seconds=_round_seconds(cluster, calibration, ("native",)) or ordinary.native_round_seconds,
        num_processors=num_processors if calibration.emulated else None,
        hop_seconds=max(ordinary.hop_seconds, _hop_seconds(calibration, ordinary.processor)),
    )


def _hop_seconds(calibration: Calibration, processor: ProcessorCosts) -> float:
    """Return the travel time of a message between hosts, without the processor time of its ends."""
    found = [node.latency_seconds.value for node in calibration.nodes if node.latency_seconds is not None]
    return median(found) - processor.of_message(native=True) if found else 0.0


def _round_seconds(cluster: ClusterSpec, calibration: Calibration, algorithms: tuple[str, ...]) -> float | None:
    """Return the time of a round.

    The shortest all-reduces have almost no bytes, so their time is that of their rounds.
    """
    found = [
        _without_bytes(cluster, curve) / _num_rounds(curve.algorithm, cluster.num_workers)
        for curve in calibration.curves
        if curve.collective == "all_reduce" and curve.algorithm in algorithms and curve.points
    ]
    return median(found) if found else None


def _without_bytes(cluster: ClusterSpec, curve: Curve) -> float:
    shortest = min(curve.points, key=lambda point: point.num_bytes)
    slowest = min(min(node.bandwidth_out, node.bandwidth_in) for node in cluster.nodes)
    return max(1e-5, shortest.seconds.value - 2 * shortest.num_bytes / slowest)


def _num_rounds(algorithm: str, num_members: int) -> int:
    if algorithm == "halving_doubling":
        return 2 * max(1, (num_members - 1).bit_length())
    return 2 * max(1, num_members - 1)


def link_rate(claimed: float, measured: Estimate | None, share: float) -> float:
    """Return a link's payload bytes a second: as probed, else this share of the rate in its file."""
    return measured.value if measured is not None and measured.value > 0 else claimed * share
