"""Starts the ranks of a loop on a cluster, and hears what rank 0 reports."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from autosync.errors import OperationError
from autosync.launchers.environment import python_of
from autosync.launchers.request import TrainingScript
from autosync.launchers.script_run import ScriptRun
from autosync.loops.load import file_of
from autosync.loops.reports import ReportReader
from autosync.specs.cluster import ClusterSpec, Node

_LOOPBACK_RATE = 1.25e9


def this_machine(num_ranks: int) -> ClusterSpec:
    """Return a cluster of `num_ranks` ranks on this machine."""
    node = Node(
        name="here", host="localhost", devices=num_ranks, bandwidth_out=_LOOPBACK_RATE, bandwidth_in=_LOOPBACK_RATE
    )
    return ClusterSpec(name="this machine", nodes=(node,))


def launch_ranks(
    target: str,
    cluster: ClusterSpec,
    orders: Mapping[str, Any],
    *,
    show: Callable[[str], None],
    told: Callable[[dict[str, Any]], bool],
) -> None:
    """Run the ranks of a loop to their end. Raise OperationError if one fails.

    `told` receives the reports of rank 0, and `show` each line that the user's code prints. The last report makes
    `told` return True; without it the run has failed.
    """
    reader = ReportReader(told=told, show=show)
    words = (f"{Path(file_of(target)).resolve()}{target[len(file_of(target)) :]}", json.dumps(orders))
    script = TrainingScript(
        command=(python_of(cluster), "-P", "-m", "autosync.loops.rank_main", *words), environment={}
    )
    with tempfile.TemporaryDirectory(prefix="autosync-loop-") as logs:
        ended = ScriptRun(cluster, script, Path(logs), show=reader.take).run(started=lambda _request: None)
    if ended.code or not reader.is_done:
        raise OperationError("; ".join(ended.words) or "rank 0 told no result")
