"""A study: the folder of one tuning run, and the Optuna study that alone holds the state of its trials.

Proposed strategies wait in Optuna's queue. Each trial carries its strategy as an attribute from the start. So other
tuners of the same study see which strategies are being tried, and an interrupted study continues with its queue. A
strategy that was under way at the interruption is tried once more.

Baselines that are measured for the proof alone are trials like the others, so they are kept and never repeated. A mark
excludes them from the count of the search.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import IO, Any, Literal, Self, TypeVar

import optuna
import sqlalchemy
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, TrialState, create_trial

from autosync import jsonio
from autosync.datasets.schema import RECORD_ATTRIBUTE, WITHDRAWN_ATTRIBUTE, Record, record_from_plain, record_to_plain
from autosync.datasets.storage import close_storage, open_journal, open_storage, said_by_database
from autosync.documents import without_file
from autosync.errors import InputError, OperationError
from autosync.search.candidates import Candidate
from autosync.search.dashboard import keep_traits, name_metric, note_winner
from autosync.search.study_folder import StudyFolder, StudySettings, read_settings, taken_error
from autosync.search.trial_attributes import (
    BLAME_ATTRIBUTE,
    CANDIDATE_ATTRIBUTE,
    EXPECTED_ATTRIBUTE,
    PROOF_ATTRIBUTE,
    TUNER_ATTRIBUTE,
    has_candidate,
    has_record,
    is_for_proof,
    is_to_come,
    is_well_formed,
    is_withdrawn,
    may_be_its_own_fault,
    strategy_id_of,
)
from autosync.specs.cluster import ClusterSpec
from autosync.specs.cluster_file import save_cluster
from autosync.specs.model import ModelSpec
from autosync.specs.model_file import save_model
from autosync.strategy.files import dump_strategy, parse_strategy
from autosync.trials.failures import Blame

MAX_EXCUSED = 2
"""The number of infrastructure failures of one strategy that are blamed on the machines, if other strategies failed in
this way too."""

_Reason = Literal["interrupted", "duplicate", "empty", "outdated"]


@dataclass(frozen=True, slots=True, kw_only=True)
class StartedTrial:
    """A trial that has begun: its number and its candidate."""

    number: int
    candidate: Candidate


class Study:
    """An open study. While it is open, no other process can open its folder; other folders may share its storage."""

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
            said = said_by_database(error)
            raise OperationError(f"the study {self.name} cannot be opened in its storage: {said}") from error
        self._id = self._storage.get_study_id_from_name(self.name)
        self._check_trials()
        self._records: dict[int, Record] = {}
        self._candidates: dict[str, Candidate] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        self.close()
        if isinstance(error, optuna.exceptions.StorageInternalError | sqlalchemy.exc.SQLAlchemyError):
            raise OperationError(f"the storage {self.settings.storage} failed: {said_by_database(error)}") from error

    def close(self) -> None:
        """Close the storage and let others open the folder."""
        close_storage(self._storage)
        self._held.close()

    def _check_trials(self) -> None:
        """Refuse trials with attributes that no study writes. Optuna does not check them."""
        for trial in self._trials():
            if not is_well_formed(trial.user_attrs):
                rule = "a trial has its strategy, and a record once it is finished"
                raise InputError(f"{self.folder.path}: trial {trial.number} cannot be understood", rule=rule)

    def enqueue(self, candidates: Iterable[Candidate], expected: Mapping[str, Any] | None = None) -> None:
        """Add strategies to the queue, in this order; `expected` has what is expected of some of them, by their ids."""
        for one in candidates:
            self._candidates[one.strategy_id] = one
            attributes = {CANDIDATE_ATTRIBUTE: _plain(one)}
            if expected is not None and one.strategy_id in expected:
                attributes[EXPECTED_ATTRIBUTE] = expected[one.strategy_id]
            self._optuna.enqueue_trial({}, user_attrs=attributes)

    def waiting(self) -> list[str]:
        """Return the ids of the strategies in the queue, in its order."""
        return [strategy_id_of(one) for one in self._trials() if one.state == TrialState.WAITING and has_candidate(one)]

    def expected(self) -> dict[str, Any]:
        """Return what was expected of strategies before their trials, by their ids."""
        told = [one for one in self._trials() if EXPECTED_ATTRIBUTE in one.user_attrs and has_candidate(one)]
        return {strategy_id_of(one): one.user_attrs[EXPECTED_ATTRIBUTE] for one in told}

    def withdraw(self, begun: Iterable[StartedTrial]) -> None:
        """End trials without a record, as if their strategies had never been proposed."""
        for one in begun:
            self._withdraw(one.number, "outdated")

    def ask(self) -> StartedTrial | None:
        """Begin the next waiting trial; None if none waits. Skip strategies that another tuner proposed too."""
        while any(trial.state == TrialState.WAITING for trial in self._trials()):
            trial = self._optuna.ask()
            fields = trial.user_attrs.get(CANDIDATE_ATTRIBUTE)
            if fields is None:
                # Another tuner took the waiting trial first, so Optuna returned an empty one.
                self._withdraw(trial.number, "empty")
            elif self._is_duplicate(trial.number, fields["strategy_id"]):
                self._withdraw(trial.number, "duplicate")
            else:
                trial.set_user_attr(TUNER_ATTRIBUTE, self.settings.tuner)
                return self._begun(trial.number, self._candidate(fields))
        return None

    def begin_for_proof(self, candidate: Candidate) -> StartedTrial:
        """Begin a trial at once, outside the queue. The search does not count it."""
        self._candidates[candidate.strategy_id] = candidate
        attributes = {
            CANDIDATE_ATTRIBUTE: _plain(candidate),
            TUNER_ATTRIBUTE: self.settings.tuner,
            PROOF_ATTRIBUTE: True,
        }
        begun = create_trial(state=TrialState.RUNNING, user_attrs=attributes)
        trial_id = self._storage.create_new_trial(self._id, template_trial=begun)
        return self._begun(self._storage.get_trial_number_from_id(trial_id), candidate)

    def _begun(self, number: int, candidate: Candidate) -> StartedTrial:
        keep_traits(self._storage, self._trial_id(number), candidate.strategy)
        return StartedTrial(number=number, candidate=candidate)

    def mark_winner(self, candidate: Candidate, words: str) -> None:
        """Note on the candidate's last trial that it won the proof, for people who look with Optuna's tools."""
        alike = [
            trial
            for trial in self._finished()
            if has_candidate(trial) and strategy_id_of(trial) == candidate.strategy_id and self._is_settled(trial)
        ]
        if alike:
            note_winner(self._storage, self._id, self._trial_id(alike[-1].number), words)

    def tell(self, record: Record, *, blame: Blame | None = None) -> None:
        """Finish a trial: store the record in it, and its median as Optuna's value.

        `blame` is the side that may have caused its failure.
        """
        if blame is not None:
            self._mark(record.trial, BLAME_ATTRIBUTE, blame)
        self._mark(record.trial, RECORD_ATTRIBUTE, record_to_plain(record))
        self._finish(record)

    def history(self) -> list[Record]:
        """Return the records of all finished trials, by any tuner, in the order of their numbers, without outages."""
        return [self._record(trial) for trial in self._finished() if not self._is_outage(trial)]

    def searched(self) -> list[Record]:
        """Return the records of the search, without outages."""
        settled = (trial for trial in self._finished() if not self._is_outage(trial))
        return [self._record(trial) for trial in settled if not is_for_proof(trial)]

    def for_proof(self) -> list[Record]:
        """Return the records of trials that were run for a proof alone, without outages."""
        settled = (trial for trial in self._finished() if not self._is_outage(trial))
        return [self._record(trial) for trial in settled if is_for_proof(trial)]

    def outages(self) -> list[Record]:
        """Return the records of trials in which the machines failed. They are kept but say nothing about strategies."""
        return [self._record(trial) for trial in self._finished() if self._is_outage(trial)]

    def is_repeated(self, candidate: Candidate) -> bool:
        """Return whether the candidate, not the machines, would be to blame for one more infrastructure failure.

        One earlier failure of the candidate is enough, unless trials of other candidates ended in the same way, which
        suggests that the machines fail. Failures that the machines alone caused do not count.
        """
        whose = [
            strategy_id_of(trial)
            for trial in self._finished()
            if has_candidate(trial)
            and may_be_its_own_fault(trial)
            and (failure := self._record(trial).failure)
            and failure.kind == "infrastructure"
        ]
        num_own = whose.count(candidate.strategy_id)
        return num_own >= (MAX_EXCUSED if num_own < len(whose) else 1)

    def taken(self) -> set[str]:
        """Return the ids of strategies that wait or are being tried."""
        return {strategy_id_of(trial) for trial in self._trials() if has_candidate(trial) and is_to_come(trial)}

    def num_under_way(self) -> int:
        """Return how many trials of the search are under way, except those that began too long ago."""
        return sum(
            trial.state == TrialState.RUNNING and is_to_come(trial) and not is_for_proof(trial)
            for trial in self._trials()
        )

    def recover(self) -> None:
        """Clean up after an interrupted run of this tuner: its trials under way wait again."""
        interrupted = [trial for trial in self._trials() if trial.state == TrialState.RUNNING and self._was_ours(trial)]
        for trial in interrupted:
            if has_record(trial):
                self._finish(self._record(trial))
                continue
            is_wanted = has_candidate(trial) and not is_for_proof(trial)
            if is_wanted and strategy_id_of(trial) not in self.waiting():
                self.enqueue([self._candidate(trial.user_attrs[CANDIDATE_ATTRIBUTE])])
            self._withdraw(trial.number, "interrupted")

    def agree(self, model: ModelSpec, cluster: ClusterSpec) -> None:
        """Refuse another model or cluster than the study's, and other kinds of strategies. A new study adopts them."""
        is_strange = "model" not in self._optuna.user_attrs and bool(self._trials())
        if is_strange or self._optuna.directions != [StudyDirection.MINIMIZE]:
            rule = "a study of Optuna's that autosync has begun, or a name that is not taken"
            raise InputError(
                f"the study {self.name} in the storage is of something else", rule=rule, hint="--study NAME"
            )
        for what, found, other in (
            ("model", model.fingerprint(), "another model"),
            ("batch_size", model.batch_size, "another batch size"),
            ("layers", _layers(model), "a model that is cut into other layers"),
            ("cluster", cluster.fingerprint(), "another cluster"),
        ):
            if not self._adopts(what, found):
                rule = "all who tune a study together have the same model and batch on the same cluster"
                raise InputError(f"the study {self.name} is of {other}", rule=rule, hint="--study NAME")
        # With others, a strategy that this tuner must not try could win, or could not even run.
        for what, allowed in (("allow", sorted(self.settings.allow)), ("target", self.settings.target)):
            if not self._adopts(what, allowed):
                option = _option(what, self._optuna.user_attrs[what])
                rule = "all who tune a study together try the same kinds of strategies"
                raise InputError(
                    f"the study {self.name} was begun {option}", rule=rule, hint=f"tune {option}, or --study NAME"
                )
        name_metric(self._storage, self._id)

    def _adopts(self, what: str, found: object) -> bool:
        """Return whether this is what the study has. A study that has nothing yet, new or old, adopts it."""
        known = self._optuna.user_attrs.get(what)
        if known is None:
            self._optuna.set_user_attr(what, found)
        return known is None or known == found

    def _trials(self) -> list[FrozenTrial]:
        return self._optuna.get_trials(deepcopy=False)

    def _finished(self) -> list[FrozenTrial]:
        return [trial for trial in self._trials() if trial.state.is_finished() and has_record(trial)]

    def _finish(self, record: Record) -> None:
        if record.measurement is None:
            self._optuna.tell(record.trial, state=TrialState.FAIL)
        else:
            self._optuna.tell(record.trial, record.measurement.median_seconds)

    def _withdraw(self, number: int, reason: _Reason) -> None:
        self._mark(number, WITHDRAWN_ATTRIBUTE, reason)
        self._optuna.tell(number, state=TrialState.FAIL)

    def _mark(self, number: int, attribute: str, value: Any) -> None:
        self._storage.set_trial_user_attr(self._trial_id(number), attribute, value)

    def _trial_id(self, number: int) -> int:
        return self._storage.get_trial_id_from_study_id_trial_number(self._id, number)

    def _is_duplicate(self, number: int, strategy_id: str) -> bool:
        """Return whether another trial has the same strategy and a smaller number. So one of several always remains.

        Trials for the proof count whatever their number, because they do not wait in the queue and may overtake others.
        """
        others = (trial for trial in self._trials() if trial.number < number or is_for_proof(trial))
        alike = (trial for trial in others if has_candidate(trial) and strategy_id_of(trial) == strategy_id)
        return any(not is_withdrawn(trial) and (is_to_come(trial) or self._is_settled(trial)) for trial in alike)

    def _is_outage(self, trial: FrozenTrial) -> bool:
        failure = self._record(trial).failure
        return failure is not None and failure.is_infrastructure

    def _is_settled(self, trial: FrozenTrial) -> bool:
        """Return whether a trial says something about its strategy."""
        return has_record(trial) and not self._is_outage(trial)

    def _was_ours(self, trial: FrozenTrial) -> bool:
        # A study with its own journal has no other tuners, because this process holds the folder.
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
    """Begin a new study, or join one that other tuners have in the same storage."""
    if folder.is_begun:
        raise taken_error(folder.path)
    is_made = not folder.path.exists()
    folder.path.mkdir(parents=True, exist_ok=True)
    with _closing_where_it_fails(folder.hold()) as held:
        if folder.is_begun:
            # Another process began it meanwhile and has finished.
            raise taken_error(folder.path)
        try:
            save_model(model, folder.model)
            save_cluster(folder.cluster, cluster)
            # Written last: a folder with settings has everything that is needed to continue.
            settings.write(folder)
            study = Study(folder, settings, held, storage=storage)
            with _closing_where_it_fails(study):
                study.agree(model, cluster)
        except Exception:
            # The storage is missing or has another study, or the disk is full: the study's name becomes free again.
            folder.forget(whole=is_made)
            raise
        return study


