"""The search loop: tries strategies until the trials or the time run out, or a rule stops it early."""

from __future__ import annotations

from autosync.datasets.schema import Record
from autosync.search.baselines import proof_baselines
from autosync.search.candidates import Candidate
from autosync.search.guarantee import Baseline, choose_finalists
from autosync.search.progress import ProgressListener, SearchStatus
from autosync.search.proposers.interface import Ground, Proposer
from autosync.search.rounds import Rounds
from autosync.search.running_study import RunningStudy
from autosync.search.stopping import why_stop
from autosync.search.study import StartedTrial
from autosync.search.study_folder import StudySettings
from autosync.simulators.interface import Simulator
from autosync.trials.outages import Outages


class SearchLoop:
    """The search of one running study. `ended` is the reason why it ended early; None if it did not."""

    def __init__(
        self, running: RunningStudy, proposer: Proposer, settings: StudySettings, progress: ProgressListener
    ) -> None:
        self.ended: str | None = None
        self.status = SearchStatus(
            num_trials=settings.num_trials, budget_seconds=settings.budget_seconds, effort=settings.effort
        )
        self._study = running.study
        self._trials = running.trials
        self._settings = settings
        self._progress = progress
        self._rounds = Rounds(running.study, proposer, seed=settings.seed)
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

    def run(self) -> None:
        """Try strategies until the search ends."""
        self._stop_early()
        outages = Outages()
        while self.ended is None and not self.status.is_over(self._study.num_under_way()):
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
            finalists = choose_finalists(self.status.tried, effort.num_finalists)
        self.status.search_ends()
        self._progress.note(self.status.proving(len(finalists)))
        return finalists

    def baselines(self, ground: Ground) -> list[Baseline]:
        """Return the baselines that finalists must beat besides stock DDP. Without trials, predictions choose them."""
        return proof_baselines(
            self._study, self._trials, ground, spares_trials=self.spares_trials, progress=self._progress
        )

    def _stop_early(self) -> None:
        # The bound holds for exact strategies only.
        bound_seconds = None if self._settings.allow else self._trials.limit().seconds
        self.ended = why_stop(self.status.records, bound_seconds=bound_seconds, patience=self._settings.patience)

    def _run_trial(self, started: StartedTrial) -> Record:
        """Run a trial and keep its record. After a failure of the machines, the candidate waits for another trial."""
        candidate = started.candidate
        is_repeated = self._study.is_repeated(candidate)
        record = self._trials.run(
            candidate, started.number, best_seconds=self.status.best_seconds, is_repeated=is_repeated
        )
        self._study.tell(record)
        if record.failure is not None and record.failure.is_infrastructure:
            self._study.enqueue([candidate])
        return record
