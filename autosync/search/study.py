"""A study: one tuning run's folder, and the Optuna study in it that holds the one truth about its trials."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autosync import jsonio
from autosync.datasets.schema import Record, record_to_plain
from autosync.datasets.studies import JOURNAL_FILE, RECORD_ATTRIBUTE, STUDIES_FOLDER, STUDY_FILE
from autosync.errors import InputError
from autosync.specs.cluster import ClusterSpec
from autosync.specs.cluster_file import save_cluster
from autosync.specs.model import ModelSpec
from autosync.specs.model_file import save_model

if TYPE_CHECKING:
    import optuna


class StudyFolder:
    """Every file of a study."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def settings(self) -> Path:
        return self.path / STUDY_FILE

    @property
    def journal(self) -> Path:
        return self.path / JOURNAL_FILE

    @property
    def model(self) -> Path:
        return self.path / "model.yaml"

    @property
    def cluster(self) -> Path:
        return self.path / "cluster.yaml"

    @property
    def logs(self) -> Path:
        return self.path / "logs"

    @property
    def best(self) -> Path:
        return self.path / "best.yaml"

    @property
    def summary(self) -> Path:
        return self.path / "summary.json"


class Study:
    """A new study: its folder on disk and its trials in Optuna's storage.

    Each trial is in the journal from the moment it ends, so whatever interrupts a study leaves the trials before.
    """

    def __init__(
        self, folder: StudyFolder, model: ModelSpec, cluster: ClusterSpec, settings: Mapping[str, Any]
    ) -> None:
        folder.path.parent.mkdir(parents=True, exist_ok=True)
        try:
            # Whoever makes the folder has the study: two that begin at once do not share one.
            folder.path.mkdir()
        except FileExistsError as error:
            rule = "a study's results are never replaced"
            raise InputError(f"the study {folder.path} exists", rule=rule, hint="--study NAME") from error
        self.folder = folder
        self.name = folder.path.name
        jsonio.write_json(folder.settings, {"schema": "autosync.study/1", "name": self.name, **settings})
        save_model(model, folder.model)
        save_cluster(folder.cluster, cluster)
        self._optuna = _create(self.name, folder.journal)
        self._asked: dict[int, optuna.trial.Trial] = {}

    def ask(self) -> int:
        """Begin a trial; its number."""
        trial = self._optuna.ask()
        self._asked[trial.number] = trial
        return trial.number

    def tell(self, record: Record) -> None:
        """Finish a trial: the record goes into it, its median is its value."""
        from optuna.trial import TrialState

        trial = self._asked.pop(record.trial)
        trial.set_user_attr(RECORD_ATTRIBUTE, record_to_plain(record))
        if record.measurement is None:
            self._optuna.tell(trial, state=TrialState.FAIL)
        else:
            self._optuna.tell(trial, record.measurement.median_seconds)


def _create(name: str, journal: Path) -> optuna.Study:
    import optuna
    from optuna.storages import JournalStorage
    from optuna.storages.journal import JournalFileBackend

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    storage = JournalStorage(JournalFileBackend(str(journal)))
    return optuna.create_study(storage=storage, study_name=name, direction="minimize")


def new_study_folder(name: str | None, model: ModelSpec, cluster: ClusterSpec) -> StudyFolder:
    """The folder of a study of that name; without one, of model, cluster and time. Refuses what is no name or taken."""
    if name is None:
        now = dt.datetime.now(tz=dt.UTC).strftime("%Y%m%d-%H%M%S")
        name = re.sub(r"[^A-Za-z0-9._-]+", "-", f"{model.name}-{cluster.name}").lstrip(".") + f"-{now}"
    check_name(name)
    return StudyFolder(Path(STUDIES_FOLDER) / name)


def check_name(name: str) -> None:
    """Refuse what is no name of a study, or one that has its folder already."""
    if not name or Path(name).name != name or name.startswith(".") or not name.isprintable():
        raise InputError(f"{name!r} is no name of a study", rule="a name without slashes that starts with no dot")
    folder = Path(STUDIES_FOLDER) / name
    if folder.exists():
        raise InputError(f"the study {folder} exists", rule="a study's results are never replaced", hint="--study NAME")
