"""Finds the processes in a testbed's hosts by their network namespace, and ends them through process descriptors."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from autosync.errors import OperationError

NamespaceId = tuple[int, int]

ASK_SECONDS = 2.0
KILL_SECONDS = 10.0
_POLL_SECONDS = 0.01


@dataclass(frozen=True, slots=True, kw_only=True)
class Running:
    """A process in a host."""

    pid: int
    command: str


def namespace_id(path: Path) -> NamespaceId | None:
    """Return the identity of a namespace, or None if the file does not exist."""
    try:
        facts = path.stat()
    except OSError:
        return None
    return facts.st_dev, facts.st_ino


def start_time(pid: int) -> str | None:
    """Return the start time of a process, which together with the pid identifies it; None if it has ended."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    # The name in parentheses may hold any characters. The fields after it have no spaces.
    fields = text.rpartition(")")[2].split()
    return None if fields[0] in "ZX" else fields[19]


def command_line(pid: int) -> list[str]:
    """Return the command line of a process; empty if the process has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").rstrip("\0").split("\0")
    except OSError:
        return []


def all_pids() -> Iterator[int]:
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            yield int(entry.name)


def running_in(namespaces: Mapping[NamespaceId, str]) -> dict[str, list[Running]]:
    """Return the processes in each of these namespaces, by the name given for the namespace."""
    found: dict[str, list[Running]] = {name: [] for name in namespaces.values()}
    for pid in all_pids():
        name = namespaces.get(namespace_id(Path(f"/proc/{pid}/ns/net")) or (-1, -1))
        if name is not None:
            found[name].append(Running(pid=pid, command=" ".join(command_line(pid))))
    return found


def end_all(namespaces: Collection[NamespaceId]) -> None:
    """End every process in these namespaces: ask them to end, then kill them, and wait until none is left."""
    wanted = set(namespaces)
    start = time.monotonic()
    asked: set[int] = set()
    while pids := [pid for pid in all_pids() if namespace_id(Path(f"/proc/{pid}/ns/net")) in wanted]:
        waited = time.monotonic() - start
        if waited > KILL_SECONDS:
            raise OperationError(f"processes {', '.join(map(str, pids))} in the testbed do not end")
        for pid in pids:
            # The next turn of the loop finds processes that were forked meanwhile.
            if waited > ASK_SECONDS:
                _signal(pid, signal.SIGKILL, wanted)
            elif pid not in asked:
                asked.add(pid)
                _signal(pid, signal.SIGTERM, wanted)
        time.sleep(_POLL_SECONDS)


def _signal(pid: int, number: signal.Signals, namespaces: set[NamespaceId]) -> None:
    """Send a signal through a descriptor, after checking the namespace again: the pid may have a new process by now."""
    with contextlib.suppress(ProcessLookupError):
        descriptor = os.pidfd_open(pid)
        try:
            if namespace_id(Path(f"/proc/{pid}/ns/net")) in namespaces:
                signal.pidfd_send_signal(descriptor, number)
                # A stopped process receives no signal until it is continued.
                signal.pidfd_send_signal(descriptor, signal.SIGCONT)
        finally:
            os.close(descriptor)
