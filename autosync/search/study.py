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
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, TrialState, create_trial

from autosync.datasets.schema import RECORD_ATTRIBUTE, WITHDRAWN_ATTRIBUTE, Record, record_from_plain, record_to_plain
from autosync.datasets.storage import close_storage, open_journal, open_storage
from autosync.documents import without_file
from autosync.errors import InputError, OperationError
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
MAX_EXCUSED = 2
"""So many trials of one strategy are put down to the machines where others' were too."""
STALE_SECONDS = 3600.0
"""Of a trial that another machine began that long ago nothing is expected any more: others may try its strategy."""

_Reason = Literal["interrupted", "duplicate", "empty"]


@dataclass(frozen=True, slots=True, kw_only=True)
class StartedTrial:
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
        try:
            self._optuna = optuna.create_study(
                storage=self._storage, study_name=self.name, direction="minimize", load_if_exists=True
            )
        except optuna.exceptions.OptunaError as error:
            # Of a database; its words stand in what caused it.
            reason = str(error.__cause__ or error).partition("\n")[0]
            raise OperationError(f"the study {self.name} cannot be opened in its storage: {reason}") from error
        self._id = self._storage.get_study_id_from_name(self.name)
        self._check_trials()
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

    def _check_trials(self) -> None:
        """Refuse trials whose attributes are none that a study writes: Optuna takes them as they stand."""
        for trial in self._trials():
            if not _is_well_formed(trial.user_attrs):
                rule = "a trial has its strategy, and a record once it is finished"
                raise InputError(f"{self.folder.path}: trial {trial.number} cannot be understood", rule=rule)

    def enqueue(self, candidates: Iterable[Candidate]) -> None:
        """Have strategies wait for their trials, in this order."""
        for one in candidates:
            self._candidates[one.strategy_id] = one
            self._optuna.enqueue_trial({}, user_attrs={CANDIDATE_ATTRIBUTE: _plain(one)})

    def ask(self) -> StartedTrial | None:
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
                return StartedTrial(number=trial.number, candidate=self._candidate(fields))
        return None

    def begin_for_proof(self, candidate: Candidate) -> StartedTrial:
        """Begin a trial at once, beside those that wait and outside of what the search counts."""
        self._candidates[candidate.strategy_id] = candidate
        attributes = {
            CANDIDATE_ATTRIBUTE: _plain(candidate),
            TUNER_ATTRIBUTE: self.settings.tuner,
            PROOF_ATTRIBUTE: True,
        }
        begun = create_trial(state=TrialState.RUNNING, user_attrs=attributes)
        trial_id = self._storage.create_new_trial(self._id, template_trial=begun)
        return StartedTrial(number=self._storage.get_trial_number_from_id(trial_id), candidate=candidate)

    def tell(self, record: Record) -> None:
        """Finish a trial: the record goes into it, its median is its value."""
        self._mark(record.trial, RECORD_ATTRIBUTE, record_to_plain(record))
        self._finish(record)

    def history(self) -> list[Record]:
        """What finished trials say of strategies, whoever ran them, in the order of their numbers."""
        return [self._record(trial) for trial in self._finished() if not self._is_outage(trial)]

    def searched(self) -> list[Record]:
        """Those of the search."""
        settled = (trial for trial in self._finished() if not self._is_outage(trial))
        return [self._record(trial) for trial in settled if not _is_for_proof(trial)]

    def for_proof(self) -> list[Record]:
        """Those that were measured for a proof alone."""
        settled = (trial for trial in self._finished() if not self._is_outage(trial))
        return [self._record(trial) for trial in settled if _is_for_proof(trial)]

    def outages(self) -> list[Record]:
        """The records of trials under which the machines failed: they are kept, and say nothing of strategies."""
        return [self._record(trial) for trial in self._finished() if self._is_outage(trial)]

    def is_repeated(self, candidate: Candidate) -> bool:
        """Whether so many trials of a candidate have ended so that what ends so again is the candidate's own doing.

        One is enough, unless others have ended so too: then it is rather the machines.
        """
        whose = [
            _strategy_id(trial)
            for trial in self._finished()
            if _has_candidate(trial) and (failure := self._record(trial).failure) and failure.kind == "infrastructure"
        ]
        num_own = whose.count(candidate.strategy_id)
        return num_own >= (MAX_EXCUSED if num_own < len(whose) else 1)

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
        is_strange = "model" not in self._optuna.user_attrs and bool(self._trials())
        if is_strange or self._optuna.directions != [StudyDirection.MINIMIZE]:
            rule = "a study of Optuna's that autosync has begun, or a name that is not taken"
            raise InputError(
                f"the study {self.name} in the storage is of something else", rule=rule, hint="--study NAME"
            )
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
        return any(not _is_withdrawn(trial) and (_is_to_come(trial) or self._is_settled(trial)) for trial in alike)

    def _is_outage(self, trial: FrozenTrial) -> bool:
        failure = self._record(trial).failure
        return failure is not None and failure.is_infrastructure

    def _is_settled(self, trial: FrozenTrial) -> bool:
        """Whether a trial says something of its strategy."""
        return _has_record(trial) and not self._is_outage(trial)

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
    is_made = not folder.path.exists()
    folder.path.mkdir(parents=True, exist_ok=True)
    with _closing_where_it_fails(folder.hold()) as held:
        if folder.is_begun:
            # Somebody else began it meanwhile, and is done.
            raise taken_error(folder.path)
        try:
            save_model(model, folder.model)
            save_cluster(folder.cluster, cluster)
            # Last: a folder that has its settings has all that is needed to go on.
            settings.write(folder)
            study = Study(folder, settings, held, storage=storage)
            study.agree(model, cluster)
        except Exception:
            # No storage, a study of something else in it, a full disk: the name is still free.
            folder.forget(whole=is_made)
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


def _is_well_formed(attributes: object) -> bool:
    """Whether a trial has the attributes that `enqueue` and `tell` give it, or none."""
    if not isinstance(attributes, dict) or not isinstance(attributes.get(RECORD_ATTRIBUTE, {}), dict):
        return False
    if CANDIDATE_ATTRIBUTE not in attributes:
        return True
    fields = attributes[CANDIDATE_ATTRIBUTE]
    return (
        isinstance(fields, dict)
        and all(isinstance(fields.get(name), str) for name in ("origin", "strategy_id"))
        and (fields.get("strategy", "") is None or isinstance(fields.get("strategy"), dict))
    )


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
