"""Compares the timeline, told nothing but a probe, with measured strategies that have trees, and with divided ones.

    python benchmarks/simulator_accuracy/racks_and_stages.py [--records FOLDER] > racks.json

Strategies with trees are those of which some message travels over `levels` or over trees that are written out, on
clusters with racks. Each strategy counts once, by its first undisturbed trial. Prints one JSON document, with the
accuracy on each combination of model and cluster, and the mean over the two or more combinations of each family.

Ends with 0 if each family has 150 strategies on two combinations, a median error of at most 5 %, and at least 0.95 of
the pairs that differ by more than their noise in the right order.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

sys.path.append(str(Path(__file__).parents[2]))
from autosync.datasets.dataset import SHIPPED, Dataset
from autosync.datasets.facts import cluster_of_spec, model_of_spec
from autosync.datasets.machine_drift import Combination, combination_of, flag_drift
from autosync.datasets.outdated import is_outdated
from autosync.datasets.reliability import is_disturbed
from autosync.datasets.schema import Measurement, Record
from autosync.simulators.catalogue import open_simulator
from autosync.simulators.evaluation import Accuracy, accuracy_of, mean_accuracy, measured_of, noise_of
from autosync.simulators.stages.simulator import with_stages
from autosync.specs.cluster import ClusterSpec
from autosync.specs.model import ModelSpec
from autosync.strategy.representation import Strategy
from benchmarks.dataset.proposals import has_trees
from benchmarks.shared import parser_of, report, run, tell
from benchmarks.simulator_accuracy.targets import rounded, strategy_of

RANDOM = frozenset({"sampled", "treed", "divided", "neighbour"})
"""The origins of strategies that were drawn at random, or changed at random from the fastest."""
LEAST_STRATEGIES, LEAST_COMBINATIONS = 150, 2
MOST_ERROR, LEAST_PAIRS = 0.05, 0.95


def family_of(strategy: Strategy, cluster: ClusterSpec) -> str | None:
    """Return the family by which a strategy is judged; None if it is of neither."""
    if strategy.stages:
        return "stages"
    return "trees" if cluster.racks and has_trees(strategy) else None


def judge(records: Sequence[Record], model: ModelSpec, cluster: ClusterSpec, noise: float) -> dict[str, Accuracy]:
    """Return the accuracy on each family's strategies of one model on one cluster."""
    found: dict[str, list[tuple[Strategy, Measurement]]] = defaultdict(list)
    seen: set[str | None] = set()
    for record in records:
        if record.strategy_id in seen or record.measurement is None or is_outdated(record, model, cluster):
            continue
        seen.add(record.strategy_id)
        strategy = strategy_of(record)
        family = family_of(strategy, cluster)
        if family is not None:
            found[family].append((strategy, record.measurement))
    simulator = with_stages(open_simulator("timeline", model, cluster), model, cluster)
    judged = {}
    for family, pairs in found.items():
        predicted = np.array([one.seconds for one in simulator.predict([strategy for strategy, _ in pairs])])
        judged[family] = accuracy_of(measured_of([one for _, one in pairs], noise=noise), predicted)
    return judged


def by_combination(records: Sequence[Record]) -> Iterator[tuple[Combination, list[Record]]]:
    """Yield the random strategies' undisturbed records of each combination, in the order of their trials."""
    found: dict[Combination, list[Record]] = defaultdict(list)
    for record in records:
        if record.origin in RANDOM and record.strategy is not None and not is_disturbed(record):
            found[combination_of(record)].append(record)
    for combination, chosen in sorted(found.items()):
        yield combination, sorted(chosen, key=lambda record: (record.started, record.trial))


def holds(families: dict[str, dict[str, Accuracy]]) -> dict[str, bool]:
    """Return whether each family's requirements hold."""
    found = {}
    for family in ("trees", "stages"):
        parts = list(families.get(family, {}).values())
        mean = mean_accuracy(parts)
        found[family] = (
            mean.num_strategies >= LEAST_STRATEGIES
            and len(parts) >= LEAST_COMBINATIONS
            and mean.median_error is not None
            and mean.median_error <= MOST_ERROR
            and mean.pair_ranking is not None
            and mean.pair_ranking >= LEAST_PAIRS
        )
    return found


def main() -> int:
    parser = parser_of(__doc__)
    parser.add_argument("--records", type=Path, default=SHIPPED, help="a store or a dataset folder")
    parser.add_argument("--least", type=int, default=20, help="strategies that a combination is judged by")
    options = parser.parse_args()
    source, unreadable = Dataset(options.records), list[object]()
    records = flag_drift(source.records(unreadable.append), keep=True)
    specs, noise = {spec.spec_id: spec for spec in source.specs()}, noise_of(records)
    families: dict[str, dict[str, Accuracy]] = defaultdict(dict)
    for (model_id, cluster_id), chosen in by_combination(records):
        if model_id not in specs or cluster_id not in specs:
            continue
        model, cluster = model_of_spec(specs[model_id]), cluster_of_spec(specs[cluster_id])
        for family, accuracy in judge(chosen, model, cluster, noise).items():
            if accuracy.num_strategies >= options.least:
                families[family][f"{model.name} on {cluster.name}"] = accuracy
                tell(f"{family}: {model.name} on {cluster.name}: {rounded(accuracy)}")
    verdicts = holds(families)
    document: dict[str, Any] = {
        "noise": round(noise, 4),
        "unreadable": len(unreadable),
        **{
            family: {
                "combinations": {name: rounded(one) for name, one in parts.items()},
                "mean": rounded(mean_accuracy(list(parts.values()))),
            }
            for family, parts in families.items()
        },
        "holds": verdicts,
    }
    return report(document, holds=all(verdicts.values()) and not unreadable)


if __name__ == "__main__":
    run(main)
