"""Runs a loop on the ranks of a cluster, through its launcher."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

from autosync.loops.checkpoints import Checkpoints
from autosync.loops.choosing import choose
from autosync.loops.dependences import analyse
from autosync.loops.launch import launch_ranks
from autosync.loops.load import load_loop, naming, records_of
from autosync.loops.rank_program import no_schedule_error
from autosync.loops.rank_run import LoopSettings
from autosync.loops.schedules import NoSchedule, ScheduleChoice
from autosync.specs.cluster import ClusterSpec


def run_loop(
    target: str,
    cluster: ClusterSpec,
    settings: LoopSettings,
    *,
    output: Path | None = None,
    checkpoints: Checkpoints | None = None,
    force: bool = False,
    show: Callable[[str], None] = lambda _line: None,
    told: Callable[[dict[str, Any]], None] = lambda _epoch: None,
) -> dict[str, Any]:
    """Run a loop on all workers of a cluster, and return the result of rank 0.

    The loop is first analysed in this process, so that mistakes are reported before any rank starts. Rank 0 writes the
    tables to `output`. Its output and its first checkpoint replace an existing file only with `force`. `told` receives
    each epoch, and `show` each line that the user's code prints.
    """
    check_schedule(target, cluster.num_workers, settings.choice)
    found: dict[str, Any] = {}

    def take(report: dict[str, Any]) -> bool:
        if "epoch" in report:
            told(report)
            return False
        found.update(report)
        return True

    checkpoint = []
    if checkpoints is not None:
        checkpoint = [str(checkpoints.path.resolve()), checkpoints.every, checkpoints.resumes]
    orders = {
        "settings": dataclasses.asdict(settings),
        "output": "" if output is None else str(output.resolve()),
        "checkpoint": checkpoint,
        "force": force,
    }
    launch_ranks(target, cluster, orders, show=show, told=take)
    return found


def check_schedule(target: str, num_ranks: int, choice: ScheduleChoice) -> None:
    """Raise InputError unless the loop has a schedule of the chosen kind."""
    loop = load_loop(target)
    records = records_of(loop, target)
    with naming(target):
        found = choose(analyse(loop, records), records, num_ranks, choice)
        if isinstance(found, NoSchedule):
            raise no_schedule_error(loop, found, choice)
