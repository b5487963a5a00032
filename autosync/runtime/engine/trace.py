"""Records a timeline of training on one rank, its computations and transfers, as a Chrome trace.

The file is an array of events, one on each line, which Perfetto (ui.perfetto.dev) and chrome://tracing open. It is
written step by step, so the file that a crash leaves can be opened too. Times are those of the machine's clock: files
of ranks on one machine, or on machines with synchronised clocks, can be viewed together.
"""

from __future__ import annotations

import contextlib
import json
import threading
import time
from pathlib import Path
from typing import Any, Literal, TypeAlias

import torch

from autosync.errors import OperationError
from autosync.runtime.session.hooks import Hook
from autosync.specs.cluster import ClusterSpec

Kind: TypeAlias = Literal["compute", "wait", "transfer", "local"]

COMPUTE = 0
"""The number of training's own thread in the timeline, or of a server's main thread; lanes come after it."""


def trace_path(path: Path, rank: int) -> Path:
    """Return the path of a rank's trace: the given path with the rank's number before its suffix."""
    return path.with_name(f"{path.stem}-rank{rank}{path.suffix or '.json'}")


def open_trace(path: Path | None, cluster: ClusterSpec, rank: int, *, track: str = "training") -> Trace | None:
    """Open a rank's trace, if a path is given; `track` names the work of its main thread."""
    if path is None:
        return None
    return Trace(trace_path(path, rank), rank=rank, host=cluster.nodes[cluster.ranks[rank].node].name, track=track)


def _refuse_others(path: Path) -> None:
    """Refuse to overwrite a file that is no trace; only the trace of an earlier run is replaced."""
    if path.is_file():
        with path.open("rb") as file:
            head = file.read(1)
        if head not in {b"", b"["}:
            raise OperationError(f"no trace can be written to {path}: the file there is no trace")


class Trace:
    """Collects one rank's events. Any thread may add events; `write` appends them to the file."""

    def __init__(self, path: Path, *, rank: int, host: str, track: str = "training") -> None:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            _refuse_others(path)
            self._file = path.open("w", encoding="utf-8")
        except OSError as error:
            raise OperationError(f"no trace can be written to {path}: {error.strerror}") from error
        self._path = path
        self._rank = rank
        self._host = host
        self._lock = threading.Lock()
        self._events: list[dict[str, Any]] = []
        # The clock that measures durations knows no date, so this is its offset to the clock that does.
        self._start_ns = time.time_ns() - time.perf_counter_ns()
        self._file.write("[\n")
        self._name("process_name", COMPUTE, f"rank {rank} on {host}")
        self.name_thread(COMPUTE, track)

    def name_thread(self, thread: int, name: str) -> None:
        """Name a thread of the timeline."""
        self._name("thread_name", thread, name)

    def _name(self, what: str, thread: int, name: str) -> None:
        self._put({"ph": "M", "name": what, "pid": self._rank, "tid": thread, "args": {"name": name}})

    def add(self, kind: Kind, name: str, thread: int, start_ns: int, *, iteration: int) -> None:
        """Add an event that began at `start_ns` (of `time.perf_counter_ns`) and ends now."""
        now_ns = time.perf_counter_ns()
        self._put(
            {
                "ph": "X",
                "name": name,
                "cat": kind,
                "pid": self._rank,
                "tid": thread,
                "ts": (self._start_ns + start_ns) / 1e3,
                "dur": (now_ns - start_ns) / 1e3,
                "args": {"iteration": iteration},
            }
        )

    def _put(self, event: dict[str, Any]) -> None:
        with self._lock:
            self._events.append(event)

    def write(self) -> None:
        """Write all events so far to the file."""
        with self._lock:
            events, self._events = self._events, []
        if not self._file.closed:
            self._put_down("".join([json.dumps(event) + ",\n" for event in events]))

    def close(self) -> None:
        """Write the remaining events, end the array and close the file."""
        self.write()
        if not self._file.closed:
            self._put_down(json.dumps({"ph": "M", "name": "end", "pid": self._rank, "args": {}}) + "\n]\n")
            self._file.close()

    def _put_down(self, text: str) -> None:
        try:
            self._file.write(text)
            self._file.flush()
        except OSError as error:
            # Later attempts to write the rest would fail as well.
            with contextlib.suppress(OSError):
                self._file.close()
            where = f"rank {self._rank} on {self._host}"
            raise OperationError(f"{where}: no trace can be written to {self._path}: {error.strerror}") from error


class ComputeSpan:
    """Records training's own work on this rank as spans of a trace: forward, backward, optimizer.

    The first forward pass after a step begins the next iteration, so steps of several optimizers are in one.
    """

    def __init__(self, trace: Trace, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
        self._trace = trace
        self._start_ns: dict[str, int] = {}
        self._iteration = 0
        self._has_stepped = False
        self._hooks: list[Any] = [
            model.register_forward_pre_hook(Hook(lambda *_: self._forward_begins()), prepend=True),
            model.register_forward_hook(Hook(lambda *_: self._forward_ends())),
            optimizer.register_step_pre_hook(Hook(lambda *_: self._begin("optimizer"))),
            optimizer.register_step_post_hook(Hook(lambda *_: self._step_ends())),
        ]

    def _begin(self, name: str) -> None:
        self._start_ns[name] = time.perf_counter_ns()

    def _end(self, name: str) -> None:
        start_ns = self._start_ns.pop(name, None)
        if start_ns is not None:
            self._trace.add("compute", name, COMPUTE, start_ns, iteration=self._iteration)

    def _forward_begins(self) -> None:
        self._iteration += self._has_stepped
        self._has_stepped = False
        self._begin("forward")

    def _forward_ends(self) -> None:
        self._end("forward")
        if torch.is_grad_enabled():
            # The loss counts as part of backward, and so does everything else between forward and backward.
            self._begin("backward")

    def backward_ends(self) -> None:
        """End the span of the backward pass. Waits for other ranks come after it."""
        self._end("backward")

    def _step_ends(self) -> None:
        self._end("optimizer")
        self._has_stepped = True
        self._trace.write()

    def close(self) -> None:
        """Remove the hooks and close the trace."""
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()
        self._trace.close()
