"""The targets of `tune_suite.py` without a cluster: recorded pools, and simulated clusters with hidden parameters.

For a pool the prior may be `others`: it learns from the store's records of all other targets. A prior from the target's
own records would know the results before the first trial.
"""

from __future__ import annotations

import argparse
import functools
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import fields, replace
from typing import Any

from autosync.datasets.dataset import Dataset
from autosync.plan.bound import bound
from autosync.search.candidates import Candidate, default_as_strategy, known_candidates
from autosync.search.domain import PoolDomain, SpaceDomain
from autosync.search.ground_builder import simulator_fields
from autosync.search.pool import Pool, read_pool
from autosync.search.prior import PRIOR_SIMULATOR, prior_path
from autosync.search.proposers.interface import Ground
from autosync.simulators.features.reader import StrategyReader
from autosync.simulators.learned.boosted import Boosted
from autosync.simulators.learned.priors import Lot, lots_of
from autosync.simulators.learned.ranker import RankerStudent
from autosync.simulators.learned.simulators import ranker_of
from autosync.simulators.learned.student import StudentSimulator
from autosync.simulators.shared.costs import costs_of
from autosync.simulators.timeline.simulator import TimelineSimulator
from autosync.specs.cluster import ClusterSpec
from autosync.specs.cluster_file import load_cluster
from autosync.specs.costs import Costs
from autosync.specs.model import ModelSpec
from autosync.specs.model_file import model_of
from autosync.strategy.space import Limits, Space
from benchmarks.shared import tell
from benchmarks.tune_suite.race import Race

OTHERS = "others"

NOISE = 0.01
"""The standard deviation of the logarithm of a simulated trial's result."""

COSTS_SPREAD = 0.5
LINKS_SPREAD = 0.05
"""The distance of hidden costs and links from those that simulators assume, as standard deviations of logarithms."""

SIMULATED = (
    ("acoustic_mlp@x50", "4-hosts"),
    ("acoustic_mlp@x50", "4-hosts-one-slow"),
    ("resnet20@x4", "3-hosts-3-speeds"),
    ("squeezenet@x2", "4-hosts-2-racks"),
    ("gpt_mini", "2-hosts-2-ranks"),
    ("bert_tiny@x4", "4-hosts-2-servers"),
    ("ncf_small@x50", "4-hosts"),
    ("moe@x4", "4-hosts-one-slow"),
)


def replayed_targets(options: argparse.Namespace) -> Iterator[Race]:
    """Yield every combination of a store that has enough records."""
    lots = lots_of(options.store) if options.prior == OTHERS else []
    counts = Counter((r.model_name, r.cluster_name) for r in Dataset(options.store).records(lambda _: None))
    for (model, cluster), count in sorted(counts.items()):
        if count < options.least_records:
            tell(f"{model}/{cluster}: {count} records, left out")
            continue
        yield _replayed(read_pool(str(options.store), model=model, cluster=cluster), options, lots)


def _replayed(pool: Pool, options: argparse.Namespace, lots: Sequence[Lot]) -> Race:
    space = Space(model=pool.model, cluster=pool.cluster)
    exact = [one for one in pool.candidates if one.strategy is not None and one.strategy.is_exact]
    domain = PoolDomain(space, [one.strategy for one in exact if one.strategy is not None])

    def open_ground() -> Ground:
        return Ground(
            model=pool.model,
            cluster=pool.cluster,
            domain=domain,
            limits=space.limits,
            known=tuple(one for one in exact if one.origin.startswith("preset:")),
            **predictors(),
        )

    def predictors() -> dict[str, Any]:
        if options.prior != OTHERS:
            return simulator_fields(options.simulator, pool.model, pool.cluster, prior=prior_path(options.prior))
        student = RankerStudent(StrategyReader(pool.model, pool.cluster), prior=taught_by_others())
        return {**simulator_fields(PRIOR_SIMULATOR, pool.model, pool.cluster), "simulator": StudentSimulator(student)}

    @functools.cache
    def taught_by_others() -> Boosted:
        name = pool.model.name.partition("@")[0]
        others = [lot for lot in lots if lot.model_name != name or lot.cluster.name != pool.cluster.name]
        return ranker_of(others)[0]

    def truth(candidate: Candidate) -> float | None:
        record = pool.records.get(candidate.strategy_id)
        measured = None if record is None else record.measurement
        return None if measured is None else measured.median_seconds

    known = [seconds for one in exact if (seconds := truth(one)) is not None]
    return Race(
        name=f"{pool.model.name}/{pool.cluster.name}",
        open_ground=open_ground,
        measure=lambda candidate, _: truth(candidate),
        truth=truth,
        best_known_seconds=min(known),
    )


