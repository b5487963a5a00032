"""The shared parts of proposers: reading a history, and taking the new strategies from a stream."""

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
"""The number of consecutive draws without a new strategy after which a domain counts as exhausted."""

Sourced = tuple[str, Strategy]
"""A strategy and its origin."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TriedStrategy:
    """A tried strategy with its seconds a step and the largest peak memory of a rank; None for both if it failed."""

    strategy: Strategy
    strategy_id: str
    seconds: float | None
    memory_bytes: int | None


class HistoryReader:
    """Reads the histories of one study. It parses each strategy once."""

    def __init__(self) -> None:
        self._strategies: dict[str, Strategy] = {}

    def outcomes(self, history: Sequence[Record]) -> list[TriedStrategy]:
        """Return the outcome of each trial of a strategy, in the order of the trials; trials of stock DDP have none."""
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
    """Return the measured strategies, the fastest first; equals keep their order."""
    return sorted((one for one in outcomes if one.seconds is not None), key=lambda one: one.seconds or 0.0)


def seen_ids(outcomes: Iterable[TriedStrategy], taken: Collection[str]) -> set[str]:
    """Return the ids of strategies that must not be proposed again."""
    return {*taken, *(one.strategy_id for one in outcomes)}


def new_ones(ground: Ground, stream: Iterable[Sourced], count: int, seen: set[str]) -> list[Candidate]:
    """Return the first `count` strategies of a stream that are new and in the domain, and add them to `seen`."""
    found: list[Candidate] = []
    idle = 0
    for origin, strategy in stream:
        if len(found) == count or idle == MAX_IDLE:
            break
        idle += 1
        one = candidate(origin, strategy, ground.model, ground.cluster)
        if one.strategy_id not in seen and ground.domain.contains(strategy):
            # Strategies outside the domain are not remembered: they are rare, and `seen` is for tried strategies.
            seen.add(one.strategy_id)
            found.append(one)
            idle = 0
    return found


def new_or_sampled(
    ground: Ground, stream: Iterable[Sourced], count: int, seen: set[str], rng: random.Random
) -> list[Candidate]:
    """Return the first new strategies of a stream; if it has none, new samples of the domain."""
    return new_ones(ground, stream, count, seen) or new_ones(ground, samples(ground, rng), count, seen)


def samples(ground: Ground, rng: random.Random) -> Iterator[Sourced]:
    """Return an endless iterator over samples of the domain."""
    return (("sampled", ground.domain.sample(rng)) for _ in itertools.count())