def resume_study(folder: StudyFolder, model: ModelSpec, cluster: ClusterSpec, *, storage: str | None = None) -> Study:
    """Open a study that was begun in this folder, with all trials in its storage."""
    with _closing_where_it_fails(folder.hold()) as held:
        settings = read_settings(folder)
        study = Study(folder, settings, held, storage=storage or settings.storage)
        with _closing_where_it_fails(study):
            study.agree(model, cluster)
            study.recover()
        return study


OpenedT = TypeVar("OpenedT", IO[bytes], Study)


@contextmanager
def _closing_where_it_fails(opened: OpenedT) -> Iterator[OpenedT]:
    try:
        yield opened
    except BaseException:
        opened.close()
        raise


def _layers(model: ModelSpec) -> str:
    """Return a hash of the layers into which strategies may divide a model."""
    cuts = [(cut.before, cut.tied, cut.uses) for cut in model.timeline.cuts]
    return jsonio.content_hash([cuts, [segment.module for segment in model.timeline.forward] if cuts else []])


def _option(what: str, value: object) -> str:
    """Return in words the option with which a study was begun."""
    given = ",".join(map(str, value)) if isinstance(value, list) else str(value)
    return f"with --{what} {given}" if given else f"without --{what}"


def _plain(candidate: Candidate) -> dict[str, Any]:
    strategy = None if candidate.strategy is None else dump_strategy(candidate.strategy)
    return {"origin": candidate.origin, "strategy_id": candidate.strategy_id, "strategy": strategy}
