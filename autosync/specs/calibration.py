"""Measurements of a cluster, besides the rates that its file claims.

`autosync cluster probe` writes them into the cluster file; the bound and simulators read them. Plans and fingerprints
ignore them. Rates are payload bytes per second. Every figure has its 95 % interval.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from autosync.documents import STRICT


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """A measured figure and the ends of its 95 % interval."""

    __pydantic_config__ = STRICT

    value: float
    low: float
    high: float

    def __post_init__(self) -> None:
        if not 0 <= self.low <= self.value <= self.high < math.inf:
            raise ValueError(
                f"{self.value} from {self.low} to {self.high} is no estimate (0 <= low <= value <= high, all finite)"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeCalibration:
    """The measurements of a node: its link, messages over it, and its ranks. Figures that were not measured are None.

    - `rate_out`, `rate_in`: bytes per second over its interface, with several nodes at the other end;
    - `rate_out_both`, `rate_in_both`: the same while both directions are full;
    - `burst_out_bytes`, `burst_in_bytes`: the bytes that pass at once after a pause;
    - `latency_seconds`: half a round trip of the smallest message;
    - `message_seconds`, `message_cpu_seconds`: the time and processor time that one more message costs its sender;
    - `rate_within`: bytes per second between two of its ranks;
    - `compute_seconds`: for each rank, the time of a small fixed computation;
    - `interface`: the network interface that the traffic used.
    """

    __pydantic_config__ = STRICT

    name: str
    rate_out: Estimate | None = None
    rate_in: Estimate | None = None
    rate_out_both: Estimate | None = None
    rate_in_both: Estimate | None = None
    burst_out_bytes: Estimate | None = None
    burst_in_bytes: Estimate | None = None
    latency_seconds: Estimate | None = None
    message_seconds: Estimate | None = None
    message_cpu_seconds: Estimate | None = None
    rate_within: Estimate | None = None
    compute_seconds: tuple[Estimate, ...] = ()
    interface: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RackCalibration:
    """The rates of a rack's uplink in bytes per second, while all its nodes exchange data with other racks.

    They are None where they were not measured.
    """

    __pydantic_config__ = STRICT

    name: str
    rate_out: Estimate | None = None
    rate_in: Estimate | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CurvePoint:
    """The time that a collective of `num_bytes` takes on its slowest rank."""

    __pydantic_config__ = STRICT

    num_bytes: int
    seconds: Estimate


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """The time of a collective among all workers, by size.

    `algorithm` is `native` for the backend's own collective, or the name of one of ours.
    """

    __pydantic_config__ = STRICT

    collective: str
    algorithm: str
    points: tuple[CurvePoint, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """One probe of a cluster.

    `emulated`: the cluster is a testbed, whose nodes share this machine. `cpu_share` is the largest share of processor
    time in use on a node during the probe; if it is near 1, the probe measured the processor and not the network.
    `step_seconds` is the time of a repeated step of mixed operations, and `step_variation` its coefficient of
    variation; both are None if one rank trains alone. `num_processors` is the number of processors of the machine that
    emulates all nodes; None if the nodes are real.
    """

    __pydantic_config__ = STRICT

    measured_at: str
    autosync: str
    torch: str
    python: str
    backend: str
    emulated: bool
    cpu_share: float
    nodes: tuple[NodeCalibration, ...]
    step_seconds: Estimate | None = None
    step_variation: float | None = None
    racks: tuple[RackCalibration, ...] = ()
    curves: tuple[Curve, ...] = ()
    num_processors: int | None = None

    def __post_init__(self) -> None:
        if self.num_processors is not None and self.num_processors < 1:
            raise ValueError(f"num_processors: {self.num_processors} is no number of processors (1 or more)")

    def node(self, name: str) -> NodeCalibration | None:
        """Return the measurements of a node, or None if it was not probed."""
        return next((node for node in self.nodes if node.name == name), None)
