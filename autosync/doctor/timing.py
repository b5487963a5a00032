"""The parts of a step's time, derived from the evidence. Pure functions.

A rank does its own work (input, forward, backward, update), and it waits for messages. In an all-reduce every rank
waits for the last one, so a wait alone does not tell which rank is late. Two facts tell it without comparing clocks:
the late rank has the longest own work, and a message waits least on the rank that had it ready last. The shortest wait
of all ranks is therefore the time of the transfer itself.

Figures are medians over steps, so that a step that something disturbed changes none. But few steps may wait for input:
workers that read at the same time are done at the same time, and the next steps find their batches ready. So each step
has the mean wait for batches in place of its own. Only the wait for the first batch of an epoch stays in its step.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal, get_args

from autosync.doctor.evidence import Evidence, WatchedMessage, WatchedPass, WatchedStep

Phase = Literal["input", "forward", "backward", "update"]
PHASES: tuple[Phase, ...] = get_args(Phase)


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """The parts of one step on one rank, in seconds.

    `input` is the time outside passes and update: the data loader, logging, clipping. `loader` is the part of it that
    was spent waiting for DataLoaders. `buffers` is the time of buffer
    broadcasts, and `search` that of the search for unused parameters. `wait` is the wait for messages after backward
    passes. `handover` is the remaining time until DDP has handed over all gradients.
    """

    input: float
    loader: float
    forward: float
    backward: float
    update: float
    buffers: float
    search: float
    wait: float
    handover: float

    @property
    def own(self) -> float:
        """The rank's own work, which it does without waiting for others."""
        return self.input + self.forward + self.backward + self.update + self.search

    @property
    def compute(self) -> float:
        return self.forward + self.backward + self.handover + self.update


