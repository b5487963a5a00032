"""An allocation as the launching side sees it: machines that an allocation holder acquired through a library."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import logging
import shutil
import sys
import tempfile
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

from autosync.errors import OperationError
from autosync.launchers import agent_launch, holder_relay
from autosync.launchers.agent_launch import AgentLaunch
from autosync.launchers.allocation_process import AllocationProcess
from autosync.launchers.request import LaunchRequest, Process
from autosync.specs.cluster import ClusterSpec

_LOG = logging.getLogger(__name__)


class Allocation:
    """Machines that this process keeps until it closes the allocation or ends.

    `module` is the allocation holder, which runs as a program; `request` says what the holder acquires; `package` is
    the library that it imports, and also the name of autosync's extra.
    """

    def __init__(self, module: str, request: Mapping[str, Any], *, package: str) -> None:
        if importlib.util.find_spec(package) is None:
            raise OperationError(
                f"the package {package} is not installed here: the {package} launcher takes it:"
                f" pip install 'autosync-torch[{package}]'"
            )
        self._package = package
        self._folder = tempfile.mkdtemp(prefix="autosync-")
        self._process = AllocationProcess((sys.executable, "-P", "-m", module))
        try:
            self._socket, self.addresses = self._await_machines({**request, "folder": self._folder})
        except BaseException:
            self.close()
            raise

    def reach(self, position: int) -> tuple[str, ...]:
        """Return the command that reaches the node at that position."""
        return (sys.executable, "-I", "-S", str(Path(holder_relay.__file__)), self._socket, str(position))

    def _await_machines(self, request: Mapping[str, Any]) -> tuple[str, dict[str, str]]:
        """Wait without a time limit until the machines are ready; return the holder's socket and the addresses."""
        with contextlib.suppress(OSError):
            self._process.stdin.write(json.dumps(request).encode() + b"\n")
            self._process.stdin.flush()
        for line in self._process.stdout:
            told = json.loads(line)
            if "error" in told:
                raise OperationError(told["error"])
            if "note" in told:
                _LOG.warning("%s", told["note"])
            else:
                return told["socket"], told["addresses"]
        # The library's output matters only if the holder has ended.
        raise OperationError(f"the {self._package} launcher's holder has ended: {self._process.last_words()[-1]}")

    def close(self) -> None:
        """Give the machines back."""
        try:
            self._process.close()
        finally:
            shutil.rmtree(self._folder, ignore_errors=True)


def start_held(
    request: LaunchRequest,
    cluster: ClusterSpec,
    held: AbstractContextManager[Allocation],
    explain: Callable[[Process, str], str],
) -> AgentLaunch:
    """Start a launch on an allocation; the allocation is held until the launch is stopped."""
    with ExitStack() as stack:
        holder = stack.enter_context(held)
        processes = tuple(
            replace(process, host=holder.addresses[process.node], reach=holder.reach(cluster.node_index(process.node)))
            for process in request.processes
        )
        # From here on, stopping the launch gives the machines back. A failed start stops it too.
        then = stack.pop_all().close
    return agent_launch.start(replace(request, processes=processes), explain=explain, then=then)
