"""A launch through agents, on this machine or on nodes that a command reaches.

Each node has one agent and one link to it. The launch writes output to logs, keeps exit codes and carries control
connections to the gate, at which the trial service listens. When a link breaks, the agent ends its ranks; they count as
lost, and the message names the node.
"""

from __future__ import annotations

import contextlib
import functools
import json
import random
import socket
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from autosync.disk_errors import naming_file
from autosync.errors import OperationError
from autosync.launchers import agent_link, frames
from autosync.launchers.agent_link import AgentLink
from autosync.launchers.control_address import KNOCK, connection_to
from autosync.launchers.messages import is_old_python, old_python_message, signal_name
from autosync.launchers.open_files import allow_open_files, open_files_cause
from autosync.launchers.request import LOST, LaunchRequest, Process

STOP_SECONDS = 5.0
"""The time that ranks have to end after they were asked to end."""

_SETTLE_SECONDS = 8.0
_LOOK_SECONDS = 0.05
_PAUSE_SECONDS = (0.2, 2.0)
"""The shortest and the longest pause before a node is reached again that has put its link off."""
_SAID_CHARACTERS = 300
_MAX_SIGNAL, _MAX_CODE = 64, 255
_STARTED = 1
"""The number of the ping that follows all START frames: its answer means that these were handled."""


def start(
    request: LaunchRequest,
    *,
    explain: Callable[[Process, str], str] = lambda _process, said: " ".join(said.split()),
    is_put_off: Callable[[str], bool] = lambda _said: False,
    then: Callable[[], None] = lambda: None,
) -> AgentLaunch:
    """Start all processes of a request; if one cannot be started, end the others and raise OperationError.

    `explain` turns the last output of the command that could not reach a node into a reason for the user. `is_put_off`
    says of this output whether the node may be reached a moment later. `then` is called when the launch is stopped.
    """
    launch = AgentLaunch(request, explain, is_put_off, then)
    num_nodes = len({process.reach for process in request.processes})
    allow_open_files(num_nodes=num_nodes, num_ranks=len(request.processes))
    try:
        launch.start()
    except BaseException as error:
        launch.stop()
        if isinstance(error, FileNotFoundError):
            raise OperationError(f"{error.filename} is not installed here: the launcher takes it") from error
        if isinstance(error, OSError):
            raise OperationError(f"a rank could not be started: {error}{open_files_cause(error)}") from error
        raise
    return launch


