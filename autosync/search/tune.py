"""`tune`: find the strategy, prove it, hand it over. The whole road in one function."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from autosync import jsonio
from autosync.datasets.schema import Record
from autosync.errors import OperationError
from autosync.search.baselines import find_rivals
from autosync.search.effort import Effort
from autosync.search.guarantee import Verdict, choose_finalists, prove
from autosync.search.handover import bundle_of, usage, write_bundle
from autosync.search.own_cost import TimedService, peak_memory_bytes
from autosync.search.plan import plan_tuning
from autosync.search.progress import SILENT, Course, Progress, Tried
from autosync.search.proposers.catalogue import open_proposer
from autosync.search.rounds import Rounds
from autosync.search.stopping import why_stop
from autosync.search.study import Study
from autosync.search.summary import summary_fields
from autosync.search.target import Target
from autosync.search.trial import Trials
from autosync.simulators.compilation import compiling_is_told
from autosync.specs.cluster import ClusterSpec
from autosync.specs.model import ModelSpec
from autosync.strategy.space.limits import InexactClass


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuned:
    """What tuning came to: the study's folder, the verdict, and the fields of `summary.json`.

    `records` has the trials of the search in their order, `baselines` what was measured for the proof alone.
    """

    folder: Path
    model: ModelSpec
    cluster: ClusterSpec
    records: tuple[Record, ...]
    baselines: tuple[Record, ...]
    verdict: Verdict
    summary: dict[str, object]


def tune(
    *,
    model: str | None = None,
    cluster: str | None = None,
    num_trials: int | None = None,
    budget_seconds: float | None = None,
    patience: int | None = None,
    effort: Effort | None = None,
    proposer: str | None = None,
    simulator: str | None = None,
    prior: Path | str | None = None,
    allow: Sequence[InexactClass] = (),
    target: Target = "autosync",
    trial_timeout_seconds: float = 120.0,
    seed: int = 0,
    study: str | None = None,
    storage: str | None = None,
    resume: str | None = None,
    replay: str | None = None,
    output: Path | None = None,
    progress: Progress = SILENT,
) -> Tuned:
    """Find the fastest strategy for a model on a cluster and prove it against stock DDP.

    `model` names a task (`FILE.py[:NAME]`) or a model spec, whose compute is then replayed (a file or a shipped one,
    also `SPEC@x4`); `cluster` a cluster file or a shipped cluster. Strategies are tried one after another on the
    cluster, stock DDP first, then what the `proposer` says: `num_trials` at most (50 unless told otherwise), no new one
    after `budget_seconds`, and none once the last `patience` brought nothing (20 unless told otherwise, 0 for never).
    `simulator` predicts for proposers that ask. It begins with what a `prior` teaches, records of other models and
    clusters: those that ship where no simulator is named. `allow` lets `lossy` and `stale` strategies in; `target`
    "ddp" tries only what stock DDP can express, and by stock DDP. `effort` says how much is measured of each. The
    fastest are measured again in turn with stock DDP, stock DDP with its best single bucket and the best preset. The
    winner is written as the study's `best.yaml` (and to `output`): stock DDP's own buckets where nothing beats it for
    certain. Trials that fail are kept as records; tuning goes on.

    Whatever interrupts it, trials that have ended are kept, and `resume` (a study) goes on with it: its settings are
    those that it was begun with, but for `num_trials`, `budget_seconds`, `patience` and `effort` where given. `storage`
    is a URL of Optuna's in place of the study's own journal: all who name the same storage and study tune together.
    `replay` (a study, or a dataset) searches what was measured once instead of a cluster.
    """
    began = time.monotonic()
    plan = plan_tuning(
        model=model,
        cluster=cluster,
        study=study,
        settings={
            "num_trials": num_trials,
            "budget_seconds": budget_seconds,
            "patience": patience,
            "trial_timeout_seconds": trial_timeout_seconds,
            "seed": seed,
            "proposer": proposer,
            "simulator": simulator,
            "prior": None if prior is None else str(prior),
            "allow": tuple(allow),
            "target": target,
            "effort": effort,
        },
        storage=storage,
        resume=resume,
        replay=replay,
        progress=progress,
    )
    settings = plan.settings
    ground = plan.ground()
    asked_of = open_proposer(settings.proposer, ground)
    course = Course(num_trials=settings.num_trials, budget_seconds=settings.budget_seconds, effort=settings.effort)
    try:
        with plan.open_study() as opened, plan.service() as ranks, compiling_is_told(progress.now):
            course.go_on(opened.searched())
            service = TimedService(ranks)
            trials = plan.trials(opened.name, service)
            rounds = Rounds(opened, asked_of, seed=settings.seed)
            ended = _search(opened, trials, rounds, course, patience=settings.patience, progress=progress)
            # A study that was tried already is only to be proved.
            spares = settings.num_trials == 0 and not course.tried
            finalists = (
                rounds.predicted(settings.effort.num_predicted, ground.simulator)
                if spares
                else choose_finalists(course.tried, settings.effort.num_finalists)
            )
            progress.note(course.proving(len(finalists)))
            rivals = find_rivals(opened, trials, ground, spares_trials=spares, progress=progress) if finalists else ()
            verdict = prove(
                trials,
                finalists,
                rivals=rivals,
                best_seconds=course.best_seconds,
                seed=settings.seed,
                progress=progress,
            )
            records, baselines = tuple(course.records), tuple(opened.for_proof())
    except OperationError as error:
        raise OperationError(f"{error} (the study is kept in {plan.folder.path})") from error
    except KeyboardInterrupt:
        progress.note(f"{_counted(course.tried)} in {plan.folder.path}")
        raise
    bundle = bundle_of(trials, verdict.winner)
    path = write_bundle(bundle, plan.folder.best, output)
    how = usage(verdict.winner, bundle, path, script=plan.folder.script)
    if how.script is not None:
        jsonio.write_text(plan.folder.script, how.script)
    summary = summary_fields(
        study=opened,
        model=plan.model,
        cluster=plan.cluster,
        records=records,
        baselines=baselines,
        verdict=verdict,
        limit=trials.bound(),
        usage=how,
        bundle=plan.folder.best,
    )
    wall_seconds = time.monotonic() - began
    summary |= {
        "proposer": settings.proposer,
        "ended": ended,
        "wall_seconds": round(wall_seconds, 3),
        "search_seconds": round(rounds.search_seconds, 3),
        "own_seconds": round(wall_seconds - service.busy_seconds, 3),
        "peak_memory_bytes": peak_memory_bytes(),
    }
    jsonio.write_json(plan.folder.summary, summary)
    return Tuned(
        folder=plan.folder.path,
        model=plan.model,
        cluster=plan.cluster,
        records=records,
        baselines=baselines,
        verdict=verdict,
        summary=summary,
    )


def _search(
    study: Study, trials: Trials, rounds: Rounds, course: Course, *, patience: int, progress: Progress
) -> str | None:
    """Try one strategy after another; why it ended before all trials or all time were spent, if it did."""
    # The bound holds for exact strategies alone.
    bound_seconds = None if study.settings.allow else trials.bound().seconds
    ended = why_stop(course.records, bound_seconds=bound_seconds, patience=patience)
    while ended is None and not course.is_over(study.num_under_way()):
        asked = rounds.next(course.num_left)
        if asked is None:
            ended = "nothing new is left to try"
            break
        progress.now(course.beginning(asked.candidate))
        study.tell(trials.run(asked.candidate, asked.number, best_seconds=course.best_seconds))
        course.take_in(study.searched())
        progress.note(course.outcome(asked.number))
        ended = why_stop(course.records, bound_seconds=bound_seconds, patience=patience)
    if ended is not None:
        progress.note(ended)
    return ended


def _counted(tried: Sequence[Tried]) -> str:
    """What an interrupted study has."""
    if len(tried) == 1:
        return "1 trial is kept"
    return f"{len(tried) or 'no'} trials are kept"