def simulated_targets(options: argparse.Namespace) -> Iterator[Race]:
    """Yield shipped models on shipped clusters that differ a little from their files."""
    for number, (model, cluster) in enumerate(SIMULATED):
        if not options.targets or f"{model}/{cluster}" in options.targets:
            yield _simulated(model_of(model), load_cluster(cluster), number, options)


def _simulated(model: ModelSpec, cluster: ClusterSpec, number: int, options: argparse.Namespace) -> Race:
    rng = random.Random(number)
    # Every node has its own processors, both in the hidden cluster and in what the search assumes.
    cluster = replace(cluster, launcher="local")
    hidden_cluster = _other_links(cluster, rng)
    hidden = TimelineSimulator(model, hidden_cluster, costs=_other_costs(costs_of(cluster), rng))
    domain = SpaceDomain(space=Space(model=model, cluster=cluster))
    known = tuple(known_candidates(model, cluster, domain.contains))
    default = default_as_strategy(model, cluster)

    @functools.cache
    def seconds(strategy_id: str) -> float:
        # The strategy of this id is always the one that was just seen.
        found = seen[strategy_id].strategy
        assert found is not None, "baselines are given as strategies"
        return hidden.predict([found])[0].seconds

    seen: dict[str, Candidate] = {}

    def truth(candidate: Candidate) -> float:
        one = default if candidate.strategy is None else candidate
        seen[one.strategy_id] = one
        return seconds(one.strategy_id)

    def open_ground() -> Ground:
        return Ground(
            model=model,
            cluster=cluster,
            domain=domain,
            limits=Limits(),
            known=known,
            **simulator_fields(options.simulator, model, cluster, prior=prior_path(options.prior)),
        )

    return Race(
        name=f"{model.name}/{cluster.name}",
        open_ground=open_ground,
        measure=lambda candidate, noise: truth(candidate) * noise.lognormvariate(0.0, NOISE),
        truth=truth,
        bound_seconds=bound(model, hidden_cluster, even_rows=True).seconds,
    )


def _other_costs(costs: Costs, rng: random.Random) -> Costs:
    """Return the costs, each multiplied by its own factor, except for shares.

    Processor times and rates are included.
    """

    def moved(value: Any) -> Any:
        if isinstance(value, tuple):
            return tuple(map(moved, value))
        return value * rng.lognormvariate(0.0, COSTS_SPREAD)

    def all_moved(figures: Any) -> Any:
        names = [field.name for field in fields(figures) if not field.name.endswith("_share")]
        values = {name: getattr(figures, name) for name in names}
        return replace(figures, **{n: moved(one) for n, one in values.items() if isinstance(one, float | tuple)})

    rates = {name: moved(rate) for name, rate in costs.local_rates.items()}
    return replace(all_moved(costs), processor=all_moved(costs.processor), local_rates=rates)


def _other_links(cluster: ClusterSpec, rng: random.Random) -> ClusterSpec:
    """Return the cluster with slightly faster or slower links for each class of equal nodes."""
    class_of = {name: index for index, names in enumerate(cluster.alike) for name in names}
    factors: dict[object, float] = {}
    nodes = []
    for node in cluster.nodes:
        key = class_of.get(node.name, node.name)
        factor = factors.setdefault(key, rng.lognormvariate(0.0, LINKS_SPREAD))
        nodes.append(replace(node, bandwidth_out=node.bandwidth_out * factor, bandwidth_in=node.bandwidth_in * factor))
    return replace(cluster, nodes=tuple(nodes))
