"""The search loop: tries strategies until the trials or the time run out, or a rule stops it early."""

from __future__ import annotations

import math

from autosync.datasets.schema import Record
from autosync.search.baselines import proof_baselines
from autosync.search.candidates import Candidate
from autosync.search.guarantee import Baseline, choose_finalists
from autosync.search.progress import ProgressListener, SearchStatus
from autosync.search.proposers.interface import Ground, Proposer
from autosync.search.rounds import Rounds
from autosync.search.running_study import RunningStudy
from autosync.search.shown_summary import load_shown
from autosync.search.stopping import LEAST_GAIN, why_stop
from autosync.search.study import StartedTrial, Study
from autosync.search.study_folder import StudySettings
from autosync.search.trust.early_answer import EarlyAnswer
from autosync.search.trust.expectation import Expecting
from autosync.search.trust.next_trials import NextTrials
from autosync.search.trust.outlook import SearchOutlook
from autosync.simulators.interface import Simulator
from autosync.trials.outages import Outages


class SearchLoop:
    """The search of one running study. `ended` is the reason why it ended early; None if it did not.

    `forecasts` tells what rounds of trials were expected to bring, each with the number of trials before it. The last
    one may be why the search ended. There are none if the user asked for a number of trials.
    """

    def __init__(
        self,
        running: RunningStudy,
        proposer: Proposer,
        ground: Ground,
        settings: StudySettings,
        progress: ProgressListener,
    ) -> None:
        self.ended: str | None = None
        self.forecasts: list[tuple[int, NextTrials]] = []
        self.status = SearchStatus(
            num_trials=settings.num_trials,
            budget_seconds=settings.budget_seconds,
            effort=settings.effort,
            is_open=settings.training_seconds is not None,
        )
        self._study = running.study
        self._trials = running.trials
        self._settings = settings
        self._progress = progress
        # The bound holds for exact strategies only.
        self._bound_seconds = None if settings.allow else running.trials.limit().seconds
        self._outlook: SearchOutlook | None = None
        expecting = None
        if settings.training_seconds is not None:
            expecting = Expecting(ground)
            self._outlook = SearchOutlook(
                study=running.study,
                simulator=ground.simulator.name,
                effort=settings.effort,
                training_seconds=settings.training_seconds,
                least_seconds=self._bound_seconds or 0.0,
                steps_train=settings.is_script,
            )
        self._rounds = Rounds(running.study, proposer, seed=settings.seed, expecting=expecting)
        self._early = _early_answer(running.study, settings)
        self.status.go_on(running.study.searched())

    @property
    def spares_trials(self) -> bool:
        """Whether no trials are wanted and none exist.

        If a study without further trials has earlier ones, it only needs a proof.
        """
        return self._settings.num_trials == 0 and not self.status.tried

    @property
    def search_seconds(self) -> float:
        """The time that the proposer took."""
        return self._rounds.search_seconds

    @property
    def is_proof_due(self) -> bool:
        """Whether a trial after the early proof was faster than its contestants, or there was no early proof."""
        proved = self._early.strategy_ids
        later = [one.measurement for one in self.status.tried if one.candidate.strategy_id not in proved]
        fastest = min([one.median_seconds for one in later if one is not None], default=math.inf)
        return not proved or fastest < (1 - LEAST_GAIN) * self._early.fastest_seconds

    def begin_predicted(self, simulator: Simulator) -> list[StartedTrial]:
        """Begin trials of stock DDP and the strategies that are predicted to be fastest, for an early proof.

        None are begun if the user asked for a number of trials, or if the study has trials already.
        """
        if self._outlook is None or self.status.is_over() or self._study.history() or self._study.num_under_way():
            return []
        begun = self._rounds.begin_predicted(self._settings.effort.num_predicted, simulator)
        if (words := self._outlook.first_words([one.candidate for one in begun])) is not None:
            self._progress.note(words)
        return begun

    def take_in_proof(self, begun: list[StartedTrial], records: list[Record], answer: EarlyAnswer) -> None:
        """Keep the records of an early proof, and its answer. Begun trials without a record are forgotten."""
        kept = {record.trial for record in records}
        self._study.withdraw([one for one in begun if one.number not in kept])
        for record in records:
            self._study.tell(record)
        self._early = answer
        self.status.take_in(self._study.searched())
        for number in sorted({one.number for one in begun} & kept):
            self._progress.tried(self.status, number)

    def run(self) -> None:
        """Try strategies until the search ends."""
        self._stop_early()
        outages = Outages()
        while self.ended is None and not self.status.is_over(self._study.num_under_way()):
            if not self._is_worth_it():
                self.ended = str(self.forecasts[-1][1])
                break
            started = self._rounds.next(self.status.num_left)
            if started is None:
                self.ended = "nothing new is left to try"
                break
            self._progress.now(self.status.beginning(started.candidate))
            record = self._run_trial(started)
            if record.failure is not None and record.failure.is_infrastructure:
                self._progress.note(self.status.outage(started.candidate, record.failure))
                outages.wait(record.failure, self._progress.now)
                continue
            outages.over()
            self.status.take_in(self._study.searched())
            self._progress.tried(self.status, started.number)
            self._stop_early()
        if self.ended is not None:
            self._progress.note(self.ended)

    def finalists(self, simulator: Simulator) -> list[Candidate]:
        """Return the strategies for the proof: the fastest of the trials, or by prediction if there are no trials."""
        effort = self._settings.effort
        if self.spares_trials:
            finalists = self._rounds.predicted(effort.num_predicted, simulator)
        else:
            early = self._early
            finalists = choose_finalists(
                self.status.tried, effort.num_finalists, lost=early.lost, winner_id=early.winner_id
            )
        self.status.search_ends()
        self._progress.note(self.status.proving(len(finalists)))
        return finalists

    def baselines(self, ground: Ground, *, by_prediction: bool = False) -> list[Baseline]:
        """Return the baselines that finalists must beat besides stock DDP.

        Without trials, or with `by_prediction`, predictions choose them.
        """
        spares_trials = self.spares_trials or by_prediction
        return proof_baselines(self._study, self._trials, ground, spares_trials=spares_trials, progress=self._progress)

    def _is_worth_it(self) -> bool:
        """Whether further trials are worth their time; always true if the user asked for a number of trials.

        A search ends only after the proposer knew all trials: strategies that wait from before are proposed anew.
        """
        if self._outlook is None:
            return True
        is_new = self._rounds.fill(self.status.num_left)
        found = self._next_trials()
        if found is not None and not found.are_worth_it and not is_new:
            is_new = self._rounds.renew(self.status.num_left)
            found = self._next_trials()
        if found is None:
            return True
        if is_new or not found.are_worth_it:
            self.forecasts.append((len(self.status.tried), found))
        if is_new and found.are_worth_it:
            self._progress.note(str(found))
        return found.are_worth_it

    def _next_trials(self) -> NextTrials | None:
        """Return what the waiting trials are expected to bring; None if it is not known."""
        assert self._outlook is not None, "asked if no number of trials was given"
        seconds = [
            one.measurement.median_seconds
            for one in self._study.history()
            if one.measurement is not None and one.strategy_id not in self._early.lost
        ]
        best_seconds = min([*seconds, self._early.fastest_seconds])
        return self._outlook.next_trials(self.status, best_seconds=best_seconds, is_proof_due=self.is_proof_due)

    def _stop_early(self) -> None:
        self.ended = why_stop(self.status.records, bound_seconds=self._bound_seconds, patience=self._settings.patience)

    def _run_trial(self, started: StartedTrial) -> Record:
        """Run a trial and keep its record. After a failure of the machines, the candidate waits for another trial."""
        candidate = started.candidate
        is_repeated = self._study.is_repeated(candidate)
        ended = self._trials.attempt(
            candidate, started.number, best_seconds=self.status.best_seconds, is_repeated=is_repeated
        )
        record = ended.record
        self._study.tell(record, blame=ended.blame)
        if record.failure is not None and record.failure.is_infrastructure:
            self._study.enqueue([candidate])
        return record


def _early_answer(study: Study, settings: StudySettings) -> EarlyAnswer:
    """Return the early answer that a study has from before it was interrupted, if it has one."""
    if settings.training_seconds is None or not study.folder.summary.is_file():
        return EarlyAnswer()
    return EarlyAnswer.kept(load_shown(study.folder))
