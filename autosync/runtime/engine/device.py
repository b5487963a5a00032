"""Where a rank's parameters are, and the order between training and the engine on a device that works for itself.

A CPU has done what it was told when the call returns. A GPU has only heard of it: work lies in *streams*, each in its
order, and work in one stream that needs what another makes has to wait for an *event* there. Training has its streams,
whichever the user has chosen; all of the engine's threads share one of their own. Nothing but `Streams` knows of that.

- **Waiting** (gloo, which sends host memory). A thread of the engine waits until the device has come to what training
  told of, and after its operation until the device has done it. So what is done is done, as on a CPU, and whoever has
  passed a gate needs to wait for nothing more.
- **Queued** (NCCL, which works on the device). No thread waits for the device: done means that the work is in the
  engine's stream. One thread puts all operations there in the plan's order, so each comes after those that it waits
  for. The stream waits for what training told of, and at a gate training's stream waits for the gate's operations.

Memory goes back to the stream that it was taken for, whoever else may still be reading. What is used in turn (buffers,
gradients) is kept until nobody does; contents that come and go are marked by whoever gets them (`used_here`).
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
class Placement:
    """Where parameters are, and what that asks of the engine.

    `is_apart`: what travels does so in host memory, and the parameters are elsewhere. `in_one_order`: one thread does
    all operations in the plan's order. `natives` makes the groups of native collectives.
    """

    device: torch.device
    is_apart: bool
    in_one_order: bool
    natives: Natives

    @classmethod
    def of(cls, plan: Plan, parameters: Mapping[str, torch.Tensor]) -> Placement:
        """What a plan's backend and the device of its parameters ask for."""
        device = next(iter(parameters.values())).device if parameters else torch.device("cpu")
        is_nccl = plan.backend == "nccl"
        return cls(
            device=device,
            is_apart=device.type != "cpu" and not is_nccl,
            in_one_order=is_nccl,
            natives="nccl" if is_nccl else "gloo",
        )

    def streams(self, script: Script) -> Streams | None:
        """The order between training and the engine; on a CPU there is nothing to order."""
        if self.device.type == "cpu":
            return None
        return Streams(self.device, script, is_queued=self.in_one_order)


def used_here(content: Any) -> None:
    """The current stream uses a content (tensors in tuples and lists) that may have been made for another's.

    What was taken for this stream anyway is not marked, and costs nothing.
    """
    if isinstance(content, torch.Tensor) and content.is_cuda:
        content.record_stream(torch.cuda.current_stream(content.device))
    elif isinstance(content, tuple | list):
        for one in content:
            used_here(one)


class Streams:
    """The engine's stream on a device, and who waits for whom. Items are those of the rank's script.

    `cuda` is torch's module, or what stands for it in a test.
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
        # By operation: the event of what training told of, in the iterations that it has not begun in.
        self._told: dict[tuple[int, int], list[Any]] = {}
        # By operation: the last iterations in which it was put into the stream, the how manieth it was, its event.
        self._put: list[deque[tuple[int, int, Any]]] = [deque(maxlen=most + 1) for _ in script.operations]
        self._num_put = 0
        self._last: Any = None

    # The engine's threads.

    def begin_thread(self) -> None:
        """From here on the calling thread's work goes to the engine's stream."""
        self._cuda.set_stream(self._stream)

    def begin(self, item: int, iteration: int) -> None:
        """An operation is about to use what training has made."""
        for event in self._told.pop((item, iteration), ()):
            if self._is_queued:
                self._stream.wait_event(event)
            else:
                event.synchronize()

    def end(self, item: int, iteration: int) -> None:
        """An operation's work is in the stream."""
        event = self._event_on(self._stream)
        if not self._is_queued:
            event.synchronize()
            return
        self._num_put += 1
        self._put[item].append((iteration, self._num_put, event))
        self._last = event

    # Training's thread, or autograd's in its name: whatever stream is current there is training's.

    def tell(self, items: tuple[int, ...], iteration: int) -> None:
        """What these items wait for is there, after what is in training's stream now."""
        event = self._event_on(self._cuda.current_stream(self._device))
        for item in items:
            for heir, lag in self._heirs[item]:
                if (iteration + lag + 1) % self._every[heir] == 0:
                    self._told.setdefault((heir, iteration + lag), []).append(event)

    def pass_gate(self, gate: int, iteration: int) -> None:
        """What comes next in training's stream uses what is behind a gate that is open."""
        if not self._is_queued:
            return
        found = [
            (number, event)
            for item, lag in self._awaited[gate]
            for put_in, number, event in tuple(self._put[item])
            if put_in == iteration - lag
        ]
        if found:
            # They lie in one stream: after the last of them all are done.
            _, event = max(found, key=lambda one: one[0])
            self._cuda.current_stream(self._device).wait_event(event)

    def catch_up(self) -> None:
        """What comes next in training's stream may use whatever the engine has put into its own so far."""
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
    """The operations of the engine's that each item stands for.

    An operation stands for itself; what the user does (`instant`) for whatever follows; a gate for nothing, for
    training need not wait for itself.
    """
    found: dict[int, tuple[Link, ...]] = {}
    for number in range(script.num_items):
        # No recursion: what the user does of each message may follow one after the other, as many as there are.
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
    """The engine's operations that each gate waits for."""
    awaited: dict[int, list[Link]] = {gate: [] for gate in script.gates.values()}
    for item, followers in enumerate(script.followers):
        for follower, lag in followers:
            if follower in awaited and item not in script.instant:
                awaited[follower].append(Link(item, lag))
    return awaited
