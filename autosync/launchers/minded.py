"""Processes that minders start and end: on this machine, or on others through the command that reaches each.

There is one minder a machine and one line to it. What comes over a line is put where the launch's other readers look:
output into logs, exits into codes, control connections to the gate. A line that breaks takes its ranks with it; then
they count as lost, and the node is named.
"""

from __future__ import annotations

import contextlib
import functools
import json
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from autosync.disks import naming
from autosync.errors import OperationError
from autosync.launchers import line as lines
from autosync.launchers import minder
from autosync.launchers.address import KNOCK, connection_to
from autosync.launchers.line import Line
from autosync.launchers.request import LOST, LaunchRequest, Process
from autosync.launchers.words import name_of

STOP_SECONDS = 5.0
"""How long ranks may take to end once they are asked to."""

_SETTLE_SECONDS = 8.0
_STARTED = 1
"""The number of the ping that asks whether all was started."""


def start(
    request: LaunchRequest,
    *,
    explain: Callable[[Process, str], str] = lambda _process, said: " ".join(said.split()),
    then: Callable[[], None] = lambda: None,
) -> MindedProcesses:
    """Start all processes of a request; if one cannot be started, none is left.

    `explain` puts into words why a process's machine could not be reached, from what the command that failed said.
    `then` is called when the launch is stopped.
    """
    launch = MindedProcesses(request, explain, then)
    try:
        launch.start()
    except BaseException as error:
        launch.stop()
        if isinstance(error, FileNotFoundError):
            raise OperationError(f"{error.filename} is not installed here: the launcher takes it") from error
        if isinstance(error, OSError):
            raise OperationError(f"a rank could not be started: {error}") from error
        raise
    return launch


