"""Learned simulators in simulator_accuracy.py: every strategy is read once, and then used for many trainings."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from autosync.simulators.evaluation import Accuracy, Measured, accuracy_of, mean_accuracy
from autosync.simulators.features.reader import Read, StrategyReader
from autosync.simulators.learned import linear, sequence
from autosync.simulators.learned.boosted import UNTAUGHT, Boosted
from autosync.simulators.learned.linear import LinearRows, LinearStudent
from autosync.simulators.learned.losses import Targets
from autosync.simulators.learned.priors import Lot
from autosync.simulators.learned.ranker import Lesson, RankerStudent
from autosync.simulators.learned.sequence import SequenceStudent
from autosync.simulators.learned.simulators import PASSES
from autosync.simulators.learned.student import Student
from autosync.simulators.learned.trials import TrialGroup as Learned
from autosync.simulators.learned.trials import TrialReader, taken, targets_of
from autosync.simulators.learned.variables import SequenceRows
from benchmarks.simulator_accuracy.targets import Target, rounded

Floats = npt.NDArray[np.float64]
Positions = npt.NDArray[np.intp]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Room:
    """A lot as all learned simulators read it. `place` has the row of each strategy."""

    lot: Lot
    reader: StrategyReader
    rows: Read
    linear_student: LinearStudent
    linear_rows: LinearRows
    sequence_student: SequenceStudent | None
    sequence_rows: SequenceRows | None
    targets: Targets
    place: Mapping[str, int]

    def linear_group(self) -> Learned[LinearRows]:
        """Return the lot as the linear ranker learns from it."""
        return Learned(self.linear_rows, self.targets, self.lot.model_name, self.lot.cluster.name)

    def sequence_group(self) -> Learned[SequenceRows]:
        """Return the lot as the sequence model learns from it."""
        assert self.sequence_rows is not None
        return Learned(self.sequence_rows, self.targets, self.lot.model_name, self.lot.cluster.name)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Course:
    """All lots as rows; each lot is read only once."""

    rooms: tuple[Room, ...]

    def lessons(self, target: Target, *, trials: int, few: int, draws: int) -> Lessons:
        """Return the lessons for one target."""
        (room,) = [room for room in self.rooms if room.lot is target.lot]
        strangers = [
            other
            for other in self.rooms
            if other.lot.model_name != room.lot.model_name and other.lot.cluster.name != room.lot.cluster.name
        ]
        return Lessons(
            room=room,
            strangers=tuple(strangers),
            prior=prior_of(strangers),
            target=target,
            trials=trials,
            few=few,
            draws=draws,
        )


def course_of(
    lots: Sequence[Lot], targets: Sequence[Target], *, with_sequence: bool, tell: Callable[[str], None]
) -> Course:
    """Read all lots, which takes most of the time.

    The sequence model is judged on targets only, and trained on all lots.
    """
    assert targets
    rooms = []
    for number, lot in enumerate(lots, start=1):
        tell(f"reading {number}/{len(lots)}: {lot.model.name} on {lot.cluster.name}, {len(lot.records)} records")
        reader = StrategyReader(lot.model, lot.cluster)
        rows = TrialReader(reader.read).rows_of(lot.records)
        line = LinearStudent(lot.model, lot.cluster)
        network = SequenceStudent(lot.model, lot.cluster) if with_sequence else None
        measurements = [record.measurement for record in lot.records if record.measurement is not None]
        rooms.append(
            Room(
                lot=lot,
                reader=reader,
                rows=rows,
                linear_student=line,
                linear_rows=TrialReader(line.read).rows_of(lot.records),
                sequence_student=network,
                sequence_rows=TrialReader(network.read).rows_of(lot.records) if network else None,
                targets=targets_of(measurements, rows.complexity),
                place={record.strategy_id or "": row for row, record in enumerate(lot.records)},
            )
        )
    return Course(rooms=tuple(rooms))


def prior_of(rooms: Sequence[Room]) -> Boosted:
    """Return a ranker that was trained on these rooms."""
    lesson = Lesson()
    for room in rooms:
        lesson.add(room.reader, room.rows, room.targets, model=room.lot.model_name)
    return lesson.prior()


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Lessons:
    """The lessons for one target: its own trials, and `strangers`, which share neither its model nor its cluster.

    `prior` was trained on all strangers.
    """

    room: Room
    strangers: tuple[Room, ...]
    prior: Boosted
    target: Target
    trials: int
    few: int
    draws: int

    def after_trials(self) -> dict[str, Accuracy]:
        """Return the accuracy from scratch, after trials of the target alone."""
        room = self.room
        found = {
            "learned": self._mean(RankerStudent(room.reader), room.rows, self.trials),
            "linear": self._mean(room.linear_student, room.linear_rows, self.trials),
        }
        if room.sequence_student is not None and room.sequence_rows is not None:
            found["sequence"] = self._mean(room.sequence_student, room.sequence_rows, self.trials)
        return found

    def transfer(self) -> dict[str, Accuracy]:
        """Return the accuracy with a prior from strangers: after no trial, few trials, and as many as from scratch."""
        if not self.strangers:
            return {}
        room = self.room
        student = RankerStudent(room.reader, prior=self.prior)
        line = linear.line_of([stranger.linear_group() for stranger in self.strangers])
        line_student = LinearStudent(room.lot.model, room.lot.cluster, prior=line)
        found = {
            "learned, no trial": self._mean(student, room.rows, 0),
            f"learned, {self.few} trials": self._mean(student, room.rows, self.few),
            f"learned, {self.trials} trials": self._mean(student, room.rows, self.trials),
            f"learned from scratch, {self.few} trials": self._mean(RankerStudent(room.reader), room.rows, self.few),
            "linear, no trial": self._mean(line_student, room.linear_rows, 0),
            f"linear, {self.few} trials": self._mean(line_student, room.linear_rows, self.few),
        }
        if room.sequence_rows is not None:
            groups = [stranger.sequence_group() for stranger in self.strangers]
            network = sequence.train(groups, passes=PASSES)
            student_of = SequenceStudent(room.lot.model, room.lot.cluster, prior=network)
            found["sequence, no trial"] = self._mean(student_of, room.sequence_rows, 0)
            found[f"sequence, {self.few} trials"] = self._mean(student_of, room.sequence_rows, self.few)
        return found

    def _mean(self, student: Student[Any], rows: Any, trials: int) -> Accuracy:
        """Return the mean accuracy over draws."""
        found = []
        for told, others in self._draws(trials):
            taught = student.taught(taken(rows, told), self.room.targets.rows(told))
            log_seconds, _ = taught.predict(taken(rows, others))
            found.append(accuracy_of(self._measured(others), np.exp(log_seconds)))
        return dataclasses.replace(
            mean_accuracy(found), num_strategies=found[-1].num_strategies, num_pairs=found[-1].num_pairs
        )

    def _draws(self, trials: int) -> Iterator[tuple[Positions, Positions]]:
        """Yield for each draw the rows to learn from and the rows to judge on.

        All numbers of trials are judged on the same rows, so that figures are comparable.
        """
        rows = np.array([self.room.place[record.strategy_id or ""] for record in self.target.records])
        for told, others in self.target.draws(self.trials, self.draws):
            yield rows[told[:trials]], rows[others]

    def _measured(self, rows: Positions) -> Measured:
        place = {row: number for number, row in enumerate(self._rows)}
        return self.target.rows(np.array([place[row] for row in rows.tolist()], dtype=np.intp))

    @property
    def _rows(self) -> tuple[int, ...]:
        return tuple(self.room.place[record.strategy_id or ""] for record in self.target.records)


def _key(room: Room, by: str) -> str:
    """Return the name of the room's model, without slow motion, or of its cluster."""
    return room.lot.model_name if by == "model" else room.lot.cluster.name


