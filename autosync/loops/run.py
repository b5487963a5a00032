"""Runs a loop on the ranks of a cluster, through its launcher."""

from __future__ import annotations

import dataclasses
import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from autosync.errors import OperationError
from autosync.launchers.environment import python_of
from autosync.launchers.request import TrainingScript
from autosync.launchers.script_run import ScriptRun
from autosync.loops.choosing import choose
from autosync.loops.dependences import analyse
from autosync.loops.load import file_of, load_loop, naming, records_of
from autosync.loops.rank_main import MARK
from autosync.loops.rank_program import LoopSettings, no_schedule_error
from autosync.loops.schedules import NoSchedule
from autosync.specs.cluster import ClusterSpec, Node

_LOOPBACK_RATE = 1.25e9


def this_machine(num_ranks: int) -> ClusterSpec:
    """Return a cluster of `num_ranks` ranks on this machine."""
    node = Node(
        name="here", host="localhost", devices=num_ranks, bandwidth_out=_LOOPBACK_RATE, bandwidth_in=_LOOPBACK_RATE
    )
    return ClusterSpec(name="this machine", nodes=(node,))


def run_loop(
    target: str,
    cluster: ClusterSpec,
    settings: LoopSettings,
    *,
    output: Path | None = None,
    show: Callable[[str], None] = lambda _line: None,
    told: Callable[[dict[str, Any]], None] = lambda _epoch: None,
) -> dict[str, Any]:
    """Run a loop on all workers of a cluster, and return the result of rank 0.

    The loop is first analysed in this process, so that mistakes are reported before any rank starts. Rank 0 writes the
    tables to `output`. `told` receives each epoch, and `show` each line that the user's code prints.
    """
    _check(target, cluster.num_workers)
    found: dict[str, Any] = {}

    def take(line: str) -> None:
        _, mark, text = line.partition(MARK)
        if not mark:
            # Errors are reported at the end, with the rank.
            if not line.partition(" | ")[2].startswith("error: "):
                show(line)
        elif "epoch" in (value := json.loads(text)):
            told(value)
        else:
            found.update(value)

    words = (
        f"{Path(file_of(target)).resolve()}{target[len(file_of(target)) :]}",
        json.dumps(dataclasses.asdict(settings)),
        "" if output is None else str(output.resolve()),
    )
    script = TrainingScript(
        command=(python_of(cluster), "-P", "-m", "autosync.loops.rank_main", *words), environment={}
    )
    with tempfile.TemporaryDirectory(prefix="autosync-loop-") as logs:
        ended = ScriptRun(cluster, script, Path(logs), show=take).run(started=lambda _request: None)
    if ended.code or not found:
        raise OperationError("; ".join(ended.words) or "rank 0 told no result")
    return found


def _check(target: str, num_ranks: int) -> None:
    loop = load_loop(target)
    records = records_of(loop, target)
    with naming(target):
        found = choose(analyse(loop, records), records, num_ranks)
        if isinstance(found, NoSchedule):
            raise no_schedule_error(loop, found)
