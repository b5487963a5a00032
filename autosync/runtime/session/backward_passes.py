"""Tells when a backward pass begins and when it has really ended.

torch has hooks for gradients, but none for a whole pass. However, every `backward()` calls one object,
`Variable._execution_engine`. While sessions are open, an engine of ours replaces it: it tells the sessions about each
pass, and torch's engine does the work. A reentrant checkpoint runs backward passes within a backward pass. torch gives
every pass a number, which tells a call within another pass from an outermost one, whatever the model returns and
whether or not the model itself was called.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import torch

from autosync.errors import OperationError

_EngineBase: Any = torch._C._ImperativeEngine  # noqa: SLF001 - torch's own class of such engines
_Variable: Any = torch.autograd.Variable


Fails = Callable[[BaseException], OperationError | None]
"""Gets the error with which a pass ended, and may return a better one."""


class Passes:
    """Tells one model's session about outermost backward passes that accumulate gradients.

    `begins` is called before every such pass of the thread that trains the model, whichever model the pass is for, and
    `ends` after it. That thread is the one that made this object, or the last one that called `train_here`. A pass is
    this model's from its first `gradient_came` on; `ends` is told whether it is. After an error, `fails` is called
    instead of `ends`; if `ends` itself fails, `fails` is called for this model and those that come after it.
    """

    def __init__(self, *, begins: Callable[[], None], ends: Callable[[bool], None], fails: Fails) -> None:
        self._begins = begins
        self._ends = ends
        self._fails = fails
        # The threads that are in a pass, in the order in which they began it.
        self._under_way: dict[int, None] = {}
        self._whose: int | None = None
        self.thread = threading.get_ident()
        _open(self)

    def close(self) -> None:
        """Stop following passes."""
        _close(self)

    def train_here(self) -> None:
        """Note that the calling thread trains the model: passes in other threads belong to other models."""
        self.thread = threading.get_ident()

    def gradient_came(self) -> None:
        """Note that a gradient of this model came, in the pass under way or in one within it."""
        if self._whose is not None:
            return
        thread = threading.get_ident()
        if not self._under_way:
            # Another thread has begun the pass, or compiled code has, which calls torch's engine directly.
            self.begin(thread)
            # torch's reducer finishes in such a callback too, which may be queued after this one. So this one queues a
            # second one at the end, which comes after all others.
            _queue(lambda: _queue(lambda: self.end(thread)))
        # On a GPU, gradients come in the device's own threads.
        self._whose = thread if thread in self._under_way else next(reversed(self._under_way))

    def begin(self, thread: int) -> None:
        """Note that a thread begins a pass."""
        self._under_way[thread] = None
        self._begins()

    def end(self, thread: int, error: BaseException | None = None) -> OperationError | None:
        """Note the end of a thread's pass, or its error; return an error that explains more, if there is one."""
        self._under_way.pop(thread, None)
        is_ours = self._whose == thread
        if is_ours:
            self._whose = None
        if error is not None:
            return self._fails(error)
        self._ends(is_ours)
        return None


def _queue(callback: Callable[[], object]) -> None:
    """Have `callback` called at the end of the pass under way, as DDP does."""
    _Variable._execution_engine.queue_callback(callback)  # noqa: SLF001 - torch has no other way


class _TellingEngine(_EngineBase):  # type: ignore[misc]
    """torch's engine, which also tells all open sessions about outermost passes."""

    def run_backward(self, *arguments: Any, **options: Any) -> Any:
        is_within = torch._C._current_graph_task_id() != -1  # noqa: SLF001 - torch has no other way to ask
        if is_within or getattr(_here, "is_quiet", False) or not options.get("accumulate_grad", False):
            return super().run_backward(*arguments, **options)
        thread, told = threading.get_ident(), []
        try:
            for one in [one for one in tuple(_OPEN) if one.thread == thread]:
                told.append(one)
                one.begin(thread)
            result = super().run_backward(*arguments, **options)
            while told:
                told[0].end(thread)
                del told[0]
        except BaseException as error:
            # Where the end of a pass fails for one model, those after it have no end, and fail too.
            better = next(filter(None, [one.end(thread, error) for one in told]), None)
            if better is not None:
                raise better from error
            raise
        return result


def accumulate_quietly(parameters: list[torch.Tensor], gradients: list[torch.Tensor]) -> None:
    """Have autograd accumulate gradients of leaves, unnoticed by sessions and without running the script's hooks."""
    found: list[Any] = []
    for one in parameters:
        hooks_of: Any = one
        found += filter(None, (hooks_of._backward_hooks, hooks_of._post_accumulate_grad_hooks))  # noqa: SLF001 - torch has no other way to leave them out
    kept = [dict(hooks) for hooks in found]
    _here.is_quiet = True
    try:
        for hooks in found:
            hooks.clear()
        torch.autograd.backward(parameters, gradients)
    finally:
        _here.is_quiet = False
        for hooks, content in zip(found, kept, strict=True):
            hooks.update(content)


_here = threading.local()
_OPEN: dict[Passes, None] = {}
_LOCK = threading.Lock()


def _open(one: Passes) -> None:
    with _LOCK:
        if not _OPEN:
            _Variable._execution_engine = _TellingEngine()  # noqa: SLF001 - see the module's docstring
        _OPEN[one] = None


def _close(one: Passes) -> None:
    with _LOCK:
        _OPEN.pop(one, None)
        if not _OPEN and type(_Variable._execution_engine) is _TellingEngine:  # noqa: SLF001 - the same
            _Variable._execution_engine = _EngineBase()  # noqa: SLF001 - the same
