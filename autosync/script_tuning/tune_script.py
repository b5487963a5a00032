"""`tune_script`: tuning an unchanged script while it trains, in one function.

The script runs once, by the cluster's launcher. Its first steps are observed under stock DDP, and make the model spec
and the limits of the space. Then the search of every study tries strategies, each for some steps of the script's own
training, and the proof compares the fastest with stock DDP in turn. All strategies are exact, so the script trains as
it would under stock DDP.
"""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from autosync import jsonio
from autosync.datasets.files import check_writable
from autosync.datasets.studies import STUDIES_FOLDER
from autosync.launchers.request import TrainingScript
from autosync.script.observing import ScriptFacts
from autosync.script_tuning.cost import TuningCost
from autosync.script_tuning.launch import ScriptRanks
from autosync.script_tuning.plan import SCRIPT_EFFORT, ScriptPlan
from autosync.script_tuning.service import ScriptTrials
from autosync.script_tuning.thinking import ProposerMeanwhile
from autosync.search.guarantee import prove
from autosync.search.own_cost import TimedService
from autosync.search.planning import choose_prior
from autosync.search.prepared_trial import TrialPreparer
from autosync.search.progress import SILENT, ProgressListener
from autosync.search.proposers.catalogue import open_proposer
from autosync.search.proposers.interface import Ground, Proposer
from autosync.search.running_study import RunningStudy
from autosync.search.search_loop import SearchLoop
from autosync.search.study_folder import StudyFolder, StudySettings, folder_named_after
from autosync.search.tuned import Tuned, hand_over, records_of
from autosync.simulators.compile_notice import compiling_is_told
from autosync.specs.cluster import ClusterSpec

DEFAULTS: Mapping[str, Any] = {"num_trials": 12, "patience": 8, "effort": SCRIPT_EFFORT}
"""Fewer trials than in other studies: each takes steps of the training."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptTuning:
    """The result of tuning a script: that of other studies, and the cost. `code` is the script's exit code."""

    tuned: Tuned
    cost: TuningCost
    code: int = 0


def tune_script(
    command: Sequence[str],
    cluster: ClusterSpec,
    *,
    settings: Mapping[str, Any],
    keep_training: bool = False,
    environment: Mapping[str, str] | None = None,
    study: str | None = None,
    output: Path | None = None,
    show: Callable[[str], None] = lambda _: None,
    told: Callable[[ScriptTuning], None] = lambda _: None,
    progress: ProgressListener = SILENT,
) -> ScriptTuning:
    """Tune the script of a command (`train.py ARGS`, or `-m MODULE ARGS`) on all ranks of a cluster.

    The script ends with the proof, where its next step would begin. With `keep_training` it goes on by the winner to
    its own end, and `show` gets the lines that it writes. `told` gets the result as soon as it is known. `settings` are
    the fields of `StudySettings` that the user gave; None means not given.
    """
    check_writable(Path(STUDIES_FOLDER) / "study")
    name = _name_of(command)
    folder = folder_named_after(study, name, cluster.name)
    given = {key: value for key, value in settings.items() if value is not None}
    choose_prior(given)
    script = TrainingScript(command=tuple(command), environment=environment or {})
    progress.note(f"starting {shlex.join(command)} on {cluster.num_workers} ranks of {cluster.name}")
    with ScriptRanks(cluster, script, name=name, folder=folder.path / "ranks") as ranks:
        progress.now("observing the first steps, under stock DDP")
        facts, answers = ranks.observe()
        began = time.monotonic() - sum(answers[0]["step_seconds"])
        for reason in facts.reasons:
            progress.note(f"only the script's optimizer may update: {reason}")
        trials = ScriptTrials(ranks, observed=answers)
        plan = _planned(facts, cluster, folder, trials, {"task": shlex.join(command), **DEFAULTS, **given})
        ranks.fit(plan.model)
        tuned = _search_and_prove(plan, began=began, output=output, progress=progress)
        wins = tuned.verdict.beats_default
        if keep_training:
            trials.go_on(plan.preparer.prepare(tuned.verdict.winner.candidate).bundle if wins else None)
        wall_seconds = time.monotonic() - began
        cost = TuningCost.of(tuned.verdict, num_steps=trials.num_steps, wall_seconds=wall_seconds)
        result = ScriptTuning(tuned=_with_cost(tuned, cost, folder, command, output), cost=cost)
        told(result)
        if keep_training:
            return replace(result, code=ranks.watch(show))
        ranks.end()
        return result


def _name_of(command: Sequence[str]) -> str:
    """Return the name of a script: that of its file without `.py`, or that of its module."""
    return command[1] if command[0] == "-m" and len(command) > 1 else Path(command[0]).stem


def _planned(
    facts: ScriptFacts, cluster: ClusterSpec, folder: StudyFolder, trials: ScriptTrials, settings: Mapping[str, Any]
) -> ScriptPlan:
    return ScriptPlan(
        settings=StudySettings(name=folder.path.name, is_script=True, **settings),
        preparer=TrialPreparer(facts.model, cluster),
        folder=folder,
        is_new=True,
        running=trials,
        users_update=bool(facts.reasons),
    )


def _search_and_prove(plan: ScriptPlan, *, began: float, output: Path | None, progress: ProgressListener) -> Tuned:
    """Search as in every study, and prove the result; write the bundle and the summary."""
    with plan.open_study() as study, plan.service() as service, compiling_is_told(progress.now):
        timed = TimedService(service)
        run = RunningStudy(study=study, trials=plan.trials(study.name, timed), service=timed)
        ground, proposer = plan.running.train_while(lambda: _opened(plan), None)
        search = SearchLoop(run, ProposerMeanwhile(proposer, plan.running, plan.preparer), plan.settings, progress)
        search.run()
        finalists = search.finalists(ground.simulator)
        best_seconds, seed = search.status.best_seconds, plan.settings.seed
        verdict = prove(run.trials, finalists, best_seconds=best_seconds, seed=seed, progress=progress)
        records = records_of(run, search)
    return hand_over(plan, run, search, verdict, records, output=output, began=began)


def _opened(plan: ScriptPlan) -> tuple[Ground, Proposer]:
    ground = plan.ground()
    return ground, open_proposer(plan.settings.proposer, ground)


def _with_cost(
    tuned: Tuned, cost: TuningCost, folder: StudyFolder, command: Sequence[str], output: Path | None
) -> Tuned:
    """Add the cost to the summary, and the way to train the script by the bundle."""
    winner: Any = tuned.summary["winner"]
    if tuned.verdict.beats_default:
        bundle, words = output or folder.best, shlex.join(command)
        use = [
            f"autosync launch {bundle} -- {words}",
            f"or under torchrun: AUTOSYNC_BUNDLE={bundle} torchrun … -m autosync.run {words}",
        ]
        winner = {**winner, "use": use}
    summary = {**tuned.summary, "winner": winner, "cost": cost.fields()}
    jsonio.write_json(folder.summary, summary)
    return replace(tuned, summary=summary)
