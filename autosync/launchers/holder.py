"""The launching side of a holder: a process that holds machines by a library's means and carries lines to them."""

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
from autosync.launchers import minded, relay
from autosync.launchers.keeper import Keeper
from autosync.launchers.minded import MindedProcesses
from autosync.launchers.request import LaunchRequest, Process
from autosync.specs.cluster import ClusterSpec

_LOG = logging.getLogger(__name__)


class Holder:
    """Machines that are ours until this is closed, or this process ends.

    `module` is the holder's own side, run as a program; `request` is what it is asked to hold; `package` is what it
    imports, by the name that it has among the extras too.
    """

    def __init__(self, module: str, request: Mapping[str, Any], *, package: str) -> None:
        if importlib.util.find_spec(package) is None:
            raise OperationError(
                f"the package {package} is not installed here: the {package} launcher takes it:"
                f" pip install 'autosync-torch[{package}]'"
            )
        self._package = package
        self._folder = tempfile.mkdtemp(prefix="autosync-")
        self._keeper = Keeper((sys.executable, "-P", "-m", module))
        try:
            self._socket, self.addresses = self._await_machines({**request, "folder": self._folder})
        except BaseException:
            self.close()
            raise

    def reach(self, position: int) -> tuple[str, ...]:
        """The command that leads to the node at that position."""
        return (sys.executable, "-I", "-S", str(Path(relay.__file__)), self._socket, str(position))

    def _await_machines(self, request: Mapping[str, Any]) -> tuple[str, dict[str, str]]:
        """Wait until the machines are there: as long as that takes."""
        with contextlib.suppress(OSError):
            self._keeper.stdin.write(json.dumps(request).encode() + b"\n")
            self._keeper.stdin.flush()
        for line in self._keeper.stdout:
            told = json.loads(line)
            if "error" in told:
                raise OperationError(told["error"])
            if "note" in told:
                _LOG.warning("%s", told["note"])
            else:
                return told["socket"], told["addresses"]
        # What the library says is only of interest where the holder ends by it.
        raise OperationError(f"the {self._package} launcher's holder has ended: {self._keeper.last_words()[-1]}")

    def close(self) -> None:
        """Give the machines back."""
        try:
            self._keeper.close()
        finally:
            shutil.rmtree(self._folder, ignore_errors=True)


def start_held(
    request: LaunchRequest,
    cluster: ClusterSpec,
    held: AbstractContextManager[Holder],
    explain: Callable[[Process, str], str],
) -> MindedProcesses:
    """Start a launch on machines that a holder has, which it keeps until the launch is stopped."""
    with ExitStack() as stack:
        holder = stack.enter_context(held)
        processes = tuple(
            replace(process, host=holder.addresses[process.node], reach=holder.reach(cluster.node_index(process.node)))
            for process in request.processes
        )
        # From here on stopping the launch, which a start that fails does too, gives the machines back.
        then = stack.pop_all().close
    return minded.start(replace(request, processes=processes), explain=explain, then=then)
