"""The learned simulators as the catalogue opens them.

`prior` is a folder that training has saved, or a dataset to learn from now. Without one, `learned` uses the shipped
ranker if it fits this version; the others start untrained.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from importlib import resources
from pathlib import Path

from autosync.datasets.dataset import Dataset
from autosync.errors import InputError
from autosync.simulators.features.reader import Read, StrategyReader
from autosync.simulators.learned import linear, sequence
from autosync.simulators.learned.boosted import UNTAUGHT, Boosted
from autosync.simulators.learned.files import is_saved
from autosync.simulators.learned.linear import LinearModel, LinearRows, LinearStudent
from autosync.simulators.learned.priors import Lot, groups_of, lots_of
from autosync.simulators.learned.ranker import Lesson, RankerStudent, load_ranker
from autosync.simulators.learned.sequence import Sequencer, SequenceStudent
from autosync.simulators.learned.student import StudentSimulator
from autosync.simulators.learned.variables import SequenceRows
from autosync.specs.cluster import ClusterSpec
from autosync.specs.model import ModelSpec

Stamp = tuple[tuple[str, int, int], ...]
"""The names, times and sizes of files."""

PASSES = 40
"""How often the sequence model sees a batch of each group of a dataset."""


def open_learned(model: ModelSpec, cluster: ClusterSpec, *, prior: Path | None = None) -> StudentSimulator[Read]:
    """Return the simulator `learned`, with a prior."""
    found = shipped_ranker() if prior is None else _ranker(*_stamped(prior))
    return StudentSimulator(RankerStudent(StrategyReader(model, cluster), prior=found))


def open_linear(model: ModelSpec, cluster: ClusterSpec, *, prior: Path | None = None) -> StudentSimulator[LinearRows]:
    """Return the simulator `linear`, the baseline of twelve features."""
    found = linear.UNTAUGHT if prior is None else _line(*_stamped(prior))
    return StudentSimulator(LinearStudent(model, cluster, prior=found))


def open_sequence(
    model: ModelSpec, cluster: ClusterSpec, *, prior: Path | None = None
) -> StudentSimulator[SequenceRows]:
    """Return the simulator `sequence`, the baseline that reads the variables in sequence."""
    found = sequence.UNTAUGHT if prior is None else _sequencer(*_stamped(prior))
    return StudentSimulator(SequenceStudent(model, cluster, prior=found))


def shipped_folder() -> Path:
    """Return the folder of the shipped ranker, beside the shipped records."""
    return Path(str(resources.files("autosync.datasets"))) / "ranker"


@functools.cache
def shipped_ranker() -> Boosted:
    """Return the shipped ranker; an untrained one if none ships or the simulators that it corrects have changed."""
    if not is_saved(shipped_folder()):
        return UNTAUGHT
    try:
        return load_ranker(shipped_folder())
    except InputError:
        return UNTAUGHT


def ranker_of(lots: Sequence[Lot]) -> tuple[Boosted, Lesson]:
    """Return a prior that learned from lots, and the lesson that it learned from."""
    lesson = Lesson()
    readers: list[StrategyReader] = []

    def enrol(model: ModelSpec, cluster: ClusterSpec) -> RankerStudent:
        readers.append(StrategyReader(model, cluster))
        return RankerStudent(readers[-1])

    for group in groups_of(lots, enrol):
        lesson.add(readers[-1], group.rows, group.targets, model=group.model)
    return lesson.prior(), lesson


def _stamped(prior: Path) -> tuple[Path, Stamp]:
    """Return a prior with the names, times and sizes of its files. When they change, the prior is read again."""
    path = Path(prior)
    if not is_saved(path):
        Dataset(path)  # refuses a folder without records, which may be large
    whole = path.resolve()
    files = sorted(whole.rglob("*")) if whole.is_dir() else [whole]
    found = [(file, file.stat()) for file in files if file.is_file()]
    return path, tuple([(str(file), about.st_mtime_ns, about.st_size) for file, about in found])


@functools.lru_cache(maxsize=2)
def _ranker(prior: Path, _of: Stamp) -> Boosted:
    return load_ranker(prior) if is_saved(prior) else ranker_of(lots_of(prior))[0]


@functools.lru_cache(maxsize=2)
def _line(prior: Path, _of: Stamp) -> LinearModel:
    if is_saved(prior):
        return linear.load_line(prior)
    return linear.line_of(list(groups_of(lots_of(prior), LinearStudent)))


@functools.lru_cache(maxsize=2)
def _sequencer(prior: Path, _of: Stamp) -> Sequencer:
    if is_saved(prior):
        return sequence.load_sequencer(prior)
    return sequence.train(list(groups_of(lots_of(prior), SequenceStudent)), passes=PASSES)
