"""From records to what is learned from: strategies as a student reads them, and what was measured of each.

Only within a group, of one model on one cluster, is one strategy faster than another. What was disturbed teaches
nothing, and neither do failures nor stock baselines, which have no strategy.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np

from autosync import jsonio
from autosync.datasets.reliability import is_disturbed
from autosync.datasets.schema import Measurement, Record
from autosync.documents import without_file
from autosync.simulators.evaluation import measured_of
from autosync.simulators.learned.losses import Positions, Targets
from autosync.simulators.shared.arrays import Floats
from autosync.strategy.files import parse_strategy
from autosync.strategy.representation import Strategy

Rows = TypeVar("Rows", bound=tuple[Any, ...])
"""A named tuple of columns, a row a strategy."""

NOISE = 0.01
"""No interval is taken to be narrower to either side, as a share: another trial may come out differently by as much."""


class TrialGroup(NamedTuple, Generic[Rows]):
    """What was measured of one model on one cluster."""

    rows: Rows
    targets: Targets
    model: str
    cluster: str


class TrialReader(Generic[Rows]):
    """Reads the strategies of records, each once however often it is asked for."""

    def __init__(self, read: Callable[[Sequence[Strategy]], Rows]) -> None:
        self._read = read
        self._place: dict[str, int] = {}
        self._rows: Rows = read([])

    def rows_of(self, records: Sequence[Record]) -> Rows:
        """A row a record, each of which has a strategy."""
        contents = [jsonio.content_hash(dict(record.strategy or {}), length=32) for record in records]
        new = {content: record for content, record in zip(contents, records, strict=True) if content not in self._place}
        if new:
            strategies = [_strategy_of(record) for record in new.values()]
            self._rows = joined([self._rows, self._read(strategies)])
            for content in new:
                self._place[content] = len(self._place)
        return taken(self._rows, np.array([self._place[content] for content in contents], dtype=np.intp))


def teaching(records: Sequence[Record]) -> list[Record]:
    """The records that something can be learned from, in an order that does not depend on theirs."""
    found = [one for one in records if one.strategy is not None and one.measurement is not None]
    found = [one for one in found if not is_disturbed(one)]
    return sorted(found, key=lambda record: (record.study, record.trial, record.started, record.strategy_id or ""))


def targets_of(measurements: Sequence[Measurement], complexity: Floats, *, group: int = 0) -> Targets:
    """What was measured, for losses. A figure that is half as certain as usual weighs less."""
    measured = measured_of(measurements, noise=NOISE)
    low, high = np.log(measured.low), np.log(measured.high)
    width = (high - low) / 2
    return Targets(
        log_seconds=np.log(measured.seconds),
        log_low=low,
        log_high=high,
        complexity=complexity,
        group=np.full(len(width), group, dtype=np.intp),
        weight=1 / (1 + (width / 0.05) ** 2),
    )


def joined(parts: Sequence[Rows]) -> Rows:
    """Rows one behind the other."""
    kind: Any = type(parts[0])
    found: Rows = kind(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))
    return found


def taken(rows: Rows, chosen: Positions) -> Rows:
    """Some of the rows."""
    kind: Any = type(rows)
    found: Rows = kind(*(column[chosen] for column in rows))
    return found


def _strategy_of(record: Record) -> Strategy:
    return parse_strategy(without_file(dict(record.strategy or {})))
