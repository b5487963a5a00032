"""The place of a rank's parameters, and the order of the work of training and of the engine on a GPU.

When a call returns, a CPU has done its work, but a GPU has only queued it. Work lies in *streams*, each of which runs
in order; work that needs a result from another stream must wait for an *event* of that stream. Training uses whichever
streams the user has chosen; all threads of the engine share one stream. Only `Streams` knows about this.

- **Waiting** (gloo, which sends host memory). Before an operation, the engine's thread waits until the device has done
  the work of training that the operation uses; after it, until the device has done the operation. So an operation that
  is done is complete, as on a CPU, and a thread that has passed a gate needs no further wait.
- **Queued** (NCCL, which works on the device). No thread waits for the device: an operation is done when its work is in
  the engine's stream. One thread queues all operations in the plan's order, so each comes after those that it waits
  for. The engine's stream waits for the work of training that an operation uses, and at a gate training's stream waits
  for the gate's operations.

torch gives freed memory back to the stream that it was allocated for, even if another stream still reads it. Buffers
and gradients, which are used in turn, are therefore kept until nothing reads them; other contents are marked by each
stream that uses them (`used_here`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import torch

from autosync.plan.types import Plan
from autosync.runtime.engine.rank_script import Link, Script

Natives: TypeAlias = Literal["gloo", "nccl"]


@dataclass(frozen=True, slots=True, kw_only=True)
class DevicePlacement:
    """The place of the parameters, and its consequences for the engine.

    `is_apart`: transfers go through host memory, and the parameters are elsewhere. `in_one_order`: one thread does all
    operations in the plan's order. `natives` is the backend of native collectives.
    """

    device: torch.device
    is_apart: bool
    in_one_order: bool
    natives: Natives

    @classmethod
    def of(cls, plan: Plan, parameters: Mapping[str, torch.Tensor]) -> DevicePlacement:
        """Return the placement that follows from a plan's backend and the device of its parameters."""
        device = next(iter(parameters.values())).device if parameters else torch.device("cpu")
        is_nccl = plan.backend == "nccl"
        return cls(
            device=device,
            is_apart=device.type != "cpu" and not is_nccl,
            in_one_order=is_nccl,
            natives="nccl" if is_nccl else "gloo",
        )

    def streams(self, script: Script) -> Streams | None:
        """Return the streams that order training and the engine, or None on a CPU, which needs none."""
        if self.device.type == "cpu":
            return None
        return Streams(self.device, script, is_queued=self.in_one_order)


def used_here(content: Any) -> None:
    """Mark a content (tensors in tuples and lists) as used by the current stream, if another stream made it.

    For tensors that this stream made, it does nothing and costs nothing.
    """
    if isinstance(content, torch.Tensor) and content.is_cuda:
        content.record_stream(torch.cuda.current_stream(content.device))
    elif isinstance(content, tuple | list):
        for one in content:
            used_here(one)


class Streams:
    """The engine's stream on a device, and the waits between it and training's. Items are those of the rank's script.

    `cuda` is `torch.cuda`, or a fake of it in a test.
    """

    def __init__(self, device: torch.device, script: Script, *, is_queued: bool, cuda: Any = torch.cuda) -> None:
        self._cuda = cuda
        self._device = device
        self._is_queued = is_queued
        self._stream = cuda.Stream(device)
        self._every = script.every
        self._heirs = _heirs(script)
        self._awaited = _awaited(script)
        most = max((link.lag for links in self._awaited.values() for link in links), default=0)
        # By operation and iteration, until the operation begins: the events after which its input from training is
        # complete.
        self._told: dict[tuple[int, int], list[Any]] = {}
        # By operation: the last iterations in which it was queued, each with its number in the stream and its event.
        self._put: list[deque[tuple[int, int, Any]]] = [deque(maxlen=most + 1) for _ in script.operations]
        self._num_put = 0
        self._last: Any = None

    # Called by the engine's threads.

    def begin_thread(self) -> None:
        """Send all further work of the calling thread to the engine's stream."""
        self._cuda.set_stream(self._stream)

    def begin(self, item: int, iteration: int) -> None:
        """Before an operation, wait for the work of training that it uses."""
        for event in self._told.pop((item, iteration), ()):
            if self._is_queued:
                self._stream.wait_event(event)
            else:
                event.synchronize()

    def end(self, item: int, iteration: int) -> None:
        """After an operation, wait until the device has done it; if work is queued, only record an event for it."""
        event = self._event_on(self._stream)
        if not self._is_queued:
            event.synchronize()
            return
        self._num_put += 1
        self._put[item].append((iteration, self._num_put, event))
        self._last = event

    # Called by training's thread, or by autograd's threads for it: their current stream is training's.

    def tell(self, items: tuple[int, ...], iteration: int) -> None:
        """Record an event in training's stream, after which all that these items wait for in training is done."""
        event = self._event_on(self._cuda.current_stream(self._device))
        for item in items:
            for heir, lag in self._heirs[item]:
                if (iteration + lag + 1) % self._every[heir] == 0:
                    self._told.setdefault((heir, iteration + lag), []).append(event)

    def pass_gate(self, gate: int, iteration: int) -> None:
        """Let further work in training's stream wait for the operations behind a gate that is open."""
        if not self._is_queued:
            return
        found = [
            (number, event)
            for item, lag in self._awaited[gate]
            for put_in, number, event in tuple(self._put[item])
            if put_in == iteration - lag
        ]
        if found:
            # All of them are in one stream, so after the last event all are done.
            _, event = max(found, key=lambda one: one[0])
            self._cuda.current_stream(self._device).wait_event(event)

    def catch_up(self) -> None:
        """Let further work in training's stream wait for everything that the engine has queued so far."""
        if self._is_queued and self._last is not None:
            self._cuda.current_stream(self._device).wait_event(self._last)

    def close(self) -> None:
        """Wait on the host until the engine's stream is empty."""
        self._stream.synchronize()

    def _event_on(self, stream: Any) -> Any:
        # A thread that waits for a blocking event leaves the processor to others.
        event = self._cuda.Event(blocking=not self._is_queued)
        event.record(stream)
        return event


def _heirs(script: Script) -> list[tuple[Link, ...]]:
    """Return, for each item, the engine's operations that use the results of training that the item waits for.

    For an operation of the engine, this is the operation itself. For the user's own work (`instant`), these are the
    operations that follow it. For a gate there are none, because training need not wait for itself.
    """
    found: dict[int, tuple[Link, ...]] = {}
    for number in range(script.num_items):
        # No recursion: the user's work on all messages may form one long chain.
        waiting = [number]
        while waiting:
            item = waiting[-1]
            followers = script.followers[item] if item in script.instant else ()
            unknown = [follower.item for follower in followers if follower.item not in found]
            if unknown:
                waiting += unknown
                continue
            waiting.pop()
            if item >= len(script.operations):
                found[item] = ()
            elif item not in script.instant:
                found[item] = (Link(item, 0),)
            else:
                links = (Link(heir, follower.lag + lag) for follower in followers for heir, lag in found[follower.item])
                found[item] = tuple(dict.fromkeys(links))
    return [found[item] for item in range(script.num_items)]


def _awaited(script: Script) -> dict[int, list[Link]]:
    """Return the engine's operations that each gate waits for."""
    awaited: dict[int, list[Link]] = {gate: [] for gate in script.gates.values()}
    for item, followers in enumerate(script.followers):
        for follower, lag in followers:
            if follower in awaited and item not in script.instant:
                awaited[follower].append(Link(item, lag))
    return awaited
