"""Train the ranker that ships, or one of your own, from a dataset.

    python tools/train_ranker.py                             # writes datasets/ranker
    python tools/train_ranker.py --records STORE -o FOLDER   # then: --prior FOLDER
    python tools/train_ranker.py --what linear -o FOLDER     # a baseline

Prints one JSON document: the manifest of what was written. Its accuracy is that on models which training did not see,
each of them held out in turn. The same records give the same ranker.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from autosync.datasets.dataset import SHIPPED
from autosync.errors import AutosyncError
from autosync.simulators.evaluation import Measured, accuracy_of, mean_accuracy
from autosync.simulators.learned import linear, sequence
from autosync.simulators.learned.files import MANIFEST_FILE
from autosync.simulators.learned.priors import Enrol, Lot, groups_of, lots_of, trained_on
from autosync.simulators.learned.ranker import save_ranker
from autosync.simulators.learned.simulators import PASSES, ranker_of

sys.path.append(str(Path(__file__).parents[1]))
from benchmarks.shared import parser_of, tell


def main() -> int:
    """Run from the command line."""
    parser = parser_of(__doc__)
    parser.add_argument("--records", type=Path, default=SHIPPED, help="a store or a dataset folder")
    parser.add_argument("--what", choices=("learned", "linear", "sequence"), default="learned")
    parser.add_argument("-o", "--output", type=Path, default=SHIPPED.parent / "ranker")
    options = parser.parse_args()
    try:
        lots = lots_of(options.records)
        tell(f"{sum(len(lot.records) for lot in lots)} records of {len(lots)} combinations")
        train(options.what, lots, options.output)
    except AutosyncError as error:
        tell(f"error: {error}")
        return 1
    print(json.dumps(json.loads((options.output / MANIFEST_FILE).read_text(encoding="utf-8")), indent=2))
    return 0


def train(what: str, lots: Sequence[Lot], output: Path) -> None:
    """Train on all lots and write it down."""
    about = trained_on(lots)
    if what == "learned":
        ranker, lesson = ranker_of(lots)
        tell("trained; holding out each model in turn")
        save_ranker(output, ranker, trained_on=about, accuracy=lesson.held_out())
    elif what == "linear":
        line, accuracy = _baseline(lots, linear.LinearStudent, linear.line_of)
        linear.save_line(output, line, trained_on=about, accuracy=accuracy)
    else:
        network, accuracy = _baseline(
            lots, sequence.SequenceStudent, lambda groups: sequence.train(groups, passes=PASSES)
        )
        sequence.save_sequencer(output, network, trained_on=about, accuracy=accuracy)


def _baseline(lots: Sequence[Lot], enrol: Enrol[Any], fit: Any) -> tuple[Any, Mapping[str, float]]:
    groups = list(groups_of(lots, enrol))
    found = []
    for model in dict.fromkeys(group.model for group in groups):
        taught = fit([group for group in groups if group.model != model])
        for group in groups:
            if group.model == model:
                targets = group.targets
                measured = Measured(*map(np.exp, (targets.log_seconds, targets.log_low, targets.log_high)))
                found.append(accuracy_of(measured, np.exp(taught.predict(group.rows)[0])))
    mean = mean_accuracy(found)
    names = ("pair_ranking", "kendall_tau", "median_error", "p90_error", "top_regret", "top5_regret")
    return fit(groups), {name: round(value, 4) for name in names if (value := getattr(mean, name)) is not None}


if __name__ == "__main__":
    sys.exit(main())
