"""How loops with inexact tables scale: topics of documents and logistic regression on one, two and four hosts.

    python benchmarks/loops/hosts.py > hosts.json

Each example runs on emulated hosts with links of one rate. A rank sleeps until its compute has taken a multiple of its
processor time, so that four ranks fit a few cores. The exit code is 1 unless the likelihood after each epoch is within
1 % of that of a serial run over the same records in the same order: by time step or merge, then by rank. (The orders
of serial runs matter more: random ones differ by 3 % in topics and by 10 % in logistic regression.)
"""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from autosync.loops.schedules import ScheduleChoice

sys.path.append(str(Path(__file__).parents[2]))
from benchmarks.clusters import emulated
from benchmarks.loops.serial import serial_losses
from benchmarks.loops.time_to_loss import epochs_of
from benchmarks.shared import parser_of, report, run, tell

EXAMPLES = Path(__file__).parents[2] / "examples" / "loops"
MOST_OFF = 0.01


def main() -> int:
    parser = parser_of(__doc__)
    parser.add_argument("--megabits", type=float, default=500.0, help="the rate of links")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--dilation", type=float, default=4.0, help="how many times its processor time compute takes")
    options = parser.parse_args()
    found = {}
    for name in ("topics", "logistic_regression"):
        runs = {}
        for count in (1, 2, 4):
            tell(f"{name}, hosts: {count}")
            cluster, target = emulated(*[options.megabits] * count), EXAMPLES / f"{name}.py"
            epochs = epochs_of(ScheduleChoice(), cluster, options.epochs, options.dilation, target)
            runs[count] = {"epochs": epochs, "serial_losses": serial_losses(target, count, options.epochs)}
        found[name] = compared(name, runs)
    document = {"megabits": options.megabits, "dilation": options.dilation, "loops": found}
    return report(document, holds=all(one["most_off"] <= MOST_OFF for one in found.values()))


def compared(name: str, runs: Mapping[int, Mapping[str, Any]]) -> dict[str, Any]:
    """Return how far likelihoods are from the serial run's, and how many times as fast as on one host epochs are."""
    off = {}
    for count, one in runs.items():
        pairs = zip(one["epochs"], one["serial_losses"], strict=True)
        shares = [likelihood(name, epoch["loss"]) / likelihood(name, loss) - 1 for epoch, loss in pairs]
        # It keeps what is no number, which `max` may not.
        off[count] = float(np.abs(shares).max())
    seconds = {count: one["epochs"][-1]["seconds"] for count, one in runs.items()}
    speedups = {count: seconds[1] / one for count, one in seconds.items()}
    return {"off": off, "most_off": float(np.max(list(off.values()))), "speedups": speedups, "runs": runs}


def likelihood(name: str, loss: float) -> float:
    """Return the mean log-likelihood of a loss. That of topics is a perplexity, its exponential."""
    return -math.log(loss) if name == "topics" else -loss


if __name__ == "__main__":
    run(main)
