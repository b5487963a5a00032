"""The folder of a study: its files, and the settings that it was begun with."""

from __future__ import annotations

import contextlib
import datetime as dt
import fcntl
import os
import re
import secrets
import shlex
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from autosync import documents
from autosync.datasets.storage import LOCK_FLAGS, LOCK_MODE, lock_of
from autosync.datasets.studies import CLUSTER_FILE, JOURNAL_FILE, MODEL_FILE, STUDIES_FOLDER, STUDY_FILE, find_study
from autosync.documents import STRICT
from autosync.errors import InputError, OperationError
from autosync.search.measurement_effort import NORMAL_EFFORT, Effort
from autosync.search.target import Target
from autosync.specs.cluster import ClusterSpec
from autosync.specs.model import ModelSpec
from autosync.strategy.space.limits import InexactClass

DEFAULT_PROPOSER = "learned"
DEFAULT_SIMULATOR = "timeline"

CHANGEABLE = ("num_trials", "training_seconds", "budget_seconds", "patience", "effort")
"""Settings that may change when a study is resumed: how long it continues, and how much it measures."""

SCHEMA_KIND = "study"
SCHEMA_VERSION = 1


class StudyFolder:
    """The paths of a study's files."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def settings(self) -> Path:
        return self.path / STUDY_FILE

    @property
    def journal(self) -> Path:
        return self.path / JOURNAL_FILE

    @property
    def lock(self) -> Path:
        return self.path / "lock"

    @property
    def model(self) -> Path:
        return self.path / MODEL_FILE

    @property
    def cluster(self) -> Path:
        return self.path / CLUSTER_FILE

    @property
    def logs(self) -> Path:
        return self.path / "logs"

    @property
    def best(self) -> Path:
        return self.path / "best.yaml"

    @property
    def script(self) -> Path:
        """A Python file with stock DDP's settings, written if they won and do not fit on one line."""
        return self.path / "tuned_ddp.py"

    @property
    def summary(self) -> Path:
        return self.path / "summary.json"

    @property
    def report(self) -> Path:
        """The page about the study, for browsers."""
        return self.path / "report.html"

    @property
    def timelines(self) -> Path:
        """The folder of timelines that were recorded after the proof."""
        return self.path / "timelines"

    @property
    def stock_timeline(self) -> Path:
        return self.timelines / "stock-ddp.json"

    @property
    def winner_timeline(self) -> Path:
        """The winner's timeline, if the winner is not stock DDP."""
        return self.timelines / "winner.json"

    @property
    def links(self) -> dict[str, Path]:
        """The targets of the study's symbolic links that lead out of the folder, by name. Writing would follow them."""
        # Path.resolve would raise on a cycle of links.
        inside = os.path.realpath(self.path)
        ways = (self.settings, self.journal, self.lock, self.model, self.cluster, self.logs, self.best, self.script)
        return {
            way.name: Path(os.path.realpath(way))
            for way in (*ways, self.summary, self.report, self.timelines)
            if way.is_symlink() and not Path(os.path.realpath(way)).is_relative_to(inside)
        }

    @property
    def handle(self) -> str:
        """The way to name the study in commands: its name, or its path if it is not among the studies."""
        return self.path.name if self.path == Path(STUDIES_FOLDER) / self.path.name else str(self.path)

    @property
    def is_begun(self) -> bool:
        """Whether the folder holds a study. If its creator was killed before it wrote the settings, it holds none."""
        return any(path.exists() for path in (self.settings, self.journal, self.logs, self.best, self.summary))

    def hold(self) -> IO[bytes]:
        """Lock this folder until the returned file is closed or its process ends. No other process can tune in it."""
        # A folder from elsewhere may have a link or a pipe of this name. It is neither followed nor waited for.
        try:
            file = os.fdopen(os.open(self.lock, LOCK_FLAGS, LOCK_MODE), "rb")
        except OSError as error:
            raise OperationError(f"{self.lock} cannot be locked: {error.strerror}") from error
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            file.close()
            raise OperationError(f"{self.path}: this study is being tuned by another process") from error
        if not self._is_lock(file):
            # Another process has deleted the folder that it held.
            file.close()
            raise OperationError(f"{self.path}: another process has just begun this study, in vain; try again")
        return file

    def forget(self, *, whole: bool) -> None:
        """Delete the files of a study that could not be begun; with `whole` also its folder."""
        written = [self.settings, self.model, self.cluster, self.journal, lock_of(self.journal)]
        for path in [*written, self.lock] if whole else written:
            path.unlink(missing_ok=True)
        if whole:
            # If the folder has other files, it stays.
            with contextlib.suppress(OSError):
                self.path.rmdir()

    def _is_lock(self, file: IO[bytes]) -> bool:
        try:
            return os.path.samestat(self.lock.stat(), os.fstat(file.fileno()))
        except FileNotFoundError:
            return False


