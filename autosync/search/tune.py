"""`tune`: find the strategy, prove it, hand it over. The whole road in one function."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from autosync import jsonio
from autosync.datasets.schema import Record
from autosync.errors import OperationError
from autosync.plan.bound import bound
from autosync.search.candidates import Candidate, default_as_strategy
from autosync.search.effort import Effort
from autosync.search.guarantee import Verdict, prove
from autosync.search.plan import plan_tuning
from autosync.search.progress import SILENT, Course, Progress, Tried
from autosync.search.rounds import Rounds
from autosync.search.stopping import why_stop
from autosync.search.study import Study
from autosync.search.summary import summary_fields
from autosync.search.trial import Trials
from autosync.strategy.bundle import save_bundle
from autosync.strategy.space.limits import InexactClass

DEFAULT_PATIENCE = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuned:
    """What tuning came to: the study's folder, its records in order, the verdict, and the fields of `summary.json`."""

    folder: Path
    records: tuple[Record, ...]
    verdict: Verdict
    summary: dict[str, object]


def tune(
    *,
    model: str | None = None,
    cluster: str | None = None,
    num_trials: int | None = None,
    budget_seconds: float | None = None,
    patience: int | None = DEFAULT_PATIENCE,
    effort: Effort | None = None,
    proposer: str | None = None,
    simulator: str | None = None,
    prior: Path | None = None,
    allow: Sequence[InexactClass] = (),
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
    after `budget_seconds`, and none once the last `patience` brought nothing. `simulator` predicts for proposers that
    ask, `prior` has records of other models and clusters for it to learn from. `allow` lets `lossy` and `stale`
    strategies in. `effort` says how much is measured of each. The fastest are measured again in turn with stock DDP.
    The winner is written as the study's `best.yaml` (and to `output`): stock DDP's own buckets where nothing beats it
    for certain. Trials that fail are kept as records; tuning goes on.

    Whatever interrupts it, trials that have ended are kept, and `resume` (a study) goes on with it: its settings are
    those that it was begun with, but for `num_trials`, `budget_seconds` and `effort` where given. `storage` is a URL of
    Optuna's in place of the study's own journal: all who name the same storage and study tune together. `replay` (a
    study, or a dataset) searches what was measured once instead of a cluster.
    """
    plan = plan_tuning(
        model=model,
        cluster=cluster,
        study=study,
        settings={
            "num_trials": num_trials,
            "budget_seconds": budget_seconds,
            "trial_timeout_seconds": trial_timeout_seconds,
            "seed": seed,
            "proposer": proposer,
            "simulator": simulator,
            "prior": None if prior is None else str(prior),
            "allow": tuple(allow),
            "effort": effort,
        },
        storage=storage,
        resume=resume,
        replay=replay,
        progress=progress,
    )
    settings = plan.settings
    asked_of = plan.proposer()
    course = Course(num_trials=settings.num_trials, budget_seconds=budget_seconds, effort=settings.effort)
    best_possible_seconds = bound(plan.model, plan.cluster).seconds
    ended: str | None = None
    try:
        with plan.open_study() as opened, plan.service() as service:
            course.go_on(opened.history())
            trials = Trials(
                study=opened.name,
                service=service,
                model=plan.model,
                cluster=plan.cluster,
                effort=settings.effort,
                **plan.circumstances(),
            )
            rounds = Rounds(opened, asked_of, seed=settings.seed)
            while ended is None and not course.is_over(opened.num_under_way()):
                asked = rounds.next(course.num_left)
                if asked is None:
                    ended = "nothing new is left to try"
                    break
                progress.now(course.beginning(asked.candidate))
                opened.tell(trials.run(asked.candidate, asked.number, best_seconds=course.best_seconds))
                course.take_in(opened.history())
                progress.note(course.outcome(asked.number))
                ended = why_stop(course.records, bound_seconds=best_possible_seconds, patience=patience)
            if ended is not None:
                progress.note(ended)
            finalists = _finalists(course.tried, settings.effort.num_finalists)
            if settings.num_trials == 0:
                finalists = rounds.predicted(settings.effort.num_finalists)
            progress.note(course.proving(len(finalists)))
            verdict = prove(trials, finalists, seed=settings.seed, progress=progress)
    except OperationError as error:
        raise OperationError(f"{error} (the study is kept in {plan.folder.path})") from error
    except KeyboardInterrupt:
        progress.note(f"{_counted(course.tried)} in {plan.folder.path}")
        raise
    records = tuple(course.records)
    summary = summary_fields(
        study=opened,
        model=plan.model,
        cluster=plan.cluster,
        records=records,
        verdict=verdict,
        wall_seconds=course.spent_seconds,
    )
    summary |= {"proposer": settings.proposer, "search_seconds": round(rounds.search_seconds, 3), "ended": ended}
    _hand_over(trials, opened, verdict, summary, output)
    return Tuned(folder=plan.folder.path, records=records, verdict=verdict, summary=summary)


def _finalists(tried: Sequence[Tried], num_finalists: int) -> list[Candidate]:
    """The fastest strategies of ours."""
    failures = [one.record.failure for one in tried if one.record.failure is not None]
    if tried and len(failures) == len(tried):
        raise OperationError(f"all {len(tried)} trials failed; the first: {failures[0].message}")
    measured = [
        (one.measurement.median_seconds, position)
        for position, one in enumerate(tried)
        if one.measurement is not None and one.candidate.strategy is not None
    ]
    return [tried[position].candidate for _, position in sorted(measured)[:num_finalists]]


def _counted(tried: Sequence[Tried]) -> str:
    """What an interrupted study has."""
    if len(tried) == 1:
        return "1 trial is kept"
    return f"{len(tried) or 'no'} trials are kept"


def _hand_over(trials: Trials, study: Study, verdict: Verdict, summary: dict[str, object], output: Path | None) -> None:
    """Write the winner's bundle and the summary. Where stock DDP wins, the bundle has its buckets as a strategy."""
    bundle = trials.bundle(verdict.winner.candidate) or trials.bundle(default_as_strategy(trials.model, trials.cluster))
    assert bundle is not None, "every strategy has a bundle"
    save_bundle(study.folder.best, bundle)
    jsonio.write_json(study.folder.summary, summary)
    if output is not None:
        save_bundle(output, bundle)
