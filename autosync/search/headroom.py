"""The possible gain: the share of communication in a step, and the largest speedup of any exact strategy."""

from __future__ import annotations

from dataclasses import dataclass

from autosync.datasets.schema import Measurement
from autosync.plan.bound_terms import TOO_SHORT, Bound, Term, holds
from autosync.search.link_times import LinkTime, busiest_link
from autosync.specs.cluster import ClusterSpec
from autosync.specs.links import PROCESSORS, busy_in_words
from autosync.specs.model import ModelSpec
from autosync.strategy.representation import Strategy
from autosync.strategy.stage_compute import strategy_compute_seconds
from autosync.units import format_time

LITTLE = 1.02
"""The smallest speedup that is worth mentioning."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeShares:
    """The parts of a step's time, in seconds, as far as a measurement shows them.

    `compute` is the time of the model alone, and `input` the wait for a batch, where steps have such a wait. The rest
    of the step is communication that compute does not hide: `exposed` while something was busy, and `idle`, a lower
    limit, while neither compute nor the busiest link nor the processors were. `idle` is None if bytes are not counted;
    `exposed` is then the whole rest. `link` is the busiest link, which may be a rack's uplink or a link within a node,
    and the time that it took for all its bytes, hidden or not. `processors` is the time for which all processors of the
    busiest machine together would have been busy; None if it was not measured.
    """

    step: float
    compute: float
    exposed: float
    idle: float | None
    link: LinkTime | None
    processors: float | None = None
    input: float = 0.0

    def __str__(self) -> str:
        words = [f"compute {format_time(self.compute)}", f"exposed communication {format_time(self.exposed)}"]
        if self.input:
            words.append(f"waiting for input {format_time(self.input)}")
        if self.idle is not None:
            words.append(f"waiting with nothing busy {format_time(self.idle)}")
        words += [busy_in_words(name, share) for name, share in self.busiest]
        return f"{format_time(self.step)} a step: {', '.join(words)}"

    @property
    def link_share(self) -> float | None:
        """The share of the step in which the busiest link was busy."""
        return None if self.link is None else self.link.seconds / self.step

    @property
    def processors_share(self) -> float | None:
        """The share of the step for which the processors were busy."""
        return None if self.processors is None else self.processors / self.step

    @property
    def busiest(self) -> list[tuple[str, float]]:
        """What limits the step: the busiest link and the processors, each with the share of the step, fullest first."""
        found = []
        if self.link is not None and self.link.seconds > 0:
            found.append((self.link.link, self.link.seconds / self.step))
        if self.processors:
            found.append((PROCESSORS, self.processors / self.step))
        return sorted(found, key=lambda one: -one[1])


def time_shares(
    measurement: Measurement, model: ModelSpec, cluster: ClusterSpec, strategy: Strategy | None
) -> TimeShares:
    """Return the parts of a strategy's measured step time; without a strategy, those of stock DDP as it ships."""
    step = measurement.median_seconds
    compute = min(strategy_compute_seconds(strategy, model, cluster), step)
    link = busiest_link(measurement, model, cluster, strategy)
    processors = None if measurement.cpu_share is None else measurement.cpu_share * step
    waits = min(input_wait(measurement, model), step - compute)
    idle = None if link is None else max(step - compute - waits - link.seconds - (processors or 0.0), 0.0)
    exposed = step - compute - waits - (idle or 0.0)
    return TimeShares(
        step=step, compute=compute, exposed=exposed, idle=idle, link=link, processors=processors, input=waits
    )


def input_wait(measurement: Measurement, model: ModelSpec) -> float:
    """Return how long a step waits for its batch, on the rank that waits longest; 0 if steps begin with the batch."""
    if measurement.input is None:
        return 0.0
    by_loader = model.input is not None and model.input.by_loader
    return max(measurement.input.wait_seconds) if by_loader or measurement.input.in_step else 0.0


def with_waits(limit: Bound, measurement: Measurement, shares: TimeShares) -> Bound:
    """Return the bound for this step's script: where its own loaders make the batches, it has their waits, too.

    No strategy changes these loaders, and none shortens their waits. A loader reads ahead while the rest of the step
    goes on, so a shorter rest leaves it less time for the same batches.
    """
    if measurement.input is None or not measurement.input.in_step or not shares.input:
        return limit
    wait = Term(kind="input", subject="", num_bytes=0, seconds=shares.input + shares.compute)
    return Bound(terms=(*limit.terms, wait))


