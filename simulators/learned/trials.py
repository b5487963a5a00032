"""Turns records into training data: strategies as a student reads them, with their measurements.

Strategies are compared only within a group, of one model on one cluster. Nothing is learned from disturbed records, nor
from failures, stock baselines (they have no strategy) and strategies with stages (learned simulators cannot read them).
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
"""A named tuple of columns, with a row for each strategy."""

NOISE = 0.01
"""The least width of an interval to either side, as a share, because another trial may differ by this much."""


class TrialGroup(NamedTuple, Generic[Rows]):
    """The measurements of one model on one cluster."""

    rows: Rows
    targets: Targets
    model: str
    cluster: str


class TrialReader(Generic[Rows]):
    """Reads the strategies of records. Each strategy is read only once."""

    def __init__(self, read: Callable[[Sequence[Strategy]], Rows]) -> None:
        self._read = read
        self._place: dict[str, int] = {}
        self._rows: Rows = read([])

    def rows_of(self, records: Sequence[Record]) -> Rows:
        """Return a row for each record; every record must have a strategy."""
        contents = [jsonio.content_hash(dict(record.strategy or {}), length=32) for record in records]
        new = {content: record for content, record in zip(contents, records, strict=True) if content not in self._place}
        if new:
            strategies = [_strategy_of(record) for record in new.values()]
            self._rows = joined([self._rows, self._read(strategies)])
            for content in new:
                self._place[content] = len(self._place)
        return taken(self._rows, np.array([self._place[content] for content in contents], dtype=np.intp))


def teaching(records: Sequence[Record]) -> list[Record]:
    """Return the records to learn from, in an order that does not depend on theirs."""
    found = [one for one in records if one.strategy is not None and not one.strategy.get("stages")]
    found = [one for one in found if one.measurement is not None and not is_disturbed(one)]
    return sorted(found, key=lambda record: (record.study, record.trial, record.started, record.strategy_id or ""))


def targets_of(measurements: Sequence[Measurement], complexity: Floats, *, group: int = 0) -> Targets:
    """Return the measurements as the targets of losses. A figure with a wide interval weighs less."""
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
    """Return the rows of all parts as one."""
    kind: Any = type(parts[0])
    found: Rows = kind(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))
    return found


def taken(rows: Rows, chosen: Positions) -> Rows:
    """Return some of the rows."""
    kind: Any = type(rows)
    found: Rows = kind(*(column[chosen] for column in rows))
    return found


def _strategy_of(record: Record) -> Strategy:
    return parse_strategy(without_file(dict(record.strategy or {})))
