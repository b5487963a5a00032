"""Communication of all workers between steps: they exchange contents and agree whether to go on.

No operation of a plan is under way then, and these messages have their own tags.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import torch

from autosync.errors import OperationError
from autosync.runtime.session.agreement import STATE_TAG
from autosync.runtime.wire.exchange import Exchange
from autosync.runtime.wire.flow_control import Flow
from autosync.runtime.wire.links import Links

T = TypeVar("T")

MEETING_TAG = STATE_TAG + 4


class Meeting:
    """One call that all workers make, named `what`. All workers use its methods in the same order."""

    def __init__(self, links: Links, *, num_workers: int, what: str) -> None:
        self.rank = links.rank
        self.num_workers = num_workers
        self._what = what
        self._exchange = Exchange(links, Flow())

    def gather(self, content: bytes, *, to: int = 0) -> list[bytes]:
        """Return the contents of all workers, in the ranks' order, on worker `to`; an empty list on the others."""
        if self.num_workers == 1:
            return [content]
        members = [to, *(rank for rank in range(self.num_workers) if rank != to)]
        found = self._met(
            lambda: self._exchange.gather_v(_tensor(content), members=members, tag=MEETING_TAG, priority=0)
        )
        by_rank = dict(zip(members, found, strict=False))
        return [_bytes(by_rank[rank]) for rank in sorted(by_rank)]

    def gather_everywhere(self, content: bytes) -> list[bytes]:
        """Return the contents of all workers, in the ranks' order, on every worker."""
        if self.num_workers == 1:
            return [content]
        members = range(self.num_workers)
        found = self._met(
            lambda: self._exchange.all_gather_v(_tensor(content), members=members, tag=MEETING_TAG, priority=0)
        )
        return [_bytes(one) for one in found]

    def hear_first(self, content: bytes) -> bytes:
        """Return the first worker's content, on every worker."""
        if self.num_workers == 1:
            return content
        members = range(self.num_workers)
        said = content if self.rank == 0 else b""
        found = self._met(
            lambda: self._exchange.broadcast_v(_tensor(said), members=members, tag=MEETING_TAG, priority=0)
        )
        return _bytes(found[0])

    def compare(self, facts: Mapping[str, Any]) -> None:
        """Raise an error on all workers if the facts of one of them differ from the first worker's."""
        everyones = [json.loads(one) for one in self.gather_everywhere(json.dumps(dict(facts)).encode())]
        for rank, theirs in enumerate(everyones):
            for what, value in everyones[0].items():
                if theirs.get(what) != value:
                    raise OperationError(
                        f"{self._what}: worker {rank} has {what} {theirs.get(what)}, worker 0 has {value} (all workers "
                        "must call it alike)"
                    )

    def together(self, work: Callable[[], T]) -> T:
        """Run `work` on every worker and return its result; if it fails on one, all raise an error that says why."""
        done: list[T] = []
        mistake, reason = "", None
        try:
            done.append(work())
        except Exception as error:  # noqa: BLE001 - any error must reach the other workers, which would wait otherwise
            mistake, reason = str(error) or type(error).__name__, error
        mistakes = [one.decode() for one in self.gather_everywhere(mistake.encode())]
        for rank, found in enumerate(mistakes):
            if found:
                whose = "" if all(one == found for one in mistakes) else f"worker {rank}: "
                raise OperationError(f"{self._what}: {whose}{found}") from reason
        return done[0]

    def _met(self, exchange: Callable[[], T]) -> T:
        try:
            return exchange()
        except OperationError as error:
            raise OperationError(f"{self._what} is for all workers to call: {error}") from error


def _tensor(content: bytes) -> torch.Tensor:
    return torch.frombuffer(bytearray(content), dtype=torch.uint8) if content else torch.empty(0, dtype=torch.uint8)


def _bytes(tensor: torch.Tensor) -> bytes:
    return tensor.numpy().tobytes()