class MindedProcesses:
    """A launch with a minder on each machine; see `request.MindedLaunch`."""

    def __init__(
        self, request: LaunchRequest, explain: Callable[[Process, str], str], then: Callable[[], None]
    ) -> None:
        self._request = request
        self._explain = explain
        self._then = then
        self._lock = threading.Lock()
        self._codes: list[int | None] = [None] * len(request.processes)
        self._lost: dict[int, str] = {}
        self._ended: list[int] = []
        self._faults: dict[int, str] = {}
        self._lines: dict[tuple[str, ...], Line] = {}
        self._gates: dict[int, socket.socket] = {}
        self._answered = threading.Semaphore(0)
        self._is_stopping = False

    def start(self) -> None:
        """Reach all machines at once, then start the processes on each."""
        processes = self._request.processes
        for process in processes:
            process.log.parent.mkdir(parents=True, exist_ok=True)
            process.log.touch()
            if process.reach not in self._lines:
                on_end = functools.partial(self._line_ended, process.reach)
                on_frame = functools.partial(self._frame, process.reach)
                self._lines[process.reach] = Line(process.reach, on_frame=on_frame, on_end=on_end)
        deadline = time.monotonic() + lines.START_SECONDS
        late = {reach: line for reach, line in self._lines.items() if not line.await_ready(deadline)}
        if late:
            raise OperationError("; ".join(self._why_late(reach, line) for reach, line in late.items()))
        for slot, process in enumerate(processes):
            self._lines[process.reach].send(minder.START, slot, self._start_fields(process))
        # Minders answer in order: once all have answered this, all faults are known.
        self._check_faults()

    def _why_late(self, reach: tuple[str, ...], line: Line) -> str:
        first = next(process for process in self._request.processes if process.reach == reach)
        silent = f"no answer within {lines.START_SECONDS:g} s"
        return f"{_where(first)}: {self._explain(first, line.why_ended) if line.is_over else silent}"

    def _start_fields(self, process: Process) -> bytes:
        others = {one.host for one in self._request.processes} - {process.host}
        files = {name: (path.name, path.read_text("utf-8")) for name, path in self._request.files.items()}
        fields = {
            "command": process.command,
            "environment": dict(process.environment),
            "folder": self._request.folder or str(Path.cwd()),
            "log": None if process.reach else str(process.log.resolve()),
            "files": files if process.reach else {},
            "control": bool(process.reach) and self._request.control is not None,
            "addresses": [process.host, *sorted(others)],
        }
        return json.dumps(fields).encode()

    def _check_faults(self) -> None:
        for line in self._lines.values():
            line.ask(_STARTED)
        for _ in self._lines:
            self._answered.acquire(timeout=lines.SILENCE_SECONDS)
        lost = self.lost()
        if lost:
            raise OperationError(lost[min(lost)])
        if self._faults:
            slot = min(self._faults)
            raise OperationError(f"{self._request.processes[slot].place} could not be started: {self._faults[slot]}")

    def exit_codes(self) -> Sequence[int | None]:
        with self._lock:
            return list(self._codes)

    def lost(self) -> Mapping[int, str]:
        with self._lock:
            return dict(self._lost)

    def ended(self) -> Sequence[int]:
        with self._lock:
            return list(self._ended)

    def signal(self, number: int) -> None:
        for line in self._lines.values():
            line.send(minder.SIGNAL, 0, str(int(number)).encode())

    def stop(self) -> None:
        """Ask, then kill. Whatever interrupts this, no process is left."""
        self._is_stopping = True
        try:
            for line in self._lines.values():
                line.send(minder.STOP, 0, str(STOP_SECONDS).encode())
            deadline = time.monotonic() + STOP_SECONDS + _SETTLE_SECONDS
            for line in self._lines.values():
                line.close(max(0.0, deadline - time.monotonic()) if line.is_ready else 0.0)
        finally:
            for line in self._lines.values():
                line.close(0.0)
            for gate in list(self._gates.values()):
                _close(gate)
            self._then()

    def _frame(self, reach: tuple[str, ...], kind: int, slot: int, payload: bytes) -> None:
        match kind:
            case minder.TOLD:
                # By the batch system, whose time is up, or by an administrator.
                self._line_ended(reach, f"its processes were told to end by {name_of(int(payload))}")
            case minder.OUTPUT:
                path = self._request.processes[slot].log
                with naming(path), path.open("ab") as log:
                    log.write(payload)
            case minder.EXIT:
                self._note_end(slot, int(payload))
            case minder.FAULT:
                self._faults[slot] = payload.decode("utf-8", "replace")
                self._note_end(slot, LOST)
            case minder.PONG if slot == _STARTED:
                self._answered.release()
            case minder.CONTROL:
                self._carry(slot, payload)

    def _note_end(self, slot: int, code: int) -> None:
        with self._lock:
            if self._codes[slot] is None:
                self._codes[slot] = code
                self._ended.append(slot)

    def _line_ended(self, reach: tuple[str, ...], why: str) -> None:
        self._answered.release()
        slots = [slot for slot, process in enumerate(self._request.processes) if process.reach == reach]
        if not any(self.exit_codes()[slot] is None for slot in slots):
            return
        first = self._request.processes[slots[0]]
        # Without the lock: it may have to ask somebody.
        words = "" if self._is_stopping else f"{_where(first)}: {self._explain(first, why)}"
        with self._lock:
            for slot in slots:
                if self._codes[slot] is None:
                    self._codes[slot] = LOST
                    self._ended.append(slot)
                    if words:
                        self._lost[slot] = words

    # A rank's control connection, relayed to the gate.

    def _carry(self, slot: int, payload: bytes) -> None:
        gate = self._gates.get(slot)
        if gate is None:
            if not payload or self._request.control is None:
                return
            try:
                gate = self._gates[slot] = connection_to(self._request.control)
            except OSError:
                self._lines[self._request.processes[slot].reach].send(minder.CONTROL, slot)
                return
            threading.Thread(target=self._hear, args=(slot, gate), name="autosync-relay", daemon=True).start()
            payload = payload.removeprefix(KNOCK)
            if not payload:
                return
        with contextlib.suppress(OSError):
            if payload:
                gate.sendall(payload)
            else:
                gate.shutdown(socket.SHUT_WR)

    def _hear(self, slot: int, gate: socket.socket) -> None:
        """Carry what the gate says to the rank."""
        line = self._lines[self._request.processes[slot].reach]
        with contextlib.suppress(OSError):
            while data := gate.recv(1 << 16):
                line.send(minder.CONTROL, slot, data)
        line.send(minder.CONTROL, slot)


def _close(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
    connection.close()


def _where(process: Process) -> str:
    """A node in messages, with its host where that says more."""
    node = process.node or process.host
    return node if node == process.host or not process.reach else f"{node} ({process.host})"
