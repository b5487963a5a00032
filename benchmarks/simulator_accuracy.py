"""How good simulators are, held against what was measured; what the tables of docs/learned.md are made of.

    python benchmarks/simulator_accuracy.py > accuracy.json                     # the records that ship
    python benchmarks/simulator_accuracy.py --records FOLDER --least 40         # another store or dataset
    python benchmarks/simulator_accuracy.py --markdown accuracy.json            # the tables, nothing is computed

Judged are combinations of model and cluster with enough randomly sampled strategies. Only pairs count whose
measurements are apart by more than their noise, of distinct strategies; records that other programs or busy processors
disturbed are judged apart. What is learned is always judged on strategies that it has not seen: after so many trials
of the target, on the others; with a prior, one that saw neither the target's model nor its cluster. Splits are by model
and by cluster, and draws of trials are the same for all. Nothing is chosen by what is reported here: settings stand in
the simulators.

- *as they are*: simulators that were told nothing but model and cluster;
- *after trials*: told so many random trials of the target, mean over draws;
- *transfer*: a ranker trained on other models and other clusters, told none, or few, trials of the target;
- *matrices*: trained on one model (one cluster), judged on another; and on all but one, judged on that;
- *ablations*: without some of the features, without knowing ties;
- *bound*: whether an exact strategy was measured to be faster than its bound, and how far above it the fastest is.

Ends with 1 where a measured exact strategy is faster than its bound.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

from autosync.datasets.sources import SHIPPED
from autosync.errors import AutosyncError
from autosync.simulators.catalogue import open_simulator, simulator_names
from autosync.simulators.evaluation import accuracy_of, mean_accuracy

sys.path.insert(0, str(Path(__file__).parent))
from accuracy_lessons import Course, course_of, held_out, transfer_matrix
from accuracy_tables import tables
from accuracy_targets import Target, accuracy_from, rounded, targets_of_lots

LEARNED = ("learned", "linear", "sequence")


def main() -> int:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=Path, default=SHIPPED, help="a store, a dataset folder or a study")
    parser.add_argument("--least", type=int, default=150, help="sampled strategies that a combination is judged by")
    parser.add_argument("--trials", type=int, default=50, help="trials of the target that learned simulators are told")
    parser.add_argument("--few", type=int, default=10, help="trials of the target that a transferred ranker is told")
    parser.add_argument("--draws", type=int, default=5, help="random draws of trials to average over")
    parser.add_argument("--without", nargs="*", default=(), choices=("sequence", "matrices", "ablations"))
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="print the tables of this result")
    options = parser.parse_args()
    if options.markdown:
        print("\n".join(tables(json.loads(options.markdown.read_text(encoding="utf-8")))))
        return 0
    try:
        document = measure(options)
    except AutosyncError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(json.dumps(document, indent=2))
    return 1 if any(target["bound"]["num_faster"] for target in document["targets"]) else 0


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """All as one document."""
    began = time.monotonic()
    lots, targets, noise = targets_of_lots(options.records, least=options.least)
    tell(f"{sum(len(lot.records) for lot in lots)} records of {len(lots)} combinations, {len(targets)} to be judged by")
    course = course_of(lots, targets, with_sequence="sequence" not in options.without, tell=tell)
    found = [judged(target, course, options) for target in targets]
    document: dict[str, Any] = {
        "records": sum(len(lot.records) for lot in lots),
        "combinations": len(lots),
        "models": sorted({lot.model_name for lot in lots}),
        "clusters": sorted({lot.cluster.name for lot in lots}),
        "noise": round(noise, 4),
        "trials": options.trials,
        "few": options.few,
        "draws": options.draws,
        "targets": found,
        "total": total(found),
    }
    if "matrices" not in options.without:
        for by in ("model", "cluster"):
            tell(f"matrix {by} x {by}")
            document[f"{by}_matrix"] = transfer_matrix(course, by)
            document[f"{by}_held_out"] = held_out(course, by)
    document["seconds"] = round(time.monotonic() - began, 1)
    return document


def judged(target: Target, course: Course, options: argparse.Namespace) -> dict[str, Any]:
    """One combination of model and cluster."""
    tell(f"{target.name}: {len(target.records)} strategies")
    document: dict[str, Any] = {
        "model": target.lot.model.name,
        "cluster": target.lot.cluster.name,
        "strategies": len(target.records),
        "bound": target.bound(),
        "as they are": {},
        "disturbed": {},
    }
    for name in simulator_names():
        if name in LEARNED:
            continue
        simulator = open_simulator(name, target.lot.model, target.lot.cluster)
        predicted = target.predicted(simulator)
        document["as they are"][name] = rounded(accuracy_of(target.measured, predicted))
        if target.disturbed:
            document["disturbed"][name] = rounded(target.accuracy_on_disturbed(simulator))
        document.setdefault("after trials", {})[name] = rounded(
            target.after_trials(simulator, trials=options.trials, draws=options.draws)
        )
    lessons = course.lessons(target, trials=options.trials, few=options.few, draws=options.draws)
    document["after trials"] |= {name: rounded(found) for name, found in lessons.after_trials().items()}
    document["transfer"] = {name: rounded(found) for name, found in lessons.transfer().items()}
    document["learn_seconds"] = round(lessons.learn_seconds(), 3)
    if "ablations" not in options.without:
        document["ablations"] = {name: rounded(found) for name, found in lessons.ablations().items()}
    return document


def total(found: list[dict[str, Any]]) -> dict[str, Any]:
    """Means over combinations, each of which counts the same."""
    document: dict[str, Any] = {}
    for part in ("as they are", "disturbed", "after trials", "transfer", "ablations"):
        names = dict.fromkeys(name for target in found for name in target.get(part, {}))
        document[part] = {
            name: rounded(
                mean_accuracy([accuracy_from(target[part][name]) for target in found if name in target.get(part, {})])
            )
            for name in names
        }
    return document


def tell(text: str) -> None:
    """Progress, on stderr."""
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