def with_loader(limit: Bound, loader_seconds: float | None) -> Bound:
    """Return the bound for a script whose loaders make a batch in this time; the given one if they keep up."""
    if loader_seconds is None:
        return limit
    return Bound(terms=(*limit.terms, Term(kind="loader", subject="", num_bytes=0, seconds=loader_seconds)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Headroom:
    """The gap between a measured step and the bound of exact strategies.

    `bound` holds without stages. Where a study also searched strategies with stages, `divided` is their bound, and the
    smaller one counts. A step that is shorter than the bound shows that the bound is wrong.
    """

    step: float
    bound: Bound
    divided: Bound | None = None

    @property
    def limit(self) -> Bound:
        """The bound of all strategies that were searched."""
        return self.bound if self.divided is None else min(self.bound, self.divided, key=lambda one: one.seconds)

    @property
    def most(self) -> float:
        """The largest speedup over this step that an exact strategy can have."""
        return max(self.step / self.limit.seconds, 1.0)

    @property
    def is_known(self) -> bool:
        """Whether the bound holds, as far as this step shows."""
        return holds(self.limit.seconds, self.step)

    @property
    def share(self) -> float:
        """The share of the step that every exact strategy needs; above 1 where the step refutes the bound."""
        share = self.limit.seconds / self.step
        return min(share, 1.0) if self.is_known else share

    def __str__(self) -> str:
        if not self.is_known:
            return f"{format_time(self.step)} a step is {TOO_SHORT}"
        if self.most == 1.0:
            return "no exact strategy on this cluster can be faster"
        of = " of strategies with stages" if self.limit is self.divided else ""
        return (
            f"{self.share:.2f} of the bound{of}: at most {self.most:.2f} times as fast is left ({self.limit.largest})"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PossibleGain:
    """The largest speedup over stock DDP that an exact strategy can have, and the reason for this limit.

    `divided` is the bound of strategies with stages, where a study searched them.
    """

    default: TimeShares
    bound: Bound
    divided: Bound | None = None

    @property
    def most(self) -> float:
        return self._headroom.most

    @property
    def limit(self) -> Bound:
        """The bound of all strategies that were searched."""
        return self._headroom.limit

    @property
    def most_undivided(self) -> float:
        """The largest speedup of a strategy without stages."""
        return Headroom(step=self.default.step, bound=self.bound).most

    @property
    def _headroom(self) -> Headroom:
        return Headroom(step=self.default.step, bound=self.bound, divided=self.divided)

    def __str__(self) -> str:
        waiting = self.default.input / self.default.step
        share = 1 - self.default.compute / self.default.step - waiting
        what = f"communication that compute does not hide is {share:.0%} of stock DDP's step"
        if waiting >= LITTLE - 1:
            what += f", and waiting for input, which no synchronisation shortens, is {waiting:.0%}"
        if not self._headroom.is_known:
            return f"{what}; this step is {TOO_SHORT}"
        if self.most == 1.0:
            return f"{what}: it is as fast as any exact strategy on this cluster can be"
        if self.most < LITTLE:
            return f"{what}, and no exact strategy on this cluster can be more than {self.most - 1:.1%} faster"
        if self.divided is not None:
            more = max(self.default.step / self.divided.seconds, 1.0)
            return (
                f"{what}; no exact strategy without stages can be more than {self.most_undivided:.2f} times as fast "
                f"({self.bound.largest}), and none with stages more than {more:.2f} times ({self.divided.largest})"
            )
        limit = f"no exact strategy on this cluster can be more than {self.most:.2f} times as fast"
        return f"{what}; {limit} ({self.bound.largest})"


def possible_gain(
    default: Measurement, model: ModelSpec, cluster: ClusterSpec, limit: Bound, divided: Bound | None = None
) -> PossibleGain:
    """Return the largest possible gain over the measured stock DDP."""
    shares = time_shares(default, model, cluster, None)
    return PossibleGain(default=shares, bound=with_waits(limit, default, shares), divided=divided)
