"""Compares simulators with measurements; the source of the tables of docs/learned.md.

    python benchmarks/simulator_accuracy/simulator_accuracy.py > accuracy.json           # the shipped records
    python benchmarks/simulator_accuracy/simulator_accuracy.py --records FOLDER --least 40  # a dataset in progress
    python benchmarks/simulator_accuracy/simulator_accuracy.py --markdown accuracy.json  # print the tables only

Simulators are judged on combinations of model and cluster with enough randomly sampled strategies. A complete dataset
has at least six combinations with 150 each. With an incomplete one, the possible figures are reported, and the missing
parts come first (`missing`). Only pairs of distinct strategies count whose measurements differ by more than their
noise. Records that other programs or busy processors disturbed are left out. Learned simulators are always judged on
unseen strategies: after some trials of the target, on the others; with a prior, one from neither the target's model nor
its cluster. Splits are by model and by cluster, and draws of trials are the same for all simulators. No setting is
chosen by the results here: settings are in the simulators.

- *as they are*: simulators that know only the model and the cluster;
- *after trials*: after random trials of the target, mean over draws;
- *transfer*: a ranker trained on other models and other clusters, after no trials or few of the target;
- *held out*: trained on all models (clusters) but one, judged on that;
- *bounds*: whether an exact strategy without stages was measured to be faster than its bound, and how far above it the
  fastest is;
- *verdicts*: the requirements on simulators, and whether they hold.

Most of the time is for reading (every strategy is lowered and simulated once) and for training: about sixty priors, and
one sequence model for each target. Ends with 1 unless all verdicts hold.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

from autosync.datasets.dataset import SHIPPED
from autosync.errors import AutosyncError
from autosync.simulators.catalogue import open_simulator, simulator_names
from autosync.simulators.evaluation import accuracy_of, mean_accuracy

sys.path.append(str(Path(__file__).parents[2]))
from benchmarks.shared import parser_of, report, run, tell
from benchmarks.simulator_accuracy.lessons import Course, course_of, held_out
from benchmarks.simulator_accuracy.tables import tables
from benchmarks.simulator_accuracy.targets import Target, accuracy_from, material_of, rounded
from benchmarks.simulator_accuracy.verdict import missing, verdicts

_NOT_LEARNED = tuple([name for name in simulator_names() if name not in ("learned", "linear", "sequence")])


def main() -> int:
    """Run from the command line."""
    parser = parser_of(__doc__)
    parser.add_argument("--records", type=Path, default=SHIPPED, help="a store, a dataset folder or a study")
    parser.add_argument("--least", type=int, default=100, help="random strategies that a combination is judged by")
    parser.add_argument("--trials", type=int, default=50, help="trials of the target that learned simulators are told")
    parser.add_argument("--few", type=int, default=10, help="trials of the target that a transferred ranker is told")
    parser.add_argument("--draws", type=int, default=5, help="random draws of trials to average over")
    parser.add_argument("--without", nargs="*", default=(), choices=("sequence", "held_out"))
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="print the tables of this result")
    options = parser.parse_args()
    if options.markdown:
        print("\n".join(tables(json.loads(options.markdown.read_text(encoding="utf-8")))))
        return 0
    try:
        document = measure(options)
    except AutosyncError as error:
        tell(f"error: {error}")
        return 1
    return report(document, holds=all(one["holds"] for one in document["verdicts"]))


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Return everything as one document."""
    clock = Clock()
    material = material_of(options.records, least=options.least)
    lots = material.lots
    num_records = sum(len(lot.records) for lot in lots)
    tell(f"{num_records} records of {len(lots)} combinations, {len(material.targets)} to be judged by")
    document: dict[str, Any] = {
        "records": num_records,
        "combinations": len(lots),
        "models": sorted({lot.model_name for lot in lots}),
        "clusters": sorted({lot.cluster.name for lot in lots}),
        "noise": round(material.noise, 4),
        "trials": options.trials,
        "few": options.few,
        "draws": options.draws,
        "missing": list(missing(material, options.trials)),
        "random_strategies": material.counts,
    }
    for what in document["missing"]:
        tell(f"missing: {what}")
    document["bounds"] = [bound for aside in material.asides if (bound := aside.bound()) is not None]
    clock.took("bounds")
    course = course_of(lots, material.targets, with_sequence="sequence" not in options.without, tell=tell)
    clock.took("reading")
    document["targets"] = [judged(target, course, options) for target in material.targets]
    document["total"] = total(document["targets"])
    clock.took("targets")
    if "held_out" not in options.without:
        for by in ("model", "cluster"):
            document[f"{by}_held_out"] = held_out(course, by)
        clock.took("held out")
    document["verdicts"] = verdicts(document)
    document["seconds"] = clock.seconds
    return document


class Clock:
    """Measures how long each part took."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._since = time.monotonic()

    def took(self, part: str) -> None:
        """Record the time of the part that has just ended."""
        now = time.monotonic()
        self.seconds[part] = round(now - self._since, 1)
        self._since = now
        tell(f"{part}: {self.seconds[part]} s")


def judged(target: Target, course: Course, options: argparse.Namespace) -> dict[str, Any]:
    """Return the figures of one combination of model and cluster."""
    tell(f"{target.name}: {len(target.records)} strategies")
    document: dict[str, Any] = {
        "model": target.lot.model.name,
        "cluster": target.lot.cluster.name,
        "strategies": len(target.records),
        "as they are": {},
        "after trials": {},
    }
    for name in _NOT_LEARNED:
        simulator = open_simulator(name, target.lot.model, target.lot.cluster)
        document["as they are"][name] = rounded(accuracy_of(target.measured, target.predicted(simulator)))
        document["after trials"][name] = rounded(
            target.after_trials(simulator, trials=options.trials, draws=options.draws)
        )
    lessons = course.lessons(target, trials=options.trials, few=options.few, draws=options.draws)
    document["after trials"] |= {name: rounded(found) for name, found in lessons.after_trials().items()}
    document["transfer"] = {name: rounded(found) for name, found in lessons.transfer().items()}
    for part in ("as they are", "after trials", "transfer"):
        tell(f"  {part}: " + ", ".join(f"{name} {one['pair_ranking']}" for name, one in document[part].items()))
    return document


def total(targets: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the means over combinations with equal weight."""
    document: dict[str, Any] = {}
    for part in ("as they are", "after trials", "transfer"):
        names = dict.fromkeys(name for one in targets for name in one[part])
        document[part] = {
            name: rounded(mean_accuracy([accuracy_from(one[part][name]) for one in targets if name in one[part]]))
            for name in names
        }
    return document


if __name__ == "__main__":
    run(main)
