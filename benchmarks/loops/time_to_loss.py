"""How long a compiled loop takes to the serial program's loss: on one host, in rotation, and merged through servers.

    python benchmarks/loops/time_to_loss.py > time_to_loss.json

A matrix is factorised on one emulated host and on four of them. A rank sleeps until its compute has taken a multiple of
its processor time, so that four ranks fit a few cores. Merged runs are data-parallel: users stay with their ranks, and
items go through servers on all hosts, synchronously and with staleness. They get twice the epochs. The exit code is 1
unless rotation has the loss of a serial run in its own order after each epoch within 0.5 %, is three times as fast to
one host's last loss as the best merged run, and on links of 500 Mbit/s 2.5 times as fast as one host. `most_off` is the
distance from that serial run, `off_given_order` that from one host, which takes the records in their given order.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from autosync.loops.launch import this_machine
from autosync.loops.rank_run import LoopSettings
from autosync.loops.run import run_loop
from autosync.loops.schedules import ScheduleChoice
from autosync.specs.cluster import ClusterSpec

sys.path.append(str(Path(__file__).parents[2]))
from benchmarks.clusters import emulated
from benchmarks.loops.serial import serial_losses
from benchmarks.shared import parser_of, report, run, tell

RATINGS = Path(__file__).with_name("ratings.py")
MERGED = {
    f"merged every {every} records, staleness {staleness}": ScheduleChoice(
        data_parallel=True, merge_every=every, staleness=staleness
    )
    for every in (1_000, 5_000, 20_000)
    for staleness in (0, 2)
}

REACHED = 1.005
"""A loss counts as reached up to this multiple of it."""

MOST_OFF = 0.005
LEAST_OVER_MERGED = 3.0
LEAST_OVER_ONE_HOST = 2.5
FAST_RATE = 500.0
"""The rate in Mbit/s at which four hosts are compared with one."""

Epochs = Sequence[Mapping[str, Any]]


def main() -> int:
    parser = parser_of(__doc__)
    parser.add_argument("--megabits", nargs="+", type=float, default=(FAST_RATE, 100.0), help="rates of links")
    parser.add_argument("--epochs", type=int, default=10, help="the epochs of the serial program")
    parser.add_argument("--patience", type=int, default=2, help="merged runs get so many times the epochs")
    parser.add_argument("--dilation", type=float, default=4.0, help="how many times its processor time compute takes")
    options = parser.parse_args()
    tell("one host")
    serial = epochs_of(ScheduleChoice(), this_machine(1), options.epochs, options.dilation)
    rates = [at_rate(megabits, serial, options) for megabits in options.megabits]
    document = {"dilation": options.dilation, "serial": serial, "rates": rates}
    return report(document, holds=all(all(one["holds"].values()) for one in rates))


def at_rate(megabits: float, serial: Epochs, options: argparse.Namespace) -> dict[str, Any]:
    """Return the runs on four hosts with links of a rate, compared with the serial program."""
    cluster, goal = emulated(*[megabits] * 4), serial[-1]["loss"] * REACHED
    tell(f"rotation on four hosts at {megabits:g} Mbit/s")
    rotated = epochs_of(ScheduleChoice(), cluster, options.epochs + 1, options.dilation)
    merged = {}
    for name, choice in MERGED.items():
        tell(f"{name} at {megabits:g} Mbit/s")
        merged[name] = epochs_of(choice, cluster, options.patience * options.epochs, options.dilation)
    losses = [one["loss"] for one in rotated]
    off = most_off(losses, serial_losses(RATINGS, 4, len(rotated)))
    seconds = seconds_to(rotated, goal)
    # A run that never gets there counts with the time after which it was given up.
    best_merged = min(seconds_to(one, goal) or one[-1]["seconds"] for one in merged.values())
    over_merged = None if seconds is None else best_merged / seconds
    over_one_host = None if seconds is None else serial[-1]["seconds"] / seconds
    holds = {
        "loss per epoch": off <= MOST_OFF,
        "over merged": over_merged is not None and over_merged >= LEAST_OVER_MERGED,
        "over one host": megabits < FAST_RATE or (over_one_host is not None and over_one_host >= LEAST_OVER_ONE_HOST),
    }
    return {
        "megabits": megabits,
        "most_off": off,
        "off_given_order": most_off(losses, [one["loss"] for one in serial]),
        "seconds": seconds,
        "times_as_fast_as_best_merged": over_merged,
        "reached_by": [name for name, one in merged.items() if seconds_to(one, goal) is not None],
        "times_as_fast_as_one_host": over_one_host,
        "holds": holds,
        "rotated": rotated,
        "merged": merged,
    }


def most_off(losses: Sequence[float], expected: Sequence[float]) -> float:
    """Return the largest distance of a loss from the expected one, as a share."""
    # It keeps what is no number, which `max` may not.
    return float(np.max([abs(one / other - 1) for one, other in zip(losses, expected, strict=False)]))


def epochs_of(
    choice: ScheduleChoice, cluster: ClusterSpec, num_epochs: int, dilation: float, target: Path = RATINGS
) -> list[dict[str, Any]]:
    """Return the loss and the seconds after each epoch."""
    epochs: list[dict[str, Any]] = []
    settings = LoopSettings(num_epochs=num_epochs, dilation=dilation, choice=choice)
    run_loop(str(target), cluster, settings, told=epochs.append)
    return epochs


def seconds_to(epochs: Epochs, goal: float) -> float | None:
    """Return the seconds after which a loss was reached; None if it never was."""
    return next((one["seconds"] for one in epochs if one["loss"] <= goal), None)


if __name__ == "__main__":
    run(main)
