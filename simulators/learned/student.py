"""The shared parts of learned simulators: they read strategies and learn from measurements.

A *student* reads strategies of one model on one cluster and learns from trials; the result of learning is an object
that *predicts*. A student starts with everything that was learned from other models and clusters.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Generic, Protocol, TypeVar

import numpy as np

from autosync.datasets.schema import Record
from autosync.simulators.interface import Prediction
from autosync.simulators.learned.losses import Targets
from autosync.simulators.learned.trials import Rows, TrialReader, targets_of, teaching
from autosync.simulators.shared.arrays import Floats
from autosync.strategy.representation import Strategy

_Rows_contra = TypeVar("_Rows_contra", bound=tuple[Any, ...], contravariant=True)


class Taught(Protocol[_Rows_contra]):
    """The result of learning: it predicts."""

    def predict(self, rows: _Rows_contra) -> tuple[Floats, Floats]:
        """Return the log of the seconds of each row, and its standard deviation."""


class Student(Protocol[Rows]):
    """Reads and learns, for one model on one cluster."""

    @property
    def name(self) -> str:
        """The name of the simulator."""

    def read(self, strategies: Sequence[Strategy]) -> Rows:
        """Return strategies as rows, in their order."""

    def complexity(self, rows: Rows) -> Floats:
        """Return the complexity of each strategy. Among equally fast strategies the simplest comes first."""

    def taught(self, rows: Rows, targets: Targets) -> Taught[Rows]:
        """Return the predictor after these trials, which may be none."""


class StudentSimulator(Generic[Rows]):
    """A student as a simulator."""

    def __init__(self, student: Student[Rows]) -> None:
        self._student = student
        self._trials: TrialReader[Rows] = TrialReader(student.read)
        self._taught: Taught[Rows] | None = None

    @property
    def name(self) -> str:
        """The name of the simulator."""
        return self._student.name

    def predict(self, strategies: Sequence[Strategy]) -> list[Prediction]:
        """Return one prediction for each strategy, in their order."""
        if self._taught is None:
            self.learn([])
        assert self._taught is not None
        if not strategies:
            return []
        log_seconds, spread = self._taught.predict(self._student.read(strategies))
        return [
            Prediction(seconds=seconds, spread=unsure)
            for seconds, unsure in zip(np.exp(log_seconds).tolist(), spread.tolist(), strict=True)
        ]

    def learn(self, records: Sequence[Record]) -> None:
        """Learn from all trials so far, from scratch."""
        chosen = teaching(records)
        rows = self._trials.rows_of(chosen)
        measurements = [record.measurement for record in chosen if record.measurement is not None]
        self._taught = self._student.taught(rows, targets_of(measurements, self._student.complexity(rows)))
