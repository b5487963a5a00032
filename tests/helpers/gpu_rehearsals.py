"""What the engine does where parameters are on a GPU, done on the CPU: all of it but the device itself.

- `apart`: what travels does so in a copy of its own, as it must where parameters are on a GPU and gloo sends.
- `one order`: one thread does all of a rank's operations in the plan's order, as it must on NCCL.
- `nccl`: a plan for NCCL, transfer by transfer in collectives like NCCL's; gloo carries them out.

`OrderedCuda` stands for `torch.cuda` where the order between streams is to be proved: its streams know what has
happened before.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Hashable, Iterator, Mapping
from dataclasses import replace
from typing import Any, Literal, TypeAlias, get_args
from unittest import mock

import torch

from autosync.plan.types import Plan
from autosync.runtime.engine.device import DevicePlacement

Rehearsal: TypeAlias = Literal["apart", "one order", "nccl"]
REHEARSALS: tuple[Rehearsal, ...] = get_args(Rehearsal)

_CHANGES: Mapping[Rehearsal, Mapping[str, Any]] = {
    "apart": {"is_apart": True},
    "one order": {"in_one_order": True},
    # A plan for NCCL is in one order by itself.
    "nccl": {"natives": "gloo"},
}


@contextlib.contextmanager
def rehearsed(rehearsal: Rehearsal | None) -> Iterator[None]:
    """Within, whatever starts works as the rehearsal says; as ever if it is None."""
    placed = DevicePlacement.of

    def of(plan: Plan, parameters: Mapping[str, torch.Tensor]) -> DevicePlacement:
        return replace(placed(plan, parameters), **_CHANGES[rehearsal] if rehearsal else {})

    with mock.patch.object(DevicePlacement, "of", of):
        yield


class OrderedStream:
    """A stream that knows what has happened when its next work begins."""

    def __init__(self, cuda: OrderedCuda) -> None:
        self._cuda = cuda
        self.known: set[Hashable] = set()

    def wait_event(self, event: OrderedEvent) -> None:
        self.known |= event.known

    def synchronize(self) -> None:
        self._cuda.host |= self.known


class OrderedEvent:
    """What a stream knew when the event was recorded."""

    def __init__(self, cuda: OrderedCuda) -> None:
        self._cuda = cuda
        self.known: frozenset[Hashable] = frozenset()

    def record(self, stream: OrderedStream) -> None:
        self.known = frozenset(stream.known)

    def synchronize(self) -> None:
        self._cuda.host |= self.known


class OrderedCuda:
    """As much of `torch.cuda` as `Streams` uses, for one rank. `host` is what the host has waited for."""

    def __init__(self) -> None:
        self.host: set[Hashable] = set()
        self._local = threading.local()

    def Stream(self, _: torch.device) -> OrderedStream:  # noqa: N802 - torch's name
        return OrderedStream(self)

    def Event(self, *, blocking: bool) -> OrderedEvent:  # noqa: N802 - torch's name
        assert isinstance(blocking, bool), "torch takes nothing else"
        return OrderedEvent(self)

    def set_stream(self, stream: OrderedStream) -> None:
        self._local.stream = stream

    def current_stream(self, _: torch.device) -> OrderedStream:
        """Each thread's own, until another is set."""
        if not hasattr(self._local, "stream"):
            self._local.stream = OrderedStream(self)
        stream: OrderedStream = self._local.stream
        return stream
