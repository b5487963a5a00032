"""Measure how far predictions are from the shipped records, for the intervals of `autosync predict`.

    python tools/measure_prediction_errors.py                 # writes datasets/prediction_errors.json
    python tools/measure_prediction_errors.py --records STORE -o FILE.json
    python tools/measure_prediction_errors.py --points FOLDER   # with the points of scaling_prediction.py, too

No simulator sees a trial first. Each model on each cluster gives its trials of stock DDP and, if it has five strategies
or more, the three that are predicted to be fastest. With `--points`, the measurements of the benchmark of scaling count
too. Prints one JSON document: the spread of errors.
"""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from autosync.datasets.dataset import SHIPPED, Dataset
from autosync.datasets.facts import Spec, cluster_of_spec, model_of_spec
from autosync.datasets.machine_drift import combination_of, flag_drift
from autosync.datasets.reliability import is_disturbed
from autosync.datasets.schema import Record
from autosync.scaling.errors import (
    ErrorGroup,
    MeasuredErrors,
    Subject,
    ends_of,
    has_equal_links,
    rounded,
    shipped_file,
    write_errors,
)
from autosync.scaling.extension import extended
from autosync.search.candidates import default_as_strategy, strategy_of
from autosync.simulators.analytical.simulator import AnalyticalSimulator
from autosync.simulators.interface import Simulator
from autosync.simulators.learned.priors import lots_of_records
from autosync.simulators.learned.rehearsal import rehearsed
from autosync.simulators.shared.costs import usual_costs
from autosync.simulators.timeline.simulator import TimelineSimulator
from autosync.specs.cluster import ClusterSpec
from autosync.specs.costs import Costs
from autosync.specs.model import ModelSpec
from autosync.strategy.representation import Strategy

sys.path.append(str(Path(__file__).parents[1]))
from benchmarks.scaling_prediction.points import PointFolder, best_at
from benchmarks.shared import parser_of, tell

NUM_FASTEST = 3
"""The number of strategies of a combination that count as predicted to be fastest."""

FEWEST_STRATEGIES = 5
"""The fewest measured strategies of a combination among which a choice by prediction says something."""

Groups = dict[tuple[str, Subject, bool], list[float]]


def main() -> int:
    """Run from the command line."""
    parser = parser_of(__doc__)
    parser.add_argument("--records", type=Path, default=SHIPPED, help="a store or a dataset folder")
    parser.add_argument("-o", "--output", type=Path, default=shipped_file())
    parser.add_argument("--points", type=Path, nargs="+", default=(), help="folders of scaling_prediction.py")
    options = parser.parse_args()
    source = Dataset(options.records)
    records = flag_drift(source.records(tell), keep=True)
    found = measure(records, source.specs(), list(map(PointFolder, options.points)))
    write_errors(options.output, found)
    print(json.dumps([_summary(group) for group in found.groups], indent=2))
    return 0


def measure(records: Sequence[Record], specs: Sequence[Spec], folders: Sequence[PointFolder] = ()) -> MeasuredErrors:
    """Return the errors of the simulators on undisturbed records and points."""
    groups: Groups = defaultdict(list)
    clusters = _stock_errors(records, specs, groups)
    for folder in folders:
        clusters += _point_errors(folder, groups)
    for lot in lots_of_records(records, specs):
        tell(f"{lot.model.name} on {lot.cluster.name}")
        strategies = [strategy_of(record) for record in lot.records]
        seconds = [record.measurement.median_seconds for record in lot.records if record.measurement is not None]
        if len(strategies) >= FEWEST_STRATEGIES:
            _add_fastest(groups, lot.model, lot.cluster, strategies, np.array(seconds))
    workers = [[node for node in cluster.nodes if node.role == "worker"] for cluster in clusters]
    rates = [rate for nodes in workers for node in nodes for rate in (node.bandwidth_out, node.bandwidth_in)]
    (backend,) = {cluster.backend for cluster in clusters}
    return MeasuredErrors(
        rehearsed=rehearsed(),
        backend=backend,
        min_nodes=min(map(len, workers)),
        max_nodes=max(map(len, workers)),
        min_rate=min(rates),
        max_rate=max(rates),
        groups=tuple(
            [
                ErrorGroup(simulator=simulator, subject=subject, equal_links=is_equal, errors=rounded(errors))
                for (simulator, subject, is_equal), errors in sorted(groups.items())
            ]
        ),
    )