@dataclass(frozen=True, slots=True, kw_only=True)
class StudySettings:
    """The settings that a study was begun with.

    `task` is the model as the user named it; with `is_script`, it is the command of a script whose steps were the
    trials. `tuner` is a random name of this folder; among several folders that share a storage it identifies the trials
    of each. `storage` is a URL without its password, or None for the folder's own journal. With a `patience` of 0 a
    search never ends for lack of gains. With `training_seconds`, which no study with a number of trials of the user's
    has, it ends when the next trials are not expected to save their time in a training of this duration.
    """

    __pydantic_config__ = STRICT

    name: str
    task: str
    cluster: str = ""
    num_trials: int = 50
    training_seconds: float | None = None
    budget_seconds: float | None = None
    patience: int = 20
    trial_timeout_seconds: float = 120.0
    effort: Effort = NORMAL_EFFORT
    seed: int = 0
    proposer: str = DEFAULT_PROPOSER
    simulator: str = DEFAULT_SIMULATOR
    prior: str | None = None
    allow: tuple[InexactClass, ...] = ()
    target: Target = "autosync"
    replay: str | None = None
    storage: str | None = None
    is_script: bool = False
    tuner: str = field(default_factory=lambda: secrets.token_hex(8))

    def write(self, folder: StudyFolder) -> None:
        """Write the settings to their file."""
        documents.write(folder.settings, documents.dump(self, kind=SCHEMA_KIND, version=SCHEMA_VERSION))

    def tune_command(self, *options: str) -> str:
        """Return the command that begins a study of the same task, or tunes the same script, with these options."""
        cluster = ["--cluster", self.cluster] if self.cluster else []
        if self.is_script:
            # The script's command is one text already.
            return f"{shlex.join(['autosync', 'tune', *cluster, *options])} -- {self.task}"
        return shlex.join(["autosync", "tune", *([self.task] if self.task else []), *cluster, *options])


def read_settings(folder: StudyFolder) -> StudySettings:
    """Return the settings that a study was begun with."""
    return documents.load(folder.settings, kind=SCHEMA_KIND, version=SCHEMA_VERSION, into=StudySettings)[0]


def new_study_folder(name: str | None, model: ModelSpec, cluster: ClusterSpec) -> StudyFolder:
    """Return the folder of a new study of this name; without a name, of one made from model, cluster and time.

    Raises if the name is invalid or taken.
    """
    return folder_named_after(name, model.name, cluster.name)


def folder_named_after(name: str | None, model: str, cluster: str) -> StudyFolder:
    """Return the folder of a new study of a model on a cluster, which are given by their names."""
    if name is None:
        now = dt.datetime.now(tz=dt.UTC).strftime("%Y%m%d-%H%M%S")
        name = re.sub(r"[^A-Za-z0-9._-]+", "-", f"{model}-{cluster}").lstrip(".") + f"-{now}"
    check_name(name)
    return StudyFolder(Path(STUDIES_FOLDER) / name)


def known_study_folder(name: str) -> StudyFolder:
    """Return the folder of a study that was begun, by its path or its name."""
    path = Path(STUDIES_FOLDER) / name
    folder = StudyFolder(path if path.is_dir() else find_study(name))
    missing = [file.name for file in (folder.settings, folder.model, folder.cluster) if not file.is_file()]
    if missing:
        what = f"{folder.path} cannot be resumed: {' and '.join(missing)} missing"
        raise InputError(what, rule="a study folder has its settings, its model and its cluster")
    return folder


def check_name(name: str) -> None:
    """Refuse an invalid name of a study, and the name of a study that was begun already."""
    if not name or Path(name).name != name or name.startswith(".") or not name.isprintable():
        raise InputError(f"{name!r} is no name of a study", rule="a name without slashes that starts with no dot")
    folder = StudyFolder(Path(STUDIES_FOLDER) / name)
    if folder.is_begun:
        raise taken_error(folder.path)


def taken_error(folder: Path) -> InputError:
    """Return the error for a name that is taken."""
    rule = "a study's results are never replaced"
    return InputError(f"the study {folder} exists", rule=rule, hint=f"--resume {folder.name}, or --study NAME")
