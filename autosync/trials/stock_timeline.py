"""Records the timeline of torch's DDP on this rank, in the form in which our engine records its own.

DDP reports its messages only to a communication hook. So a hook starts the same all-reduce, and notes when a message is
ready and when it is complete.
"""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

from autosync.runtime.engine.trace import COMPUTE, ComputeSpan, Trace, trace_path

Hook = Callable[..., Any]


class StockTimeline:
    """The timeline of one model: `noting` notes the messages of its hook, `watch` the passes and the waits.

    The span of a message begins when it is ready and ends when it is complete. Several messages may be under way at
    once, so each has its own track.
    """

    def __init__(self, path: Path, *, rank: int, node: str) -> None:
        self._trace = Trace(trace_path(path, rank), rank=rank, host=node)
        self._span: ComputeSpan | None = None
        self._handles: list[Any] = []
        self._names: dict[int, str] = {}
        self._iteration = 0
        self._is_in_backward = False
        self._lock = threading.Lock()
        self._busy: set[int] = set()
        self._named_tracks: set[int] = set()

    def noting(self, hook: Hook) -> Hook:
        """Return a communication hook that does the same, with notes of its messages."""

        # torch reads the annotations of the hook: `wraps` leads it to them.
        @functools.wraps(hook)
        def noting(state: object, bucket: Any) -> Any:
            name, track, start_ns, iteration = self._name(bucket), self._take(), time.perf_counter_ns(), self._iteration

            def done(_: object) -> None:
                self._trace.add("transfer", name, track, start_ns, iteration=iteration)
                self._give_back(track)

            future = hook(state, bucket)
            future.add_done_callback(done)
            return future

        return noting

    def watch(self, ddp: DistributedDataParallel, optimizer: torch.optim.Optimizer) -> None:
        """Begin to note the passes of a model and the steps of its optimizer."""
        self._span = ComputeSpan(self._trace, ddp, optimizer)
        self._handles.append(optimizer.register_step_post_hook(lambda *_: self._step_ends()))
        for name, parameter in ddp.module.named_parameters():
            self._names[id(parameter)] = name
            if parameter.requires_grad:
                self._handles.append(parameter.register_post_accumulate_grad_hook(lambda _: self._gradient_ready()))

    def close(self) -> None:
        """Remove the hooks and end the file."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        if self._span is not None:
            self._span.close()

    def _gradient_ready(self) -> None:
        if not self._is_in_backward:
            self._is_in_backward = True
            # DDP queues its own callback, which waits for messages, later: when its last bucket is ready.
            _at_the_end_of_backward(self._backward_ends)

    def _backward_ends(self) -> None:
        assert self._span is not None, "gradients are watched together with passes"
        self._span.backward_ends()
        start_ns = time.perf_counter_ns()
        _at_the_end_of_backward(lambda: self._pass_ends(start_ns))

    def _pass_ends(self, start_ns: int) -> None:
        self._is_in_backward = False
        self._trace.add("wait", "wait", COMPUTE, start_ns, iteration=self._iteration)

    def _step_ends(self) -> None:
        self._iteration += 1

    def _name(self, bucket: Any) -> str:
        """Return the name of a message as our engine names operations."""
        names = [self._names[id(parameter)] for parameter in bucket.parameters()]
        more = f" and {len(names) - 1} more" if len(names) > 1 else ""
        return f"all_reduce of {names[0]}{more} (operation {bucket.index()})"

    def _take(self) -> int:
        """Return the first track without a message under way, and name it when it is first used."""
        with self._lock:
            track = next(number for number in range(1, len(self._busy) + 2) if number not in self._busy)
            self._busy.add(track)
            is_new = track not in self._named_tracks
            self._named_tracks.add(track)
        if is_new:
            self._trace.name_thread(track, f"message {track} under way")
        return track

    def _give_back(self, track: int) -> None:
        with self._lock:
            self._busy.discard(track)


def _at_the_end_of_backward(callback: Callable[[], None]) -> None:
    torch.autograd.Variable._execution_engine.queue_callback(callback)  # noqa: SLF001 - torch's own wrappers do so
