"""Measures how long a compiled loop takes to reach the serial program's loss after ten epochs: in rotation, and merged.

It runs on four emulated hosts at a given rate, and on one host. A rank sleeps until its compute has taken a multiple of
its processor time, so that four ranks fit a few cores. Merged runs are data-parallel: users stay with their ranks, and
items go through servers on all hosts, synchronously and with staleness.

    .venv/bin/python benchmarks/loops/time_to_loss.py --rate "500 Mbit/s" -o time_to_loss.json
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path
from typing import Any

from autosync import jsonio, units
from autosync.loops.launch import this_machine
from autosync.loops.rank_run import LoopSettings
from autosync.loops.run import run_loop
from autosync.loops.schedules import ScheduleChoice
from autosync.specs.cluster import ClusterSpec
from autosync.specs.cluster_file import load_cluster

RATINGS = Path(__file__).with_name("ratings.py")
ROTATED = "rotated"
CONTESTANTS = {
    ROTATED: ScheduleChoice(),
    **{
        f"merged every {every} records, staleness {staleness}": ScheduleChoice(
            data_parallel=True, merge_every=every, staleness=staleness
        )
        for every in (1_000, 5_000, 20_000)
        for staleness in (0, 2)
    },
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rate", default="500 Mbit/s", help="the rate of each host's link")
    parser.add_argument("--epochs", type=int, default=10, help="the epochs of the serial program")
    parser.add_argument("--patience", type=int, default=2, help="merged runs get so many times the epochs")
    parser.add_argument("--dilation", type=float, default=100.0)
    parser.add_argument("-o", "--output", type=Path)
    arguments = parser.parse_args()

    serial = epochs_of(ROTATED, this_machine(1), arguments.epochs, arguments.dilation)
    goal, serial_seconds = serial[-1]["loss"], serial[-1]["seconds"]
    print(f"one host: loss {goal:.4f} after {arguments.epochs} epochs and {serial_seconds:.2f} s")
    results: dict[str, Any] = {"rate": arguments.rate, "dilation": arguments.dilation, "serial": serial}
    cluster = hosts_at(units.parse_rate(arguments.rate))
    for name in CONTESTANTS:
        num_epochs = arguments.epochs + 1 if name == ROTATED else arguments.patience * arguments.epochs
        epochs = epochs_of(name, cluster, num_epochs, arguments.dilation)
        results[name] = epochs
        print(f"{name} on four hosts: {in_words(epochs, goal, serial_seconds)}")
    off = max(abs(one["loss"] / other["loss"] - 1) for one, other in zip(serial, results[ROTATED], strict=False))
    print(f"loss per epoch in rotation: within {off:.3%} of the serial program's")
    if arguments.output is not None:
        jsonio.write_json(arguments.output, results)


def hosts_at(rate: float) -> ClusterSpec:
    """Return a cluster of four testbed hosts with links of this rate."""
    cluster = load_cluster("4-hosts")
    nodes = tuple(replace(node, bandwidth_out=rate, bandwidth_in=rate) for node in cluster.nodes)
    return replace(cluster, nodes=nodes)


def epochs_of(name: str, cluster: ClusterSpec, num_epochs: int, dilation: float) -> list[dict[str, Any]]:
    """The loss and the seconds after each epoch."""
    epochs: list[dict[str, Any]] = []
    settings = LoopSettings(num_epochs=num_epochs, dilation=dilation, choice=CONTESTANTS[name])
    run_loop(str(RATINGS), cluster, settings, told=epochs.append)
    return epochs


def in_words(epochs: list[dict[str, Any]], goal: float, serial_seconds: float) -> str:
    """When the goal was reached, or how far the last epoch was from it. Less than 0.5 % above it counts."""
    reached = next((one for one in epochs if one["loss"] <= goal * 1.005), None)
    if reached is None:
        last = epochs[-1]
        return f"not reached in {len(epochs)} epochs and {last['seconds']:.2f} s (loss {last['loss']:.4f})"
    ratio = serial_seconds / reached["seconds"]
    return (
        f"reached in epoch {reached['epoch']} after {reached['seconds']:.2f} s, {ratio:.2f} times as fast as one host"
    )


if __name__ == "__main__":
    main()
