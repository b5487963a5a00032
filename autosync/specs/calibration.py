"""What was measured on a cluster: the facts that a cluster file cannot know, beside the rates that it claims.

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
    """One node: its link to and from the others, messages through it, and its ranks; None where nothing was measured.

    - `rate_out`, `rate_in`: bytes per second over its interface, several nodes at the other end;
    - `rate_out_both`, `rate_in_both`: the same while both directions are full;
    - `burst_out_bytes`, `burst_in_bytes`: what passes at once after a pause;
    - `latency_seconds`: half a round trip of the smallest message;
    - `message_seconds`, `message_cpu_seconds`: what each message more costs its sender, by the clock and of processor;
    - `rate_within`: bytes per second between two of its ranks;
    - `compute_seconds`: for each rank, how long a small fixed computation takes;
    - `interface`: the interface that the traffic went over.
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
    """A rack's uplink, in bytes per second: all nodes of the rack at once, against nodes elsewhere."""

    __pydantic_config__ = STRICT

    name: str
    rate_out: Estimate
    rate_in: Estimate


@dataclass(frozen=True, slots=True, kw_only=True)
class CurvePoint:
    """How long a collective of so many bytes takes on its slowest rank."""

    __pydantic_config__ = STRICT

    num_bytes: int
    seconds: Estimate


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """The cost of a collective among all workers by size; `algorithm` is the backend's own (native) or one of ours."""

    __pydantic_config__ = STRICT

    collective: str
    algorithm: str
    points: tuple[CurvePoint, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """One probe of a cluster: when, with what, and what it found.

    `emulated`: on a testbed, where all nodes share this machine. `cpu_share` is the largest share of processor time in
    use on a node meanwhile: near 1, the processor is what was measured, not the network. `step_seconds` is how long a
    mixed step took over and over, `step_variation` its coefficient of variation; None where one rank trains alone.
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

    def node(self, name: str) -> NodeCalibration | None:
        """What was measured of a node; None where it was not probed."""
        return next((node for node in self.nodes if node.name == name), None)
