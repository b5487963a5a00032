"""How much there is to gain: what of a step is communication, and what no exact strategy can be faster than."""

from __future__ import annotations

from dataclasses import dataclass

from autosync.datasets.schema import Measurement
from autosync.plan.bound import Bound
from autosync.specs.cluster import ClusterSpec
from autosync.specs.model import ModelSpec
from autosync.units import format_time

LITTLE = 1.02
"""A gain of less is none to speak of."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeShares:
    """Where the time of a step went, in seconds, as far as a measurement can tell.

    `compute` is what the model takes by itself. What a step takes beyond that is communication that compute does not
    hide: `exposed` while the busiest link was busy, `idle` while neither compute nor that link was, at the least (None
    where nobody counts the bytes of each link: then `exposed` is all of it). `link` is how long the busiest link took
    for what went over it, hidden or not.
    """

    step: float
    compute: float
    exposed: float
    idle: float | None
    link: float | None

    def __str__(self) -> str:
        words = [f"compute {format_time(self.compute)}", f"exposed communication {format_time(self.exposed)}"]
        if self.idle is not None:
            words.append(f"waiting with idle links {format_time(self.idle)}")
        return f"{format_time(self.step)} a step: {', '.join(words)}"


def time_shares(measurement: Measurement, model: ModelSpec, cluster: ClusterSpec) -> TimeShares:
    """Where the time of the measured steps went."""
    step = measurement.median_seconds
    compute = min(model.step_seconds, step)
    link = _link_seconds(measurement, cluster)
    idle = None if link is None else max(step - compute - link, 0.0)
    return TimeShares(step=step, compute=compute, exposed=step - compute - (idle or 0.0), idle=idle, link=link)


def _link_seconds(measurement: Measurement, cluster: ClusterSpec) -> float | None:
    """How long the busiest interface takes for the bytes of a step. Ranks of a node have one in common."""
    sent, received = measurement.bytes_sent, measurement.bytes_received
    if sent is None or received is None or len(cluster.nodes) < 2:
        return None
    nodes = [cluster.nodes[rank.node] for rank in cluster.ranks]
    return max(
        max(out / node.bandwidth_out, into / node.bandwidth_in)
        for node, out, into in zip(nodes, sent, received, strict=False)
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Prospect:
    """How many times as fast as stock DDP any exact strategy can be at most, and why no more."""

    default: TimeShares
    bound: Bound

    @property
    def most(self) -> float:
        return max(self.default.step / self.bound.seconds, 1.0)

    def __str__(self) -> str:
        share = 1 - self.default.compute / self.default.step
        what = f"communication that compute does not hide is {share:.0%} of stock DDP's step"
        if self.most == 1.0:
            return f"{what}: it is as fast as any exact strategy on this cluster can be"
        if self.most < LITTLE:
            return f"{what}, and no exact strategy on this cluster can be more than {self.most - 1:.1%} faster"
        limit = f"no exact strategy on this cluster can be more than {self.most:.2f} times as fast"
        return f"{what}; {limit} ({self.bound.largest})"


def prospect(default: Measurement, model: ModelSpec, cluster: ClusterSpec, limit: Bound) -> Prospect:
    """What stock DDP, measured, leaves to be gained."""
    return Prospect(default=time_shares(default, model, cluster), bound=limit)
