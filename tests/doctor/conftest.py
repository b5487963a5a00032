"""Makes evidence as ranks would report it, from the durations of their work."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from autosync.doctor.evidence import (
    Evidence,
    Processors,
    RankEvidence,
    ReadyGradient,
    WatchedMessage,
    WatchedPass,
    WatchedSettings,
    WatchedStep,
)

MIB = 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """The seconds that a rank takes for the parts of a step."""

    input: float = 0.001
    loader: float = 0.0
    forward: float = 0.05
    backward: float = 0.1
    update: float = 0.005
    search: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranks:
    """Ranks that train in step: each step begins together, and each message ends on all of them at once.

    `message_bytes` are the sizes of the messages of a pass; their gradients are ready at even distances in the backward
    pass. A message takes `latency` and its bytes divided by `rate`. `num_passes` synchronise in each step. Alone, after
    the last step, messages take `alone` times as long, if a large one is timed then (`times_large`). A rank in `bursts`
    waits for its loader in one of so many steps alone, and as many times as long. In the first step, ranks wait
    `first_batch` seconds more, for the first batch of an epoch.
    """

    works: Sequence[Work]
    message_bytes: Sequence[int] = (MIB, 4 * MIB, 4 * MIB)
    rate: float = 1e9
    latency: float = 0.0005
    num_passes: int = 1
    num_steps: int = 5
    telling: float = 0.0
    buffers: float = 0.0
    settings: WatchedSettings = field(default_factory=WatchedSettings)
    processors: Mapping[int, Processors] = field(default_factory=dict)
    clocks: Sequence[float] = ()
    gradients_a_message: int = 4
    alone: float = 1.0
    times_large: bool = True
    bursts: Mapping[int, int] = field(default_factory=dict)
    first_batch: float = 0.0

    def evidence(self, **changes: object) -> Evidence:
        """The evidence of all ranks; each rank has a clock of its own."""
        steps: list[list[WatchedStep]] = [[] for _ in self.works]
        now = 1.0
        for number in range(self.num_steps):
            now = self._step(steps, now, number)
        ranks = tuple(
            RankEvidence(
                rank=rank,
                steps=tuple(_shifted(step, self.clocks[rank] if self.clocks else 0.0) for step in mine),
                settings=self.settings,
                processors=self.processors.get(
                    rank, Processors(machine=f"m{rank}", own=0.2, others=0.01, waited_seconds=0.0, seconds=1.0)
                ),
                small_message_seconds=self.alone * self.latency,
                **self._large_message(),
            )
            for rank, mine in enumerate(steps)
        )
        nodes = tuple(f"n{rank}" for rank in range(len(ranks)))
        return replace(Evidence(ranks=ranks, nodes=nodes), **changes)  # type: ignore[arg-type]

    def _large_message(self) -> dict[str, Any]:
        num_bytes = sum(self.message_bytes)
        seconds = self.alone * (self.latency + num_bytes / self.rate)
        return {"large_message_bytes": num_bytes, "large_message_seconds": seconds} if self.times_large else {}

    def _work(self, rank: int, number: int) -> Work:
        """The work of a rank in one step."""
        work, every = self.works[rank], self.bursts.get(rank, 1)
        loader = (every * work.loader if number % every == 0 else 0.0) + (self.first_batch if number == 0 else 0.0)
        return replace(work, input=work.input - work.loader + loader, loader=loader)

    def _step(self, steps: list[list[WatchedStep]], begin: float, number: int) -> float:
        """Add one step to each rank; return its end on the last one."""
        num = len(self.works)
        works = [self._work(rank, number) for rank in range(num)]
        passes: list[list[WatchedPass]] = [[] for _ in range(num)]
        starts = [begin + work.input for work in works]
        for _ in range(self.num_passes):
            together = max(starts) if self.buffers else 0.0
            ready: list[list[float]] = []
            heads = []
            for rank, work in enumerate(works):
                buffer_end = max(starts[rank], together) + self.buffers
                forward_end = buffer_end + work.forward + work.search
                heads.append((buffer_end, forward_end, forward_end + work.backward))
                count = len(self.message_bytes)
                ready.append([forward_end + work.backward * (one + 1) / count for one in range(count)])
            done, free = [], 0.0
            for size, *times in zip(self.message_bytes, *ready, strict=True):
                free = max(free, *times) + self.latency + size / self.rate
                done.append(free)
            for rank, work in enumerate(works):
                buffer_end, forward_end, backward_end = heads[rank]
                end = max([backward_end, *done]) + self.telling
                passes[rank].append(
                    WatchedPass(
                        begin=starts[rank],
                        buffer_seconds=buffer_end - starts[rank],
                        search_seconds=work.search,
                        forward_end=forward_end,
                        backward_end=backward_end,
                        end=end,
                        messages=tuple(
                            WatchedMessage(num_bytes=size, ready=ready[rank][one], done=done[one])
                            for one, size in enumerate(self.message_bytes)
                        ),
                        gradients=self._gradients(forward_end, work) if rank == 0 else (),
                    )
                )
                starts[rank] = end
        ends = [mine[-1].end + work.update for mine, work in zip(passes, self.works, strict=True)]
        for rank, mine in enumerate(passes):
            step = WatchedStep(
                begin=begin,
                passes=tuple(mine),
                update_begin=mine[-1].end,
                end=ends[rank],
                loader_seconds=works[rank].loader,
                first_batch_seconds=self.first_batch if number == 0 else 0.0,
            )
            steps[rank].append(step)
        return max(ends)

    def _gradients(self, forward_end: float, work: Work) -> tuple[ReadyGradient, ...]:
        pieces = self.gradients_a_message
        count = len(self.message_bytes) * pieces
        sizes = [
            size // pieces + (size % pieces if piece == 0 else 0)
            for size in self.message_bytes
            for piece in range(pieces)
        ]
        return tuple(
            ReadyGradient(num_bytes=size, ready=forward_end + work.backward * (number + 1) / count)
            for number, size in enumerate(sizes)
        )


def _shifted(step: WatchedStep, by: float) -> WatchedStep:
    return WatchedStep(
        begin=step.begin + by,
        loader_seconds=step.loader_seconds,
        first_batch_seconds=step.first_batch_seconds,
        passes=tuple(
            replace(
                one,
                begin=one.begin + by,
                forward_end=one.forward_end + by,
                backward_end=one.backward_end + by,
                end=one.end + by,
                messages=tuple(replace(m, ready=m.ready + by, done=m.done + by) for m in one.messages),
                gradients=tuple(replace(g, ready=g.ready + by) for g in one.gradients),
            )
            for one in step.passes
        ),
        update_begin=step.update_begin + by,
        end=step.end + by,
    )


@pytest.fixture(scope="session")
def work() -> type[Work]:
    return Work


@pytest.fixture(scope="session")
def ranks() -> type[Ranks]:
    return Ranks