def held_out(course: Course, by: str) -> dict[str, dict[str, Any]]:
    """Return for each model (or cluster) the accuracy there, without a trial, of a ranker trained on all others.

    It is judged on all undisturbed records and compared with the timeline, which it corrects. If there is only one
    model (or cluster), there is nothing to hold out.
    """
    names = sorted({_key(room, by) for room in course.rooms})
    found: dict[str, dict[str, Any]] = {}
    for name in names if len(names) > 1 else []:
        prior = prior_of([room for room in course.rooms if _key(room, by) != name])
        rooms = [room for room in course.rooms if _key(room, by) == name]
        found[name] = {
            "records": sum(len(room.lot.records) for room in rooms),
            "timeline": rounded(mean_accuracy([_accuracy_in(room, UNTAUGHT) for room in rooms])),
            "learned": rounded(mean_accuracy([_accuracy_in(room, prior) for room in rooms])),
        }
    return found


def _accuracy_in(room: Room, prior: Boosted) -> Accuracy:
    taught = RankerStudent(room.reader, prior=prior).taught(
        taken(room.rows, np.empty(0, dtype=np.intp)), room.targets.rows(np.empty(0, dtype=np.intp))
    )
    log_seconds, _ = taught.predict(room.rows)
    targets = room.targets
    measured = Measured(*(np.exp(one) for one in (targets.log_seconds, targets.log_low, targets.log_high)))
    return accuracy_of(measured, np.exp(log_seconds))
