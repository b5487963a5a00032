"""`tune`: find the strategy, prove it, hand it over. The whole road in one function."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from autosync import jsonio
from autosync.datasets.schema import Record
from autosync.errors import OperationError
from autosync.search.candidates import Candidate, candidates, default_as_strategy
from autosync.search.guarantee import Verdict, prove
from autosync.search.study import Study, check_name, new_study_folder
from autosync.search.summary import summary_fields
from autosync.search.trial import Trials
from autosync.specs.cluster_file import load_cluster
from autosync.specs.model_file import model_of
from autosync.specs.task_file import is_task
from autosync.strategy.bundle import save_bundle
from autosync.trials.ranks import plan_launch
from autosync.trials.service import TrialService

NUM_FINALISTS = 2
"""How many of the fastest are measured again beside stock DDP."""

Progress = Callable[[str], None]
Tried = tuple[Candidate, Record]


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
    trial_timeout_seconds: float = 120.0,
    seed: int = 0,
    study: str | None = None,
    output: Path | None = None,
    progress: Progress = lambda _: None,
) -> Tuned:
    """Find the fastest strategy for a model on a cluster and prove it against stock DDP.

    `model` names a task (`FILE.py[:NAME]`) or a model spec, whose compute is then replayed (a file or a shipped one,
    also `SPEC@x4`); `cluster` a cluster file or a shipped cluster. Strategies are tried one
    after another on the cluster, at most `num_trials` and no new one after `budget_seconds`; the fastest are measured
    again in turn with stock DDP. The winner is written as the study's `best.yaml` (and to `output`): stock DDP's own
    buckets where nothing beats it for certain. Trials that fail are kept as records; tuning goes on.
    """
    if study is not None:
        check_name(study)
    cluster_spec = load_cluster(cluster)
    # Refuses a cluster that cannot be started before anything is run or written.
    plan_launch(cluster_spec, Path())
    is_replayed = not is_task(model)
    progress(f"reading {model}" if is_replayed else f"profiling {model}")
    spec = model_of(model)
    settings = {"task": model, "num_trials": num_trials, "budget_seconds": budget_seconds, "seed": seed}
    opened = Study(new_study_folder(study, spec, cluster_spec), spec, cluster_spec, settings)
    started = time.monotonic()
    service = TrialService(
        target=model,
        model=spec,
        cluster=cluster_spec,
        folder=opened.folder.logs,
        seed=seed,
        timeout_seconds=trial_timeout_seconds,
    )
    with service:
        trials = Trials(study=opened.name, service=service, model=spec, cluster=cluster_spec, is_replayed=is_replayed)
        tried: list[Tried] = []
        for candidate in _within(candidates(spec, cluster_spec, seed), num_trials, budget_seconds):
            tried.append((candidate, _try(trials, opened, candidate)))
            progress(_told(tried, num_trials))
        finalists = _finalists(tried, opened.folder.path)
        progress(f"measuring stock DDP and the {len(finalists)} fastest again, in turn")
        verdict = prove(trials, finalists)
    records = tuple(record for _, record in tried)
    summary = summary_fields(
        study=opened,
        model=spec,
        cluster=cluster_spec,
        records=records,
        verdict=verdict,
        wall_seconds=time.monotonic() - started,
    )
    _hand_over(trials, opened, verdict, summary, output)
    return Tuned(folder=opened.folder.path, records=records, verdict=verdict, summary=summary)


def _within(drawn: Iterator[Candidate], num_trials: int, budget_seconds: float | None) -> Iterator[Candidate]:
    """As many candidates as asked for, while time is left."""
    started = time.monotonic()
    for candidate in itertools.islice(drawn, num_trials):
        if budget_seconds is not None and time.monotonic() - started >= budget_seconds:
            return
        yield candidate


def _try(trials: Trials, study: Study, candidate: Candidate) -> Record:
    number = study.ask()
    record = trials.run(candidate, number)
    study.tell(record)
    return record


def _told(tried: Sequence[Tried], num_trials: int) -> str:
    """What came of the last trial, and the best so far."""
    candidate, record = tried[-1]
    if record.measurement is None:
        assert record.failure is not None, "a record has a measurement or a failure"
        outcome = f"{record.failure.kind}: {record.failure.message}"
    else:
        outcome = f"{record.measurement.median_seconds * 1e3:.2f} ms a step"
    measured = [
        (other.measurement.median_seconds, index) for index, (_, other) in enumerate(tried) if other.measurement
    ]
    best = ""
    if measured:
        seconds, index = min(measured)
        best = f" (best so far: {seconds * 1e3:.2f} ms, {tried[index][0].name})"
    return f"trial {len(tried)} of {num_trials}: {candidate.name}: {outcome}{best}"


def _finalists(tried: Sequence[Tried], folder: Path) -> list[Candidate]:
    """The fastest strategies of ours."""
    failures = [record.failure for _, record in tried if record.failure is not None]
    if tried and len(failures) == len(tried):
        raise OperationError(
            f"all {len(tried)} trials failed; the first: {failures[0].message} (the study is kept in {folder})"
        )
    measured = [
        (record.measurement.median_seconds, position, candidate)
        for position, (candidate, record) in enumerate(tried)
        if record.measurement is not None and candidate.strategy is not None
    ]
    return [candidate for *_, candidate in sorted(measured)[:NUM_FINALISTS]]


def _hand_over(trials: Trials, study: Study, verdict: Verdict, summary: dict[str, object], output: Path | None) -> None:
    """Write the winner's bundle and the summary. Where stock DDP wins, the bundle has its buckets as a strategy."""
    bundle = trials.bundle(verdict.winner.candidate) or trials.bundle(default_as_strategy(trials.model, trials.cluster))
    assert bundle is not None, "every strategy has a bundle"
    save_bundle(study.folder.best, bundle)
    jsonio.write_json(study.folder.summary, summary)
    if output is not None:
        save_bundle(output, bundle)
