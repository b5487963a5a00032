"""Tunes a script that runs on the ranks of a cluster: a search, a proof, and the cost of both."""

from __future__ import annotations

import shlex
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from autosync import jsonio
from autosync.script.script_facts import ScriptFacts
from autosync.script_tuning.changed_links import with_measured_links
from autosync.script_tuning.cost import TuningCost
from autosync.script_tuning.input_waits import InputWaits
from autosync.script_tuning.kept_training import Chosen
from autosync.script_tuning.plan import ScriptPlan
from autosync.script_tuning.service import ScriptTrials
from autosync.script_tuning.thinking import ProposerMeanwhile
from autosync.search.candidates import STOCK_DDP, Candidate, candidate_of
from autosync.search.guarantee import prove
from autosync.search.own_cost import TimedService
from autosync.search.prepared_trial import TrialPreparer
from autosync.search.progress import ProgressListener
from autosync.search.proposers.catalogue import open_proposer
from autosync.search.proposers.interface import Ground, Proposer
from autosync.search.rounds import first_round
from autosync.search.running_study import RunningStudy
from autosync.search.search_loop import SearchLoop
from autosync.search.study_folder import StudyFolder, StudySettings, folder_named_after
from autosync.search.tuned import Tuned, hand_over, records_of
from autosync.simulators.compile_notice import compiling_is_told
from autosync.specs.cluster import ClusterSpec

NUM_AGAIN = 4
"""The strategies of a study that are tried again when the script is tuned again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptTuning:
    """The result of tuning a script: that of other studies, the cost, and how steps waited for input."""

    tuned: Tuned
    cost: TuningCost
    waits: InputWaits | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptTuner:
    """Tunes a script that runs, once or several times."""

    command: tuple[str, ...]
    cluster: ClusterSpec
    facts: ScriptFacts
    trials: ScriptTrials
    settings: Mapping[str, Any]
    output: Path | None
    progress: ProgressListener

    def tune(
        self, folder: StudyFolder, *, began: float, first_step: int = 0, before: Sequence[Candidate] = ()
    ) -> ScriptTuning:
        """Search and prove in a new study; `before` were fast in an earlier one, and are tried early.

        `began` is the start on the monotonic clock, when the script had made `first_step` steps.
        """
        settings = StudySettings(name=folder.path.name, is_script=True, **self.settings)
        plan = ScriptPlan(
            settings=_searched_longer(settings, len(before)) if before else settings,
            preparer=TrialPreparer(self.facts.model, self.cluster),
            folder=folder,
            is_new=True,
            running=self.trials,
            users_update=bool(self.facts.reasons),
        )
        tuned = _search_and_prove(plan, before, began=began, output=self.output, progress=self.progress)
        cost = TuningCost.of(
            tuned.verdict,
            first_step=first_step,
            num_steps=self.trials.num_steps - first_step,
            wall_seconds=time.monotonic() - began,
        )
        waits = self.trials.input_waits
        tuned = _with_cost(tuned, cost, waits, folder, self.command, self.output)
        return ScriptTuning(tuned=tuned, cost=cost, waits=waits)

    def with_measured_links(self) -> ScriptTuner:
        """Measure the links while the script waits; return the tuner for the cluster as it is now."""
        cluster = with_measured_links(self.cluster, self.progress.note)
        self.trials.fit(self.facts.model, cluster)
        return replace(self, cluster=cluster)

    def again(self, before: Tuned, number: int) -> ScriptTuning:
        """Tune once more, in a study of its own, which also tries the strategies that were fastest before."""
        folder = folder_named_after(f"{before.folder.name}-again-{number}", "", "")
        return self.tune(folder, began=time.monotonic(), first_step=self.trials.num_steps, before=_fastest(before))

    def chosen(self, tuned: Tuned) -> Chosen:
        """Return what trains by the result of a tuning."""
        wins = tuned.verdict.beats_default
        preparer = TrialPreparer(self.facts.model, self.cluster)
        return tuned.verdict, preparer.prepare(tuned.verdict.winner.candidate).bundle if wins else None


def _searched_longer(settings: StudySettings, num_before: int) -> StudySettings:
    """Return the settings of tuning again: twice as many trials, besides those of the strategies of before.

    The script trains meanwhile, mostly by strategies faster than the one that became slow, so trials cost little.
    """
    patience = 2 * settings.patience + num_before if settings.patience else 0
    return replace(settings, num_trials=2 * settings.num_trials + num_before, patience=patience)


def _fastest(before: Tuned) -> list[Candidate]:
    """Return the fastest strategies of a study, fastest first."""
    measured = sorted(
        (one.measurement.median_seconds, position)
        for position, one in enumerate(before.records)
        if one.measurement is not None
    )
    return [candidate_of(before.records[position]) for _, position in measured[:NUM_AGAIN]]


def _search_and_prove(
    plan: ScriptPlan, before: Sequence[Candidate], *, began: float, output: Path | None, progress: ProgressListener
) -> Tuned:
    """Search as in every study, and prove the result; write the bundle and the summary. `before` are tried early."""
    with plan.open_study() as study, plan.service() as service, compiling_is_told(progress.now):
        timed = TimedService(service)
        run = RunningStudy(study=study, trials=plan.trials(study.name, timed), service=timed)
        ground, proposer = plan.running.train_while(lambda: _opened(plan), None)
        if before:
            # After the first round: a search that knows only strategies of another time stays near them.
            study.enqueue([*plan.running.train_while(lambda: _first_round(plan, proposer), None), *before])
        meanwhile = ProposerMeanwhile(proposer, plan.running, plan.preparer)
        search = SearchLoop(run, meanwhile, ground, plan.settings, progress)
        search.run()
        finalists = search.finalists(ground.simulator)
        best_seconds, seed = search.status.best_seconds, plan.settings.seed
        verdict = prove(
            run.trials,
            finalists,
            best_seconds=best_seconds,
            seed=seed,
            sustained=plan.running.sustained,
            progress=progress,
        )
        records = records_of(run, search)
    return hand_over(plan, run, search, verdict, records, output=output, began=began)


def _first_round(plan: ScriptPlan, proposer: Proposer) -> list[Candidate]:
    """Return what a study without a past tries first."""
    return [STOCK_DDP, *first_round(proposer, plan.settings.num_trials, seed=plan.settings.seed)]


def _opened(plan: ScriptPlan) -> tuple[Ground, Proposer]:
    ground = plan.ground()
    return ground, open_proposer(plan.settings.proposer, ground)


def _with_cost(  # noqa: PLR0917 - what a summary of a script has beside that of other studies
    tuned: Tuned,
    cost: TuningCost,
    waits: InputWaits | None,
    folder: StudyFolder,
    command: Sequence[str],
    output: Path | None,
) -> Tuned:
    """Add the cost and the waits for input to the summary, and the way to train the script by the bundle."""
    winner: Any = tuned.summary["winner"]
    if tuned.verdict.beats_default:
        bundle, words = output or folder.best, shlex.join(command)
        use = [
            f"autosync launch {bundle} -- {words}",
            f"or under torchrun: AUTOSYNC_BUNDLE={bundle} torchrun … -m autosync.run {words}",
        ]
        winner = {**winner, "use": use}
    summary = {**tuned.summary, "winner": winner, "cost": cost.fields()}
    if waits is not None:
        summary["input"] = waits.fields()
    jsonio.write_json(folder.summary, summary)
    return replace(tuned, summary=summary)
