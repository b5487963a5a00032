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
"""Bytes a second between two ranks of a node of which the cluster's file says nothing."""

EMULATING_PROCESSORS = 2
"""Processors of the machine that emulates a cluster where no probe counted them: as many as the machine had on which
the shipped records were measured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessorCosts:
    """Processor time of what the engine does, and of what torch's own reducer does where it carries a plan out.

    - of each message `ask` and `post` are those of the lanes that ask for it and post it, `asked` and `arrived` of the
      connections that hear of it, `taken` of the lane that takes it, a second figure being that of the backend's own
      collectives; `per_byte` of both ends together, of what goes to another node and of what stays on its own;
    - `transfer`, `local`: before the first message, and of local work beside its elements;
    - `gradient` for each gradient that is ready, `update` for each variable in the step and `step` for the step itself.

    `docs/notes/timeline.md` says how they were found.
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
        """All that a message costs, at both its ends together."""
        figures = (self.ask, self.post, self.asked, self.arrived, self.taken)
        return sum([figure[native] for figure in figures])


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """Seconds and bytes a second.

    - `transfer_seconds`: what a transfer takes on its lane's thread, however short it is;
    - `round_seconds`, `native_round_seconds`: the wait of each round, for our own
      messages and in the backend's collectives;
    - `rate_added`: how fast a rank adds up what it receives;
    - `local_seconds`: what local work takes on its thread, however little it is; `local_rates`: elements a second, by
      kind of cost (the part before the colon, or all of it);
    - `num_processors` of the machine on which the cluster is emulated, None where each node has its own;
    - `link_share`: of a link's rate, as much as payload gets;
    - `bytes_ahead`: what a socket takes of a sender beyond what has left its link;
    - `bytes_queued`: as much of others' bytes a request waits for in the queue of a receiver's link at most;
    - `queued_seconds`: as long as it waits at most for others' bytes in the queue of the link on which it begins;
    - `payload_share`: of a link's rate, what payload gets of it message by message; `hop_seconds`: how long the
      shortest message is on its way; `processor`: see there. These are the timeline's.
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
        """Elements a second."""
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
    """What simulators believe in unless they are told; the machine that simulates makes no difference."""
    return costs_of(cluster, num_processors=_num_processors(cluster))


def _num_processors(cluster: ClusterSpec) -> int | None:
    """Those that all nodes of an emulated cluster share, as its probe counted them; None where nodes are real."""
    if not cluster.is_emulated:
        return None
    counted = cluster.calibration.num_processors if cluster.calibration is not None else None
    return counted or EMULATING_PROCESSORS


def costs_of(cluster: ClusterSpec, *, num_processors: int | None = None) -> Costs:
    """The costs on a cluster: as its probe found them, else ordinary ones."""
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
    """The way of a message from host to host, without what its ends take for it."""
    found = [node.latency_seconds.value for node in calibration.nodes if node.latency_seconds is not None]
    return median(found) - processor.of_message(native=True) if found else 0.0


def _round_seconds(cluster: ClusterSpec, calibration: Calibration, algorithms: tuple[str, ...]) -> float | None:
    """The shortest all-reduces have no bytes to speak of: what they take is their rounds."""
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
    """Payload bytes a second of a link: as probed, else so great a share of what its file claims."""
    return measured.value if measured is not None and measured.value > 0 else claimed * share