def parts_of(step: WatchedStep) -> Parts:
    """Return the parts of one step."""
    forward = backward = buffers = search = wait = handover = 0.0
    for one in step.passes:
        buffers += one.buffer_seconds
        search += one.search_seconds
        forward += max(one.forward_end - one.begin - one.buffer_seconds - one.search_seconds, 0.0)
        backward += one.backward_end - one.forward_end
        arrived = max([one.backward_end, *(message.done for message in one.messages)])
        wait += min(arrived, one.end) - one.backward_end
        handover += one.end - min(arrived, one.end)
    update = step.end - step.update_begin
    rest = step.seconds - (forward + backward + buffers + search + wait + handover + update)
    return Parts(
        input=max(rest, 0.0),
        loader=min(step.loader_seconds, max(rest, 0.0)),
        forward=forward,
        backward=backward,
        update=update,
        buffers=buffers,
        search=search,
        wait=wait,
        handover=handover,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """The parts of every step on every rank: `parts[rank][step]`, and the seconds of a step (the median)."""

    parts: tuple[tuple[Parts, ...], ...]
    step_seconds: float

    @property
    def num_ranks(self) -> int:
        return len(self.parts)

    def typical(self, read: Callable[[Parts], float]) -> float:
        """Return a part on a typical rank in a typical step. Of two ranks, the one with the shorter part counts."""
        return statistics.median_low([statistics.median(map(read, steps)) for steps in self.parts])

    def shortest(self, read: Callable[[Parts], float], ranks: Sequence[int] | None = None) -> float:
        """Return the median over steps of a part on the rank where it is shortest."""
        return statistics.median(self._shortest_of_steps(read, ranks))

    def mean_of_shortest(self, read: Callable[[Parts], float], ranks: Sequence[int]) -> float:
        """Return the mean over steps of a part on the rank where it is shortest."""
        return statistics.fmean(self._shortest_of_steps(read, ranks))

    def _shortest_of_steps(self, read: Callable[[Parts], float], ranks: Sequence[int] | None) -> list[float]:
        chosen = self.parts if ranks is None else [self.parts[rank] for rank in ranks]
        return [min(map(read, step)) for step in zip(*chosen, strict=True)]

    @property
    def exposed(self) -> float:
        """The seconds of a step in which ranks wait for transfers alone: the wait of the rank that waits least."""
        return self.shortest(lambda parts: parts.wait)


def timing_of(evidence: Evidence) -> Timing:
    """Return the parts of all steps of all ranks."""
    parts, seconds = [], []
    for one in evidence.ranks:
        own = list(map(parts_of, one.steps))
        added = _to_mean_wait(own, one.steps)
        parts.append(
            tuple(replace(a, input=a.input + more, loader=a.loader + more) for a, more in zip(own, added, strict=True))
        )
        seconds.append([step.seconds + more for step, more in zip(one.steps, added, strict=True)])
    return Timing(parts=tuple(parts), step_seconds=statistics.median(map(max, zip(*seconds, strict=True))))


def _to_mean_wait(parts: Sequence[Parts], steps: Sequence[WatchedStep]) -> list[float]:
    """Return for each step of a rank by how much its wait for batches falls short of the mean, first batches aside."""
    waits = [max(one.loader - step.first_batch_seconds, 0.0) for one, step in zip(parts, steps, strict=True)]
    mean = statistics.fmean(waits)
    return [mean - wait for wait in waits]


ALIKE = 0.7
"""A rank is late like the latest one if its delay is at least this share of that one's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lateness:
    """The ranks that the others wait for, the longest delay in seconds of a step, and the phase with most of it.

    Usually it is one rank; of several, all are late alike. `steps_share` is the share of steps in which one of these
    ranks was the last. `messages_share` is the share of messages that were ready last on one of them.
    """

    ranks: tuple[int, ...]
    others: tuple[int, ...]
    seconds: float
    phase: Phase
    steps_share: float
    messages_share: float


def lateness_of(evidence: Evidence, timing: Timing) -> Lateness | None:
    """Return the ranks whose own work most exceeds that of their peers; None if one rank trains alone."""
    if timing.num_ranks < 2:
        return None
    excesses = [
        statistics.median(_excesses(evidence, timing, rank, lambda parts: parts.own))
        for rank in range(timing.num_ranks)
    ]
    seconds = max(excesses)
    latest = excesses.index(seconds)
    ranks = [rank for rank, excess in enumerate(excesses) if rank == latest or excess >= ALIKE * seconds > 0]
    if len(ranks) == timing.num_ranks:
        ranks = [latest]
    others = [rank for rank in range(timing.num_ranks) if rank not in ranks]
    by_phase = {phase: statistics.median(_excesses(evidence, timing, latest, _reader(phase))) for phase in PHASES}
    phase = max(PHASES, key=lambda one: by_phase[one])
    steps = list(zip(*timing.parts, strict=True))
    num_last = sum(max(step[rank].own for rank in ranks) >= max(step[rank].own for rank in others) for step in steps)
    return Lateness(
        ranks=tuple(ranks),
        others=tuple(others),
        seconds=max(seconds, 0.0),
        phase=phase,
        steps_share=num_last / len(steps),
        messages_share=_last_share(evidence, ranks),
    )


def _reader(phase: Phase) -> Callable[[Parts], float]:
    def read(parts: Parts) -> float:
        seconds: float = getattr(parts, phase)
        return seconds

    return read


def _excesses(evidence: Evidence, timing: Timing, rank: int, read: Callable[[Parts], float]) -> list[float]:
    """Return for each step how much longer a part is on a rank than on its peers.

    The peers are the ranks of other nodes, because a slow node makes all its ranks late. On a single node, they are all
    other ranks.
    """
    nodes = evidence.nodes
    elsewhere = [steps for node, steps in zip(nodes, timing.parts, strict=True) if node != nodes[rank]]
    peers = elsewhere or [steps for number, steps in enumerate(timing.parts) if number != rank]
    return [
        read(mine) - statistics.median(read(peer[number]) for peer in peers)
        for number, mine in enumerate(timing.parts[rank])
    ]


def messages_of(evidence: Evidence) -> list[tuple[WatchedMessage, ...]]:
    """Return each message as all ranks noted it, for the steps in which all ranks sent the same messages."""
    found: list[tuple[WatchedMessage, ...]] = []
    for same in zip(*(one.steps for one in evidence.ranks), strict=True):
        lists = [[message for one in step.passes for message in one.messages] for step in same]
        if len({tuple(message.num_bytes for message in messages) for messages in lists}) == 1:
            found += zip(*lists, strict=True)
    return found


def _last_share(evidence: Evidence, ranks: Sequence[int]) -> float:
    """Return the share of messages that waited least on one of some ranks, which therefore had them ready last."""
    messages = messages_of(evidence)
    last = sum(min(range(len(same)), key=lambda r: same[r].done - same[r].ready) in ranks for same in messages)
    return last / len(messages) if messages else 0.0


def synchronised(step: WatchedStep) -> list[WatchedPass]:
    """Return the passes of a step whose gradients were sent."""
    return [one for one in step.passes if one.messages]
