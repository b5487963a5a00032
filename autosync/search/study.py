"""A study: one tuning run's folder, and the Optuna study that holds the one truth about its trials.

Trials are asked for and told. What is proposed waits in Optuna's queue, each trial with its strategy as an attribute
from the moment it is there; so whoever else tunes the same study sees what is being tried, and a study that is
interrupted goes on with what was to come next. A strategy that was under way then is tried once more.

What is measured for the proof alone (baselines that no trial of the search was of) is a trial like the others, and so
kept and never repeated; a mark keeps it out of what the search counts.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import IO, Any, Literal, Self

import optuna
from optuna.trial import FrozenTrial, TrialState, create_trial

from autosync.datasets.schema import Record, record_from_plain, record_to_plain
from autosync.datasets.storage import close_storage, open_journal, open_storage
from autosync.datasets.studies import RECORD_ATTRIBUTE, WITHDRAWN_ATTRIBUTE
from autosync.documents import without_file
from autosync.errors import AutosyncError, InputError
from autosync.search.candidates import Candidate
from autosync.search.study_folder import StudyFolder, StudySettings, read_settings, taken_error
from autosync.specs.cluster import ClusterSpec
from autosync.specs.cluster_file import save_cluster
from autosync.specs.model import ModelSpec
from autosync.specs.model_file import save_model
from autosync.strategy.files import dump_strategy, parse_strategy

CANDIDATE_ATTRIBUTE = "candidate"
TUNER_ATTRIBUTE = "tuner"
PROOF_ATTRIBUTE = "for_proof"
STALE_SECONDS = 3600.0
"""Of a trial that another machine began that long ago nothing is expected any more: others may try its strategy."""

_Reason = Literal["interrupted", "duplicate", "empty"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A trial that has begun: its number and what is to be tried."""

    number: int
    candidate: Candidate


