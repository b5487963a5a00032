"""How many ratings a second one rank of a compiled loop takes, beside LIBMF on the same ratings and one thread.

    python -m pip install --constraint constraints.txt --no-build-isolation '.[rivals]'
    python benchmarks/loops/throughput.py > throughput.json

Both factorise the ratings of ratings.py with factors of the same width, in turn: ours in double precision as the file
has it, LIBMF in single. LIBMF's time is that of many epochs without that of one, so that its preparations do not
count; ours counts the epochs of a run after the first. The exit code is 1 if one rank takes more than 1.5 times as long
as LIBMF.
"""

from __future__ import annotations

import contextlib
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from autosync.errors import OperationError
from autosync.loops.launch import this_machine
from autosync.loops.load import load_loop, records_of
from autosync.loops.schedules import ScheduleChoice

sys.path.append(str(Path(__file__).parents[2]))
from benchmarks.loops.time_to_loss import RATINGS, epochs_of
from benchmarks.shared import parser_of, report, run, tell

MOST_RATIO = 1.5


def main() -> int:
    parser = parser_of(__doc__)
    parser.add_argument("--rounds", type=int, default=7, help="how often both are measured")
    parser.add_argument("--epochs", type=int, default=20)
    options = parser.parse_args()
    loop = load_loop(f"{RATINGS}:step")
    ratings, width = records_of(loop, str(RATINGS)), loop.tables["users"].shape[1]
    ours, theirs = [], []
    for number in range(options.rounds):
        tell(f"round {number + 1} of {options.rounds}")
        epochs = epochs_of(ScheduleChoice(), this_machine(1), options.epochs + 1, 1.0)
        # The first epoch may wait for the compiler.
        ours.append((epochs[-1]["seconds"] - epochs[0]["seconds"]) / options.epochs)
        few, many = (libmf_seconds(ratings, width, count) for count in (1, options.epochs + 1))
        theirs.append((many - few) / options.epochs)
    ratios = [one / other for one, other in zip(ours, theirs, strict=True)]
    document = {
        "num_ratings": len(ratings),
        "width": width,
        "ratings_a_second": {
            name: len(ratings) / statistics.median(one) for name, one in (("ours", ours), ("libmf", theirs))
        },
        "median_ratio": statistics.median(ratios),
        "ratios": ratios,
    }
    return report(document, holds=document["median_ratio"] <= MOST_RATIO)


def libmf_seconds(ratings: Any, width: int, num_epochs: int) -> float:
    """Return the seconds that LIBMF takes for some epochs on one thread, with its preparations."""
    try:
        # It tells where its library is.
        with contextlib.redirect_stdout(sys.stderr):
            from libmf import mf
    except ImportError:
        raise OperationError("LIBMF is not installed (python -m pip install '.[rivals]')") from None
    triples = np.stack([ratings["user"], ratings["item"], ratings["stars"]], axis=1).astype(np.float32)
    engine = mf.MF(k=width, nr_iters=num_epochs, nr_threads=1, quiet=True)
    began = time.perf_counter()
    engine.fit(triples)
    return time.perf_counter() - began


if __name__ == "__main__":
    run(main)
