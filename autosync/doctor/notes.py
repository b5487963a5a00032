"""Assembles a rank's notes into steps. Each call notes that something begins or ends now."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field

from autosync.doctor.evidence import ReadyGradient, WatchedMessage, WatchedPass, WatchedStep


@dataclass(slots=True)
class _OpenPass:
    """A pass that has begun. Times that are not known yet are None.

    Several forward passes before one backward pass are one pass. What lies between them is taken to come before it.
    """

    begin: float
    buffer_seconds: float = 0.0
    search_seconds: float = 0.0
    forward_end: float | None = None
    backward_end: float | None = None
    end: float | None = None
    sizes: list[int] = field(default_factory=list)
    ready: list[float] = field(default_factory=list)
    done: dict[int, float] = field(default_factory=dict)
    gradients: dict[str, ReadyGradient] = field(default_factory=dict)

    @property
    def waits_for_backward(self) -> bool:
        """Whether its forward pass has ended, and no gradient has come."""
        return self.forward_end is not None and not self.gradients and self.backward_end is None

    def forward_goes_on(self, now: float) -> None:
        """Another forward pass begins before the backward pass."""
        assert self.forward_end is not None, "the one before has ended"
        self.begin += now - self.forward_end
        self.forward_end = None

    def closed(self, *, keeps_gradients: bool) -> WatchedPass | None:
        """Return the finished pass; None if it had no backward pass."""
        if self.forward_end is None or self.backward_end is None or self.end is None:
            return None
        backward_end = max(self.backward_end, self.forward_end)
        end = max(self.end, backward_end)
        messages = tuple(
            WatchedMessage(num_bytes=size, ready=ready, done=max(min(self.done.get(number, end), end), ready))
            for number, (size, ready) in enumerate(zip(self.sizes, self.ready, strict=True))
        )
        return WatchedPass(
            begin=self.begin,
            buffer_seconds=self.buffer_seconds,
            search_seconds=max(self.search_seconds, 0.0),
            forward_end=self.forward_end,
            backward_end=backward_end,
            end=end,
            messages=messages,
            gradients=tuple(self.gradients.values()) if keeps_gradients and messages else (),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Waits:
    """The time in which the training loop waited for batches, and the part of it for first batches of epochs."""

    seconds: float = 0.0
    of_first: float = 0.0

    def after(self, before: _Waits) -> _Waits:
        """Return what has come since there were only those before."""
        return _Waits(seconds=self.seconds - before.seconds, of_first=max(self.of_first - before.of_first, 0.0))


class StepNotes:
    """The notes of this rank's steps. Any thread may note the end of a message; the training thread notes the rest."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._passes: list[_OpenPass] = []
        self._begin = clock()
        self._update_begin: float | None = None
        self._update_end: float | None = None
        # The time from the end of the last step until it was known to be the end.
        self._delay = 0.0
        self._waits = _Waits()
        # Those before the end of the last update.
        self._waits_before = _Waits()
        self.keeps_gradients = False
        self.steps: list[WatchedStep] = []

    @property
    def buffer_seconds(self) -> float:
        """The time of buffer broadcasts in the present pass so far."""
        return self._passes[-1].buffer_seconds if self._passes else 0.0

    @property
    def has_update(self) -> bool:
        """Whether an update of the present step has ended."""
        return self._update_end is not None

    def pass_begins(self) -> None:
        """Note that a forward pass begins. One without gradients, as a teacher's, belongs to the next backward pass."""
        now = self._clock()
        if self._passes and self._passes[-1].waits_for_backward:
            self._passes[-1].forward_goes_on(now)
        else:
            self._passes.append(_OpenPass(begin=now))

    def buffers_took(self, seconds: float) -> None:
        """Note the time of a broadcast of buffers."""
        if self._passes and self._passes[-1].forward_end is None:
            self._passes[-1].buffer_seconds += seconds

    def search_took(self, seconds: float) -> None:
        """Note the time of DDP's search for unused parameters."""
        if self._passes:
            self._passes[-1].search_seconds += seconds

    def loader_took(self, seconds: float, *, is_first: bool = False) -> None:
        """Note the time in which the training loop waited for a batch, which may be the first of an epoch."""
        self._waits = _Waits(
            seconds=self._waits.seconds + seconds, of_first=self._waits.of_first + (seconds if is_first else 0.0)
        )

    def forward_ends(self) -> None:
        """Note the end of the forward pass: its return, or a backward pass within it. The loss is part of backward."""
        if self._passes and self._passes[-1].forward_end is None:
            self._passes[-1].forward_end = self._clock()

    def gradient_ready(self, name: str, num_bytes: int) -> bool:
        """Note that a gradient is ready. Return whether it is the first one of its backward pass."""
        if not self._passes:
            return False
        current = self._passes[-1]
        is_first = not current.gradients
        current.gradients[name] = ReadyGradient(num_bytes=num_bytes, ready=self._clock())
        return is_first

    def message_ready(self, num_bytes: int) -> Callable[[], None]:
        """Note that a message is ready. Return the function that notes its end."""
        if not self._passes:
            return lambda: None
        current, number = self._passes[-1], len(self._passes[-1].sizes)
        current.sizes.append(num_bytes)
        current.ready.append(self._clock())

        def done() -> None:
            with self._lock:
                current.done[number] = self._clock()

        return done

    def backward_ends(self) -> None:
        """Note the end of the backward pass's computation."""
        self._passes[-1].backward_end = self._clock()

    def pass_ends(self) -> None:
        """Note that DDP has handed over the gradients."""
        self._passes[-1].end = self._clock()

    def update_begins(self) -> None:
        """Note the start of an optimizer's step, the first of this step. With a closure, passes follow within it."""
        if self._update_begin is None:
            self._update_begin = self._clock()

    def update_ends(self) -> None:
        """Note the end of an optimizer's step. Another optimizer may follow."""
        self._update_end = self._clock()
        self._waits_before = self._waits

    def step_ends(self) -> bool:
        """Note that the last update has ended the step. Return whether it was one of training, with a backward pass."""
        end = self._update_end
        if end is None or self._update_begin is None:
            return False
        passes = []
        for number, one in enumerate(self._passes):
            closed = one.closed(keeps_gradients=self.keeps_gradients)
            following = self._passes[number + 1].begin if number + 1 < len(self._passes) else end
            if closed is not None and closed.end <= following:
                passes.append(closed)
        if not passes:
            self._update_begin = self._update_end = None
            return False
        update_begin = max(self._update_begin, passes[-1].end)
        waited = min(self._waits_before.seconds, end - self._begin)
        step = WatchedStep(
            begin=self._begin,
            passes=tuple(passes),
            update_begin=update_begin,
            end=end,
            loader_seconds=waited,
            first_batch_seconds=min(self._waits_before.of_first, waited),
        )
        self.steps.append(step)
        self._delay = self._clock() - end
        return True

    def step_begins(self) -> None:
        """Note the start of the next step, so that the doctor's own work after the last one does not count."""
        self._passes.clear()
        self._waits = self._waits.after(self._waits_before) if self.has_update else _Waits()
        self._waits_before = _Waits()
        self._update_begin = self._update_end = None
        self._begin = self._clock() - self._delay
        self._delay = 0.0
