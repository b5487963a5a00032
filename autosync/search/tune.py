"""`tune`: find the strategy, prove it, hand it over. The whole road in one function."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from autosync import jsonio
from autosync.datasets.schema import Record
from autosync.errors import OperationError
from autosync.search.candidates import Candidate, default_as_strategy
from autosync.search.effort import NORMAL_EFFORT, Effort
from autosync.search.guarantee import Verdict, prove
from autosync.search.plan import plan_tuning
from autosync.search.progress import SILENT, Course, Progress, Tried
from autosync.search.study import Study
from autosync.search.summary import summary_fields
from autosync.search.trial import Trials
from autosync.specs.model_file import split_dilation
from autosync.strategy.bundle import save_bundle
from autosync.trials.others import Others
from autosync.trials.service import TrialService


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuned:
    """What tuning came to: the study's folder, its records in order, the verdict, and the fields of `summary.json`."""

    folder: Path
    records: tuple[Record, ...]
    verdict: Verdict
    summary: dict[str, object]


def tune(
    *,
    model: str,
    cluster: str,
    num_trials: int = 20,
    budget_seconds: float | None = None,
    effort: Effort = NORMAL_EFFORT,
    trial_timeout_seconds: float = 120.0,
    seed: int = 0,
    study: str | None = None,
    output: Path | None = None,
    progress: Progress = SILENT,
) -> Tuned:
    """Find the fastest strategy for a model on a cluster and prove it against stock DDP.

    `model` names a task (`FILE.py[:NAME]`) or a model spec, whose compute is then replayed (a file or a shipped one,
    also `SPEC@x4`); `cluster` a cluster file or a shipped cluster. Strategies are tried one after another on the
    cluster, at most `num_trials` and no new one after `budget_seconds`; `effort` says how much is measured of each. The
    fastest are measured again in turn with stock DDP. The winner is written as the study's `best.yaml` (and to
    `output`): stock DDP's own buckets where nothing beats it for certain. Trials that fail are kept as records; tuning
    goes on. Whatever interrupts it, the trials that have ended are kept in the study.
    """
    plan = plan_tuning(model=model, cluster=cluster, study=study, seed=seed, progress=progress)
    settings = {
        "task": model,
        "num_trials": num_trials,
        "budget_seconds": budget_seconds,
        "effort": asdict(effort),
        "seed": seed,
    }
    opened = Study(plan.folder, plan.model, plan.cluster, settings)
    course = Course(num_trials=num_trials, budget_seconds=budget_seconds, effort=effort)
    try:
        with TrialService(
            target=model,
            model=plan.model,
            cluster=plan.cluster,
            folder=plan.folder.logs,
            seed=seed,
            timeout_seconds=trial_timeout_seconds,
        ) as service:
            trials = Trials(
                study=opened.name,
                service=service,
                model=plan.model,
                cluster=plan.cluster,
                is_replayed=plan.is_replayed,
                effort=effort,
                dilation=split_dilation(model)[1] or 1.0,
                # Elsewhere ranks are no children of this process, or not on this machine.
                others_share=Others().share if plan.cluster.launcher in {"local", "testbed"} else None,
            )
            drawn = plan.candidates()
            while not course.is_over and (candidate := next(drawn, None)) is not None:
                progress.now(course.beginning(candidate))
                course.tried.append(_try(trials, opened, candidate, course.best_seconds))
                progress.note(course.outcome())
            finalists = _finalists(course.tried, effort.num_finalists)
            progress.note(course.proving(len(finalists)))
            verdict = prove(trials, finalists, seed=seed, progress=progress)
    except OperationError as error:
        raise OperationError(f"{error} (the study is kept in {plan.folder.path})") from error
    except KeyboardInterrupt:
        progress.note(f"{_counted(course.tried)} in {plan.folder.path}")
        raise
    records = tuple(one.record for one in course.tried)
    summary = summary_fields(
        study=opened,
        model=plan.model,
        cluster=plan.cluster,
        records=records,
        verdict=verdict,
        wall_seconds=course.spent_seconds,
    )
    _hand_over(trials, opened, verdict, summary, output)
    return Tuned(folder=plan.folder.path, records=records, verdict=verdict, summary=summary)


def _try(trials: Trials, study: Study, candidate: Candidate, best_seconds: float | None) -> Tried:
    number = study.ask()
    record = trials.run(candidate, number, best_seconds=best_seconds)
    study.tell(record)
    return Tried(candidate=candidate, record=record)


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