class Study:
    """An open study. While it is open nobody else opens its folder; other folders may share its storage."""

    def __init__(self, folder: StudyFolder, settings: StudySettings, held: IO[bytes], *, storage: str | None) -> None:
        self.folder = folder
        self.settings = settings
        self.name = settings.name
        self._held = held
        self._is_shared = storage is not None
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self._storage = open_journal(folder.journal) if storage is None else open_storage(storage)
        self._optuna = optuna.create_study(
            storage=self._storage, study_name=self.name, direction="minimize", load_if_exists=True
        )
        self._id = self._storage.get_study_id_from_name(self.name)
        self._records: dict[int, Record] = {}
        self._candidates: dict[str, Candidate] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Let others open the folder."""
        close_storage(self._storage)
        self._held.close()

    def enqueue(self, candidates: Iterable[Candidate]) -> None:
        """Have strategies wait for their trials, in this order."""
        for one in candidates:
            self._candidates[one.strategy_id] = one
            self._optuna.enqueue_trial({}, user_attrs={CANDIDATE_ATTRIBUTE: _plain(one)})

    def ask(self) -> Asked | None:
        """Begin the next trial that waits; None where none does. What another tuner proposed too is passed over."""
        while any(trial.state == TrialState.WAITING for trial in self._trials()):
            trial = self._optuna.ask()
            fields = trial.user_attrs.get(CANDIDATE_ATTRIBUTE)
            if fields is None:
                # Another tuner was faster, and the one that waited is its.
                self._withdraw(trial.number, "empty")
            elif self._is_duplicate(trial.number, fields["strategy_id"]):
                self._withdraw(trial.number, "duplicate")
            else:
                trial.set_user_attr(TUNER_ATTRIBUTE, self.settings.tuner)
                return Asked(number=trial.number, candidate=self._candidate(fields))
        return None

    def begin_for_proof(self, candidate: Candidate) -> Asked:
        """Begin a trial at once, beside those that wait and outside of what the search counts."""
        self._candidates[candidate.strategy_id] = candidate
        attributes = {
            CANDIDATE_ATTRIBUTE: _plain(candidate),
            TUNER_ATTRIBUTE: self.settings.tuner,
            PROOF_ATTRIBUTE: True,
        }
        begun = create_trial(state=TrialState.RUNNING, user_attrs=attributes)
        trial_id = self._storage.create_new_trial(self._id, template_trial=begun)
        return Asked(number=self._storage.get_trial_number_from_id(trial_id), candidate=candidate)

    def tell(self, record: Record) -> None:
        """Finish a trial: the record goes into it, its median is its value."""
        self._mark(record.trial, RECORD_ATTRIBUTE, record_to_plain(record))
        self._finish(record)

    def history(self) -> list[Record]:
        """The records of all finished trials, whoever ran them, in the order of their numbers."""
        return [self._record(trial) for trial in self._finished()]

    def searched(self) -> list[Record]:
        """Those of the search."""
        return [self._record(trial) for trial in self._finished() if not _is_for_proof(trial)]

    def for_proof(self) -> list[Record]:
        """Those that were measured for a proof alone."""
        return [self._record(trial) for trial in self._finished() if _is_for_proof(trial)]

    def taken(self) -> set[str]:
        """The ids of strategies that wait or are being tried."""
        return {_strategy_id(trial) for trial in self._trials() if _has_candidate(trial) and _is_to_come(trial)}

    def num_under_way(self) -> int:
        """How many trials of the search have begun and not ended, those aside of which nothing was heard for long."""
        return sum(
            trial.state == TrialState.RUNNING and _is_to_come(trial) and not _is_for_proof(trial)
            for trial in self._trials()
        )

    def recover(self) -> None:
        """Bring order into what an interrupted run of this tuner left: what was under way waits again."""
        interrupted = [trial for trial in self._trials() if trial.state == TrialState.RUNNING and self._was_ours(trial)]
        for trial in interrupted:
            if _has_record(trial):
                self._finish(self._record(trial))
                continue
            is_wanted = _has_candidate(trial) and not _is_for_proof(trial)
            if is_wanted and not self._waits(_strategy_id(trial)):
                self.enqueue([self._candidate(trial.user_attrs[CANDIDATE_ATTRIBUTE])])
            self._withdraw(trial.number, "interrupted")

    def agree(self, model: ModelSpec, cluster: ClusterSpec) -> None:
        """Hold the model and the cluster against those that the study was begun with; they are those if it is new."""
        for what, found in (("model", model.fingerprint()), ("cluster", cluster.fingerprint())):
            known = self._optuna.user_attrs.get(what)
            if known is None:
                self._optuna.set_user_attr(what, found)
            elif known != found:
                rule = "all who tune a study together have the same model on the same cluster"
                raise InputError(f"the study {self.name} is of another {what}", rule=rule, hint="--study NAME")

    def _trials(self) -> list[FrozenTrial]:
        return self._optuna.get_trials(deepcopy=False)

    def _finished(self) -> list[FrozenTrial]:
        return [trial for trial in self._trials() if trial.state.is_finished() and _has_record(trial)]

    def _finish(self, record: Record) -> None:
        if record.measurement is None:
            self._optuna.tell(record.trial, state=TrialState.FAIL)
        else:
            self._optuna.tell(record.trial, record.measurement.median_seconds)

    def _withdraw(self, number: int, reason: _Reason) -> None:
        self._mark(number, WITHDRAWN_ATTRIBUTE, reason)
        self._optuna.tell(number, state=TrialState.FAIL)

    def _mark(self, number: int, attribute: str, value: Any) -> None:
        trial_id = self._storage.get_trial_id_from_study_id_trial_number(self._id, number)
        self._storage.set_trial_user_attr(trial_id, attribute, value)

    def _is_duplicate(self, number: int, strategy_id: str) -> bool:
        """Whether another trial is of the same strategy: with a smaller number, so that one of several always stays.

        Those for the proof count whatever their number: they do not wait as others do, and so may overtake them.
        """
        others = (trial for trial in self._trials() if trial.number < number or _is_for_proof(trial))
        alike = (trial for trial in others if _has_candidate(trial) and _strategy_id(trial) == strategy_id)
        return any(not _is_withdrawn(trial) and (_is_to_come(trial) or _has_record(trial)) for trial in alike)

    def _waits(self, strategy_id: str) -> bool:
        waiting = (trial for trial in self._trials() if trial.state == TrialState.WAITING and _has_candidate(trial))
        return any(_strategy_id(trial) == strategy_id for trial in waiting)

    def _was_ours(self, trial: FrozenTrial) -> bool:
        # In a journal of our own nobody else tunes: the folder is ours alone.
        return not self._is_shared or trial.user_attrs.get(TUNER_ATTRIBUTE) == self.settings.tuner

    def _record(self, trial: FrozenTrial) -> Record:
        found = self._records.get(trial.number)
        if found is None:
            found = self._records[trial.number] = record_from_plain(trial.user_attrs[RECORD_ATTRIBUTE])
        return found

    def _candidate(self, fields: Mapping[str, Any]) -> Candidate:
        found = self._candidates.get(fields["strategy_id"])
        if found is None:
            plain = fields["strategy"]
            strategy = None if plain is None else parse_strategy(without_file(plain))
            found = Candidate(origin=fields["origin"], strategy=strategy, strategy_id=fields["strategy_id"])
            self._candidates[found.strategy_id] = found
        return found


def begin_study(
    folder: StudyFolder, model: ModelSpec, cluster: ClusterSpec, settings: StudySettings, *, storage: str | None = None
) -> Study:
    """A new study, or a part of our own in one that others have in the same storage."""
    if folder.is_begun:
        raise taken_error(folder.path)
    folder.path.mkdir(parents=True, exist_ok=True)
    with _closing_where_it_fails(folder.hold()) as held:
        if folder.is_begun:
            # Somebody else began it meanwhile, and is done.
            raise taken_error(folder.path)
        save_model(model, folder.model)
        save_cluster(folder.cluster, cluster)
        # Last: a folder that has its settings has all that is needed to go on.
        settings.write(folder)
        try:
            study = Study(folder, settings, held, storage=storage)
            study.agree(model, cluster)
        except AutosyncError:
            if storage is not None:
                # It cannot be opened, or a study of something else is in it: the name is still free.
                for file in (folder.settings, folder.model, folder.cluster):
                    file.unlink()
            raise
        return study


def resume_study(folder: StudyFolder, model: ModelSpec, cluster: ClusterSpec, *, storage: str | None = None) -> Study:
    """A study that was begun in this folder, with all that its storage has of it."""
    with _closing_where_it_fails(folder.hold()) as held:
        settings = read_settings(folder)
        study = Study(folder, settings, held, storage=storage or settings.storage)
        study.agree(model, cluster)
        study.recover()
        return study


@contextmanager
def _closing_where_it_fails(held: IO[bytes]) -> Iterator[IO[bytes]]:
    try:
        yield held
    except BaseException:
        held.close()
        raise


def _plain(candidate: Candidate) -> dict[str, Any]:
    strategy = None if candidate.strategy is None else dump_strategy(candidate.strategy)
    return {"origin": candidate.origin, "strategy_id": candidate.strategy_id, "strategy": strategy}


def _has_record(trial: FrozenTrial) -> bool:
    return RECORD_ATTRIBUTE in trial.user_attrs


def _has_candidate(trial: FrozenTrial) -> bool:
    return CANDIDATE_ATTRIBUTE in trial.user_attrs


def _strategy_id(trial: FrozenTrial) -> str:
    found: str = trial.user_attrs[CANDIDATE_ATTRIBUTE]["strategy_id"]
    return found


def _is_withdrawn(trial: FrozenTrial) -> bool:
    return WITHDRAWN_ATTRIBUTE in trial.user_attrs


def _is_for_proof(trial: FrozenTrial) -> bool:
    return PROOF_ATTRIBUTE in trial.user_attrs


def _is_to_come(trial: FrozenTrial) -> bool:
    """Whether a trial waits or is under way; not one that began so long ago that its machine must be gone."""
    return not trial.state.is_finished() and not _is_stale(trial)


def _is_stale(trial: FrozenTrial) -> bool:
    if trial.state != TrialState.RUNNING or trial.datetime_start is None:
        return False
    return (dt.datetime.now() - trial.datetime_start).total_seconds() > STALE_SECONDS  # noqa: DTZ005 - as Optuna's
