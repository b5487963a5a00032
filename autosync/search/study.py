"""A study: one tuning run's folder, and the Optuna study in it that holds the one truth about its trials."""

from __future__ import annotations

import datetime as dt
import functools
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autosync import jsonio
from autosync.datasets.schema import Record, record_to_plain
from autosync.errors import InputError
from autosync.specs.cluster import ClusterSpec
from autosync.specs.cluster_file import save_cluster
from autosync.specs.model import ModelSpec
from autosync.specs.model_file import save_model

if TYPE_CHECKING:
    import optuna

STUDIES = Path("autosync-studies")
"""Where studies go by default, in the current folder."""


class StudyFolder:
    """Every file of a study."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def settings(self) -> Path:
        return self.path / "study.json"

    @property
    def journal(self) -> Path:
        return self.path / "journal.log"

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
    """A new study: its folder on disk and its trials in Optuna's storage."""

    def __init__(
        self, folder: StudyFolder, model: ModelSpec, cluster: ClusterSpec, settings: Mapping[str, Any]
    ) -> None:
        if folder.path.exists():
            raise InputError(
                f"the study {folder.path} exists", rule="a study's results are never replaced", hint="--study NAME"
            )
        folder.path.mkdir(parents=True)
        self.folder = folder
        self.name = folder.path.name
        jsonio.write_json(folder.settings, {"schema": "autosync.study/1", "name": self.name, **settings})
        save_model(model, folder.model)
        save_cluster(folder.cluster, cluster)

    @functools.cached_property
    def _optuna(self) -> optuna.Study:
        import optuna
        from optuna.storages import JournalStorage
        from optuna.storages.journal import JournalFileBackend

        optuna.logging.set_verbosity(optuna.logging.WARNING)
        storage = JournalStorage(JournalFileBackend(str(self.folder.journal)))
        return optuna.create_study(storage=storage, study_name=self.name, direction="minimize")

    def ask(self) -> int:
        """Begin a trial; its number."""
        return int(self._optuna.ask().number)

    def tell(self, record: Record) -> None:
        """Finish a trial: the record goes into it, its median is its value."""
        from optuna.trial import TrialState

        trial_id = self._optuna.trials[record.trial]._trial_id  # noqa: SLF001 - optuna has no public way to reopen a trial
        self._optuna._storage.set_trial_user_attr(trial_id, "record", record_to_plain(record))  # noqa: SLF001 - as above
        if record.measurement is None:
            self._optuna.tell(record.trial, state=TrialState.FAIL)
        else:
            self._optuna.tell(record.trial, record.measurement.median_seconds)


def new_study_folder(name: str | None, model: ModelSpec, cluster: ClusterSpec) -> StudyFolder:
    """The folder of a study of that name; without one, of model, cluster and time."""
    if name is None:
        now = dt.datetime.now(tz=dt.UTC).strftime("%Y%m%d-%H%M%S")
        name = f"{model.name}-{cluster.name}-{now}"
    if not name or Path(name).name != name or name.startswith("."):
        raise InputError(f"{name!r} is no name of a study", rule="a name without slashes that starts with no dot")
    return StudyFolder(STUDIES / name)
