"""What proposers have in common: reading a history, and picking what is new of a stream of strategies."""

from __future__ import annotations

import itertools
import random
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass

from autosync.datasets.schema import Record
from autosync.search.candidates import Candidate, candidate, strategy_of
from autosync.search.proposers.interface import Ground
from autosync.strategy.representation import Strategy

MAX_IDLE = 400
"""Draws in a row that bring nothing new before a domain counts as exhausted."""

Sourced = tuple[str, Strategy]
"""A strategy and where it comes from."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TriedStrategy:
    """A strategy of ours that was tried: its seconds a step and its largest peak memory, None where it failed."""

    strategy: Strategy
    strategy_id: str
    seconds: float | None
    memory_bytes: int | None


class HistoryReader:
    """Reads histories of one study. Strategies that it has read once it keeps."""

    def __init__(self) -> None:
        self._strategies: dict[str, Strategy] = {}

    def outcomes(self, history: Sequence[Record]) -> list[TriedStrategy]:
        """What became of each strategy of ours, in the order in which they were tried."""
        return [self._outcome(record) for record in history if record.strategy is not None]

    def _outcome(self, record: Record) -> TriedStrategy:
        assert record.strategy_id is not None, "a strategy of ours has an id"
        strategy = self._strategies.get(record.strategy_id)
        if strategy is None:
            strategy = self._strategies[record.strategy_id] = strategy_of(record)
        measured = record.measurement
        return TriedStrategy(
            strategy=strategy,
            strategy_id=record.strategy_id,
            seconds=None if measured is None else measured.median_seconds,
            memory_bytes=None if measured is None else max(measured.peak_memory_bytes),
        )


def fastest(outcomes: Iterable[TriedStrategy]) -> list[TriedStrategy]:
    """Those that were measured, the fastest first; of equals the one that was tried first."""
    return sorted((one for one in outcomes if one.seconds is not None), key=lambda one: one.seconds or 0.0)


def seen_ids(outcomes: Iterable[TriedStrategy], taken: Collection[str]) -> set[str]:
    """The ids of what is not to be proposed."""
    return {*taken, *(one.strategy_id for one in outcomes)}


def new_ones(ground: Ground, stream: Iterable[Sourced], count: int, seen: set[str]) -> list[Candidate]:
    """The first strategies of a stream that are new and in the domain; what is picked is added to `seen`."""
    found: list[Candidate] = []
    idle = 0
    for origin, strategy in stream:
        if len(found) == count or idle == MAX_IDLE:
            break
        idle += 1
        one = candidate(origin, strategy, ground.model, ground.cluster)
        if one.strategy_id not in seen and ground.domain.contains(strategy):
            # What the domain does not contain is not remembered: it is rare, and `seen` is what was tried.
            seen.add(one.strategy_id)
            found.append(one)
            idle = 0
    return found


def new_or_sampled(
    ground: Ground, stream: Iterable[Sourced], count: int, seen: set[str], rng: random.Random
) -> list[Candidate]:
    """The first new strategies of a stream; where it brings none any more, the rest of the domain may have others."""
    return new_ones(ground, stream, count, seen) or new_ones(ground, samples(ground, rng), count, seen)


def samples(ground: Ground, rng: random.Random) -> Iterator[Sourced]:
    """Strategies from anywhere in the domain, without end."""
    return (("sampled", ground.domain.sample(rng)) for _ in itertools.count())