class AgentLaunch:
    """A launch with an agent on each node; see `request.ScriptLaunch`."""

    def __init__(
        self,
        request: LaunchRequest,
        explain: Callable[[Process, str], str],
        is_put_off: Callable[[str], bool],
        then: Callable[[], None],
    ) -> None:
        self._request = request
        self._explain = explain
        self._is_put_off = is_put_off
        self._then = then
        self._lock = threading.Lock()
        self._codes: list[int | None] = [None] * len(request.processes)
        self._lost: dict[int, str] = {}
        self._ended: list[int] = []
        self._faults: dict[int, str] = {}
        self._told: set[int] = set()
        self._links: dict[tuple[str, ...], AgentLink] = {}
        self._gates: dict[int, socket.socket] = {}
        self._answered = threading.Semaphore(0)
        self._is_reaching = True
        self._is_stopping = False

    def start(self) -> None:
        """Reach all nodes at once, then start the processes on each."""
        processes = self._request.processes
        for process in processes:
            process.log.parent.mkdir(parents=True, exist_ok=True)
            process.log.touch()
            if process.reach not in self._links:
                self._links[process.reach] = self._link(process.reach)
        late = self._await_agents(time.monotonic() + agent_link.START_SECONDS)
        self._is_reaching = False
        if late:
            raise OperationError(self._why_late(late))
        if old := self._old_pythons():
            raise OperationError(old)
        for slot, process in enumerate(processes):
            self._links[process.reach].send(frames.START, slot, self._start_fields(process))
        # Agents answer in order: when all have answered this ping, all faults are known.
        self._check_faults()

    def _link(self, reach: tuple[str, ...]) -> AgentLink:
        on_frame = functools.partial(self._frame, reach)
        return AgentLink(reach, on_frame=on_frame, on_end=functools.partial(self._link_ended, reach))

    def _await_agents(self, deadline: float) -> dict[tuple[str, ...], AgentLink]:
        """Wait until the agents have answered, and return the links of those that have not.

        A node that has put its link off gets another one, after a pause of random length: others were put off too.
        """
        waiting = dict(self._links)
        late: set[tuple[str, ...]] = set()
        again: dict[tuple[str, ...], float] = {}
        while waiting:
            now = time.monotonic()
            for reach, link in list(waiting.items()):
                is_off = link.is_over and self._is_put_off(link.why_ended)
                if link.is_ready:
                    del waiting[reach]
                elif now >= deadline or (link.is_over and not is_off):
                    del waiting[reach]
                    late.add(reach)
                elif is_off and now >= again.setdefault(reach, now + random.uniform(*_PAUSE_SECONDS)):
                    del again[reach]
                    link.close(0.0)
                    waiting[reach] = self._links[reach] = self._link(reach)
            if waiting:
                next(iter(waiting.values())).await_ready(min(deadline, now + _LOOK_SECONDS))
        return {reach: link for reach, link in self._links.items() if reach in late}

    def _why_late(self, late: Mapping[tuple[str, ...], AgentLink]) -> str:
        """Return the reasons why nodes did not answer, each reason once, after the names of its nodes."""
        found = []
        for reach, link in late.items():
            first = next(process for process in self._request.processes if process.reach == reach)
            why = self._why(reach, first, link.why_ended) if link.is_over else _silence(link)
            found.append((_where(first), why))
        return _each_once(found)

    def _old_pythons(self) -> str:
        """Return which nodes would run autosync in a Python that is too old for it; empty if there are none."""
        pythons = [(process, self._links[process.reach].python) for process in self._request.processes]
        return _each_once(
            (_where(process), old_python_message(process.command[0], version))
            for process, version in pythons
            if process.command[1:2] == ("-P",) and is_old_python(version)
        )

    def _why(self, reach: tuple[str, ...], first: Process, why: str) -> str:
        """Return why a link ended: its breach of the protocol, or an explanation of the command's last output."""
        link = self._links.get(reach)
        return link.breach if link is not None and link.breach else self._explain(first, why)

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
            "nics": process.nics,
        }
        return json.dumps(fields).encode()

    def _check_faults(self) -> None:
        for link in self._links.values():
            link.ask(_STARTED)
        for _ in self._links:
            self._answered.acquire(timeout=agent_link.SILENCE_SECONDS)
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
        for link in self._links.values():
            link.send(frames.SIGNAL, 0, str(int(number)).encode())

    def stop(self) -> None:
        """Ask all ranks to end, then kill the rest. No process is left, even if this call is interrupted."""
        self._is_stopping = True
        try:
            for link in self._links.values():
                link.send(frames.STOP, 0, str(STOP_SECONDS).encode())
            deadline = time.monotonic() + STOP_SECONDS + _SETTLE_SECONDS
            for link in self._links.values():
                link.close(max(0.0, deadline - time.monotonic()) if link.is_ready else 0.0)
        finally:
            for link in self._links.values():
                link.close(0.0)
            for gate in list(self._gates.values()):
                _close(gate)
            self._then()

    def _frame(self, reach: tuple[str, ...], kind: int, slot: int, payload: bytes) -> None:
        self._check_frame(reach, kind, slot, payload)
        match kind:
            case frames.TOLD:
                # The signal comes from the batch system at the end of its time, or from an administrator.
                self._link_ended(reach, f"its processes were told to end by {signal_name(int(payload))}")
            case frames.OUTPUT:
                path = self._request.processes[slot].log
                with naming_file(path), path.open("ab") as log:
                    log.write(payload)
            case frames.EXIT:
                self._note_end(slot, int(payload))
            case frames.FAULT:
                self._faults[slot] = payload.decode("utf-8", "replace")
                self._note_end(slot, LOST)
            case frames.PONG if slot == _STARTED:
                self._answered.release()
            case frames.CONTROL:
                self._carry(slot, payload)

    def _check_frame(self, reach: tuple[str, ...], kind: int, slot: int, payload: bytes) -> None:
        """Raise FrameError unless the frame is about a process on the agent's node and reports each end only once."""
        if kind in (frames.OUTPUT, frames.EXIT, frames.FAULT, frames.CONTROL):
            if slot >= len(self._request.processes):
                raise frames.FrameError(f"it speaks for a process {slot}, which does not exist")
            if self._request.processes[slot].reach != reach:
                raise frames.FrameError(
                    f"it speaks for {self._request.processes[slot].place}, which does not run there"
                )
        if kind in (frames.EXIT, frames.FAULT):
            if slot in self._told:
                raise frames.FrameError(f"it tells twice how {self._request.processes[slot].place} ended")
            self._told.add(slot)
        if kind == frames.OUTPUT and not payload:
            raise frames.FrameError("output of no bytes")
        if kind == frames.EXIT and not (_is_number(payload) and -_MAX_SIGNAL <= int(payload) <= _MAX_CODE):
            raise frames.FrameError("an exit code out of range")
        if kind == frames.TOLD and not (_is_number(payload) and 0 < int(payload) <= _MAX_SIGNAL):
            raise frames.FrameError("a signal out of range")

    def _note_end(self, slot: int, code: int) -> None:
        with self._lock:
            if self._codes[slot] is None:
                self._codes[slot] = code
                self._ended.append(slot)

    def _link_ended(self, reach: tuple[str, ...], why: str) -> None:
        link = self._links.get(reach)
        if self._is_reaching and (link is None or not link.is_ready) and self._is_put_off(why):
            return
        self._answered.release()
        slots = [slot for slot, process in enumerate(self._request.processes) if process.reach == reach]
        if not any(self.exit_codes()[slot] is None for slot in slots):
            return
        first = self._request.processes[slots[0]]
        # Without the lock, because `explain` may take long: it may ask a batch system.
        words = "" if self._is_stopping else f"{_where(first)}: {self._why(reach, first, why)}"
        for slot in slots:
            self._lose(slot, words)

    def _lose(self, slot: int, words: str) -> None:
        """Count a process as lost, unless its end is known."""
        with self._lock:
            if self._codes[slot] is None:
                self._codes[slot] = LOST
                self._ended.append(slot)
                if words:
                    self._lost[slot] = words

    # The methods below relay the control connections of ranks to the gate.

    def _carry(self, slot: int, payload: bytes) -> None:
        gate = self._gates.get(slot)
        if gate is None:
            if not payload or self._request.control is None:
                return
            try:
                gate = self._gates[slot] = connection_to(self._request.control)
            except OSError as error:
                if cause := open_files_cause(error):
                    process = self._request.processes[slot]
                    self._lose(slot, f"{process.place}: its connection cannot be taken: {error.strerror}{cause}")
                self._links[self._request.processes[slot].reach].send(frames.CONTROL, slot)
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
        """Carry bytes from the gate to the rank."""
        link = self._links[self._request.processes[slot].reach]
        with contextlib.suppress(OSError):
            while data := gate.recv(1 << 16):
                link.send(frames.CONTROL, slot, data)
        link.send(frames.CONTROL, slot)


def _silence(link: AgentLink) -> str:
    said = " ".join(link.said.split())
    return f"no answer within {agent_link.START_SECONDS:g} s{f': {said[-_SAID_CHARACTERS:]}' if said else ''}"


def _each_once(found: Iterable[tuple[str, str]]) -> str:
    """Format reasons for nodes: each reason once, after the names of its nodes."""
    nodes: dict[str, dict[str, None]] = {}
    for node, why in found:
        nodes.setdefault(why, {})[node] = None
    return "; ".join(f"{', '.join(names)}: {why}" for why, names in nodes.items())


def _is_number(payload: bytes) -> bool:
    return len(payload) <= len("-255") and payload.lstrip(b"-").isdigit()


def _close(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
    connection.close()


def _where(process: Process) -> str:
    """Return the name of a node for messages, with its host if the host has another name."""
    node = process.node or process.host
    return node if node == process.host or not process.reach else f"{node} ({process.host})"
