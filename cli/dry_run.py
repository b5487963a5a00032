"""The output of `--dry-run`: the processes that would be started, and their environment without secrets."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from autosync.launchers.request import LaunchRequest
    from autosync.specs.cluster import ClusterSpec

dry_run_option = click.option("--dry-run", is_flag=True, help="Print what would be started and tried; start nothing.")


def launch_fields(cluster: ClusterSpec, request: LaunchRequest, *, token: bool = True) -> dict[str, Any]:
    """Return the launch for programs. With `token`, ranks authenticate with a random token made at their start."""
    processes = [
        {
            "rank": process.rank,
            "host": process.host,
            "command": list(process.command),
            "environment": dict(process.environment),
            "log": str(process.log),
            **({"reach": list(process.reach)} if process.reach else {}),
        }
        for process in (_with_token(request) if token else request).shown
    ]
    files = {"files": {name: str(path) for name, path in request.files.items()}} if request.files else {}
    script = {"batch_script": request.batch_script} if request.batch_script else {}
    return {"launcher": cluster.launcher, "processes": processes, **files, **script}


def describe_launch(cluster: ClusterSpec, request: LaunchRequest, *, token: bool = True) -> list[str]:
    """Return the launch for users, as one shell line for each process."""
    what = f"would be started on {cluster.name} (launcher {cluster.launcher}):"
    return [what, *(f"  {line}" for line in str(_with_token(request) if token else request).splitlines())]


def _with_token(request: LaunchRequest) -> LaunchRequest:
    from autosync.launchers.redaction import HIDDEN
    from autosync.trials.control import TOKEN_VARIABLE

    shown = (
        replace(process, environment={**process.environment, TOKEN_VARIABLE: HIDDEN}) for process in request.processes
    )
    return replace(request, processes=tuple(shown))
