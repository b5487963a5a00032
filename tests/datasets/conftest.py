"""Records to work with, and studies with real Optuna journals."""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import optuna
import pytest
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import TrialState

from autosync.datasets.schema import Failure, Measurement, Record, record_to_plain

MakeRecord = Callable[..., Record]
MakeStudy = Callable[..., Path]


@pytest.fixture
def make_record() -> MakeRecord:
    """A record of a measured trial, with the given fields instead of its own."""

    def make(**changes: Any) -> Record:
        fields: dict[str, Any] = {
            "study": "nightly",
            "trial": 0,
            "origin": "preset:ddp",
            "model_name": "resnet50",
            "model_fingerprint": "0123456789abcdef",
            "cluster_name": "4-hosts",
            "cluster_fingerprint": "fedcba9876543210",
            "strategy": {"schema": "autosync.strategy/1", "messages": [{"parts": ["w", "b"], "priority": 1}]},
            "strategy_id": "s-1",
            "plan_id": "p-1",
            "classes": ("exact",),
            "measurement": Measurement(
                step_seconds=((0.11, 0.12, 0.3), (0.1, 0.13, 0.2)),
                median_seconds=0.13,
                low_seconds=0.11,
                high_seconds=0.3,
                num_warmup_steps=3,
                peak_memory_bytes=(2**31, 2**31 + 1),
            ),
            "environment": {"python": "3.11.9", "torch": "2.13.0", "backend": "gloo"},
            "compute": "real",
            "network": "emulated",
            "started": "2026-01-31T12:00:00+00:00",
        }
        return Record(**(fields | changes))

    return make


@pytest.fixture
def make_failed(make_record: MakeRecord) -> MakeRecord:
    """A record of a failed trial."""

    def make(message: str = "no answer", **changes: Any) -> Record:
        return make_record(measurement=None, failure=Failure(kind="timeout", message=message), **changes)

    return make


@pytest.fixture
def make_study() -> MakeStudy:
    """A study folder whose journal holds, trial by trial, what is given: a record, or plain values in its place."""

    def make(folder: Path, records: Iterable[Any], *, name: str = "nightly") -> Path:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "study.json").write_text('{"schema": "autosync.study/1"}\n', encoding="utf-8")
        storage = JournalStorage(JournalFileBackend(str(folder / "journal.log")))
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        study = optuna.create_study(study_name=name, storage=storage)
        for record in records:
            trial = study.ask()
            trial.suggest_float("x", 0, 1)
            trial.set_user_attr("record", record_to_plain(record) if isinstance(record, Record) else record)
            if isinstance(record, Record) and record.measurement is not None:
                study.tell(trial, record.measurement.median_seconds)
            else:
                study.tell(trial, state=TrialState.FAIL)
        return folder

    return make
