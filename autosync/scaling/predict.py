"""Predicts how a model scales on a cluster. `predict_scaling` is its only public function."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

from autosync.errors import InputError
from autosync.scaling.bottleneck import bottleneck_of
from autosync.scaling.errors import Ends, MeasuredErrors, Subject, measured_errors
from autosync.scaling.extension import assumptions, extended, num_worker_nodes, with_links
from autosync.scaling.fastest import Find, fastest
from autosync.scaling.intervals import effects_of, forecast
from autosync.scaling.knee import Knee, knee_of
from autosync.scaling.prediction import SAMPLES, Forecast, Outlook, ScalingPrediction, SizePrediction
from autosync.scaling.price import Price
from autosync.scaling.warnings import warnings_of
from autosync.search.candidates import default_as_strategy
from autosync.simulators.large_clusters import most_detailed, predictor_of
from autosync.simulators.shared.costs import usual_costs
from autosync.specs.cluster import ClusterSpec
from autosync.specs.compute_pace import compute_seconds
from autosync.specs.costs import Costs
from autosync.specs.model import ModelSpec
from autosync.strategy.representation import Strategy

STOCK_DDP = "stock DDP"
ALONE = "one rank, nothing to synchronise"


def predict_scaling(
    model: ModelSpec,
    cluster: ClusterSpec,
    num_nodes: Sequence[int],
    *,
    link: float | None = None,
    price: Price | None = None,
    seed: int = 0,
    find: Find = fastest,
    progress: Callable[[str], None] = lambda _: None,
) -> ScalingPrediction:
    """Return predictions for these numbers of worker nodes, from a cluster that may have fewer or more of them.

    With `link`, all links have that rate. No rank is started: `find` finds strategies by simulation alone.
    """
    numbers = sorted(set(num_nodes))
    if not numbers:
        raise InputError("no number of nodes", rule="at least one")
    # Impossible sizes are refused here, before the first search.
    clusters = [extended(cluster, number) for number in numbers]
    if link is not None:
        clusters = [with_links(one, link) for one in clusters]
    context = _Context(
        model=model, costs=usual_costs(cluster), errors=measured_errors(), price=price, seed=seed, find=find
    )
    sizes = []
    for one in clusters:
        progress(f"simulating {num_worker_nodes(one)} nodes")
        sizes.append(context.size(one))
    return ScalingPrediction(
        model=model.name,
        cluster=cluster.name,
        measured_nodes=num_worker_nodes(cluster),
        is_probed=cluster.calibration is not None,
        batch_size=model.batch_size * model.accumulation_steps,
        price=price,
        sizes=tuple(sizes),
        stock_knee=_knee(sizes, lambda size: size.stock),
        best_knee=_knee(sizes, lambda size: size.best),
        assumptions=tuple(assumptions(cluster, numbers, link)),
        warnings=tuple(warnings_of(model, cluster, sizes, link=link, errors=context.errors)),
    )


def _seconds_without_waits(model: ModelSpec, cluster: ClusterSpec) -> float:
    """Return the step time of as many equal ranks as train the same samples a second without any wait."""
    speeds = [cluster.nodes[rank.node].compute for rank in cluster.ranks[: cluster.num_workers]]
    return model.step_seconds / fmean(speeds)


def _knee(sizes: Sequence[SizePrediction], of: Callable[[SizePrediction], Outlook]) -> Knee | None:
    return knee_of({size.num_nodes: of(size).samples_per_second.value for size in sizes})


@dataclass(frozen=True, slots=True, kw_only=True)
class _Context:
    """The facts that all sizes have in common."""

    model: ModelSpec
    costs: Costs
    errors: MeasuredErrors | None
    price: Price | None
    seed: int
    find: Find

    def size(self, cluster: ClusterSpec) -> SizePrediction:
        """Return the prediction for one cluster."""
        if len(cluster.ranks) == 1:
            alone = self._outlook(ALONE, None, self._alone(cluster), cluster, self.model, simulator="profile")
            return self._size(cluster, alone, alone)
        simulator = most_detailed(self.model, cluster, costs=self.costs)
        default = default_as_strategy(self.model, cluster).strategy
        assert default is not None, "what stock DDP does is a strategy too"
        # Stock DDP sends every gradient in every step, also those of variables that no rank uses.
        plain = replace(self.model, use_sample=None)
        seconds = self._seconds(default, plain, cluster)
        name = predictor_of(most_detailed(plain, cluster, costs=self.costs), default)
        step = self._step(default, seconds, cluster, plain, self._ends(name, "stock DDP", cluster))
        stock = best = self._outlook(STOCK_DDP, default, step, cluster, plain, simulator=name)
        found = self.find(self.model, cluster, simulator, self.costs, self.seed)
        if found is not None and found.strategy is not None:
            (faster,) = simulator.predict([found.strategy])
            if faster.seconds < seconds:
                name = predictor_of(simulator, found.strategy)
                ends = self._ends(name, "fastest", cluster)
                step = self._step(found.strategy, faster.seconds, cluster, self.model, ends)
                words = found.in_words(self.model)
                best = self._outlook(words, found.strategy, step, cluster, self.model, simulator=name)
        return self._size(cluster, stock, best)

    def _size(self, cluster: ClusterSpec, stock: Outlook, best: Outlook) -> SizePrediction:
        return SizePrediction(
            num_nodes=num_worker_nodes(cluster),
            num_ranks=cluster.num_workers,
            num_priced=len(cluster.nodes),
            beyond=tuple(self.errors.beyond(cluster)) if self.errors is not None else (),
            stock=stock,
            best=best,
        )

    def _outlook(
        self,
        name: str,
        strategy: Strategy | None,
        step: Forecast,
        cluster: ClusterSpec,
        model: ModelSpec,
        *,
        simulator: str,
    ) -> Outlook:
        samples = float(cluster.num_workers * model.batch_size * model.accumulation_steps)
        cost = None
        if self.price is not None:
            cost = step.times(self.price.cost(len(cluster.nodes), 1.0) * SAMPLES / samples)
        return Outlook(
            name=name,
            strategy=strategy,
            simulator=simulator,
            step_seconds=step,
            samples_per_second=step.under(samples),
            efficiency=step.under(_seconds_without_waits(model, cluster)),
            cost=cost,
            bottleneck=bottleneck_of(step.value, strategy, model, cluster, self.costs),
        )

    def _alone(self, cluster: ClusterSpec) -> Forecast:
        """Return the step time of a rank that trains alone: what its profile says of its device, and the interval."""
        seconds = compute_seconds(self.model, cluster)
        if seconds <= 0:
            rule = "alone, a rank computes and does nothing else (autosync profile measures how long)"
            raise InputError(f"{self.model.name} on one rank, and it has no compute times", rule=rule)
        effects = effects_of(seconds, self.model, None, lambda model, _: compute_seconds(model, cluster))
        return forecast(seconds, Ends(0.0, 0.0) if effects else None, effects)

    def _seconds(self, strategy: Strategy, model: ModelSpec, cluster: ClusterSpec) -> float:
        (one,) = most_detailed(model, cluster, costs=self.costs).predict([strategy])
        return one.seconds

    def _ends(self, simulator: str, subject: Subject, cluster: ClusterSpec) -> Ends | None:
        """Return the interval of a simulator's errors; None if no errors are known."""
        return None if self.errors is None else self.errors.ends(simulator, subject, cluster)

    def _step(
        self, strategy: Strategy, seconds: float, cluster: ClusterSpec, model: ModelSpec, errors: Ends | None
    ) -> Forecast:
        """Return a predicted step time with its interval."""
        if errors is None:
            return forecast(seconds, None, ())
        effects = effects_of(seconds, model, cluster, lambda one, on: self._seconds(strategy, one, on or cluster))
        return forecast(seconds, errors, effects)