def _stock_errors(records: Iterable[Record], specs: Iterable[Spec], groups: Groups) -> list[ClusterSpec]:
    """Add the errors of stock DDP; return the clusters."""
    known = {spec.spec_id: spec for spec in specs}
    clusters = {}
    for record in records:
        if record.strategy is not None or record.measurement is None or is_disturbed(record):
            continue
        model_id, cluster_id = combination_of(record)
        model, cluster = model_of_spec(known[model_id]), cluster_of_spec(known[cluster_id])
        clusters[cluster_id] = cluster
        strategy = default_as_strategy(model, cluster).strategy
        assert strategy is not None, "what stock DDP does is a strategy too"
        for simulator in _simulators(model, cluster):
            (predicted,) = simulator.predict([strategy])
            error = float(np.log(record.measurement.median_seconds / predicted.seconds))
            groups[simulator.name, "stock DDP", has_equal_links(cluster)].append(error)
    return list(clusters.values())


def _point_errors(folder: PointFolder, groups: Groups) -> list[ClusterSpec]:
    """Add the errors of the points of a folder; return their clusters."""
    clusters = []
    for target in folder.targets():
        tell(f"points of {target.name}")
        model, probed, prediction = target.load_model(), folder.probed(target.megabits), folder.prediction(target)
        assert probed is not None, "the hosts were probed before anything was predicted"
        assert prediction is not None, "targets have predictions"
        for hosts in folder.hosts(target):
            cluster, costs = extended(probed, hosts), usual_costs(probed)
            clusters.append(cluster)
            point = folder.point(target, hosts) or {}
            simulators = list(_simulators(model, cluster, costs))
            cases: list[tuple[Subject, Strategy | None, Mapping[str, Any] | None]] = [
                ("stock DDP", default_as_strategy(model, cluster).strategy, point["stock_ddp"]),
                ("fastest", best_at(prediction, hosts), point["best"]),
            ]
            for subject, strategy, measured in cases:
                for name, error in _errors(simulators, strategy, measured):
                    groups[name, subject, has_equal_links(cluster)].append(error)
    return clusters


def _errors(
    simulators: Iterable[Simulator], strategy: Strategy | None, measured: Mapping[str, Any] | None
) -> Iterator[tuple[str, float]]:
    """Yield each simulator's name and error, unless the measurement failed or was disturbed."""
    if strategy is None or measured is None or measured["flags"]:
        return
    for simulator in simulators:
        (predicted,) = simulator.predict([strategy])
        yield simulator.name, float(np.log(measured["seconds"] / predicted.seconds))


def _add_fastest(
    groups: Groups, model: ModelSpec, cluster: ClusterSpec, strategies: Sequence[Strategy], seconds: Any
) -> None:
    """Add the errors of the strategies that are predicted to be fastest."""
    for simulator in _simulators(model, cluster):
        predicted = np.array([one.seconds for one in simulator.predict(strategies)])
        chosen = np.argsort(predicted, kind="stable")[:NUM_FASTEST]
        groups[simulator.name, "fastest", has_equal_links(cluster)] += np.log(
            seconds[chosen] / predicted[chosen]
        ).tolist()


def _simulators(model: ModelSpec, cluster: ClusterSpec, costs: Costs | None = None) -> Iterator[Simulator]:
    yield TimelineSimulator(model, cluster, costs=costs)
    yield AnalyticalSimulator(model, cluster, costs=costs)


def _summary(group: ErrorGroup) -> dict[str, Any]:
    ends = ends_of(group.errors)
    return {
        "simulator": group.simulator,
        "subject": group.subject,
        "equal_links": group.equal_links,
        "num_errors": len(group.errors),
        "median_error": round(float(np.median(np.abs(np.expm1(group.errors)))), 4),
        "90 %": None if ends is None else [round(float(np.expm1(end)), 4) for end in ends],
    }


if __name__ == "__main__":
    sys.exit(main())
