"""`autosync compare`: measure strategies in turn and say which is faster, or that no difference was found."""

from __future__ import annotations

import contextlib
import shlex
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import click

from autosync.cli.contest_table import format_contest, rows_of
from autosync.cli.dry_run import describe_launch, dry_run_option, launch_fields
from autosync.cli.operands import CLUSTER_HELP, model_and_cluster, tell_of_idle_gpus
from autosync.cli.options import positive_seconds, seed_option
from autosync.cli.output import (
    force_option,
    json_option,
    note,
    page_option,
    print_json,
    print_text,
    refuse_overwrite,
)
from autosync.cli.profile_warnings import profile_warning_lines
from autosync.cli.progress import Reporter
from autosync.strategy.wording import wrapped

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from autosync.specs.cluster import ClusterSpec
    from autosync.specs.model import ModelSpec
    from autosync.trials.comparison import Comparison
    from autosync.trials.contestant import Contestant
    from autosync.trials.statistics import Interval


@click.command(
    epilog="""\b
Examples:
  autosync compare examples/transformer.py --cluster local-2 best.yaml
  autosync compare resnet50 --cluster 8-hosts-one-slow torch-ddp all_reduce_per_variable ps_load_balanced
  autosync compare resnet50 --cluster 4-hosts best.yaml -o comparison.html"""
)
@click.argument("model_target", metavar="MODEL")
@click.argument("names", metavar="A B ...", nargs=-1, required=True)
@click.option("--cluster", "cluster_target", required=True, help=CLUSTER_HELP)
@click.option(
    "--steps",
    default=60,
    show_default=True,
    type=click.IntRange(1, 100_000),
    help="Steps to measure of the fastest; slower ones have fewer.",
)
@click.option(
    "--budget",
    default="2min",
    show_default=True,
    callback=positive_seconds,
    metavar="TIME",
    help="The time for all measurements.",
)
@click.option(
    "--timeout",
    default="2min",
    show_default=True,
    callback=positive_seconds,
    metavar="TIME",
    help="Leave out a contestant whose block of steps takes longer.",
)
@seed_option
@page_option
@force_option
@dry_run_option
@json_option
def compare(
    *,
    model_target: str,
    names: tuple[str, ...],
    cluster_target: str,
    steps: int,
    budget: float,
    timeout: float,
    seed: int,
    report: Path | None,
    force: bool,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Measure A, B ... in turn on a cluster, and say which is faster.

    A, B: strategy files, bundles, names of presets, or torch-ddp (stock DDP itself). A single contestant is compared
    with stock DDP. MODEL is a task, or a model spec whose compute is replayed.
    """
    from autosync.specs.task_file import is_task
    from autosync.trials.compare import Design
    from autosync.trials.compare import compare as run_comparison
    from autosync.trials.contestant_names import TORCH_DDP, check_names, contestants_by_name, have_stages
    from autosync.trials.service import TrialService

    refuse_overwrite(report, force=force)
    wanted = names if len(names) > 1 else (TORCH_DDP, *names)
    check_names(wanted)
    model, cluster = model_and_cluster(model_target, cluster_target, is_run=True, cuts=have_stages(wanted))
    if is_task(model_target):
        tell_of_idle_gpus(cluster)
    contestants = contestants_by_name(wanted, model, cluster, is_replayed=not is_task(model_target))
    if dry_run:
        _dry_run(contestants, model, cluster, as_json=as_json)
        return
    with Reporter() as progress, _logs() as logs:
        with TrialService(
            target=model_target, model=model, cluster=cluster, folder=logs, seed=seed, timeout_seconds=timeout
        ) as service:
            comparison = run_comparison(
                service,
                contestants,
                design=Design(num_steps=steps, budget_seconds=budget),
                seed=seed,
                compute_seconds=_compute_seconds(contestants, model, cluster),
                progress=progress.now,
            )
        if not comparison.failures:
            shutil.rmtree(logs, ignore_errors=True)
    if as_json:
        print_json(fields(comparison, model, cluster))
    else:
        print_text(describe(comparison, model))
    if report is not None:
        words = ["autosync", "compare", model_target, "--cluster", cluster_target, *wanted, "--steps", str(steps)]
        limits = ["--budget", f"{budget:.12g}s", "--timeout", f"{timeout:.12g}s"]
        command = shlex.join([*words, *limits, "--seed", str(seed)])
        _write_page(report, comparison, contestants, (model, cluster), command=command)


def _compute_seconds(contestants: Sequence[Contestant], model: ModelSpec, cluster: ClusterSpec) -> dict[str, float]:
    """Return the compute time of each contestant's step, by name."""
    from autosync.report.comparison_page import strategies_of
    from autosync.strategy.stage_compute import strategy_compute_seconds

    return {name: strategy_compute_seconds(one, model, cluster) for name, one in strategies_of(contestants).items()}


def _write_page(
    path: Path,
    comparison: Comparison,
    contestants: Sequence[Contestant],
    subject: tuple[ModelSpec, ClusterSpec],
    *,
    command: str,
) -> None:
    """Write the page about a comparison of contestants for a model on a cluster."""
    from autosync import jsonio
    from autosync.report.comparison_page import ComparisonReport, comparison_page, strategies_of

    found = ComparisonReport(
        comparison=comparison,
        model=subject[0],
        cluster=subject[1],
        strategies=strategies_of(contestants),
        command=command,
    )
    jsonio.write_text(path, comparison_page(found))
    note(f"wrote {path}")


def _dry_run(contestants: Sequence[Contestant], model: ModelSpec, cluster: ClusterSpec, *, as_json: bool) -> None:
    """Show what would be started and compared."""
    from autosync.specs.profile.quality import profile_fields
    from autosync.strategy.bundle import Bundle
    from autosync.strategy.describe import in_words
    from autosync.trials.ranks import plan_launch

    _, request = plan_launch(cluster, Path("LOGS") / "ranks-1")
    told = {
        one.name: in_words(one.bundle.strategy, model) if isinstance(one.bundle, Bundle) else "stock DDP as it ships"
        for one in contestants
    }
    if as_json:
        head = {"schema": "autosync.comparison-plan/1", "model": model.name, "cluster": cluster.name}
        plan = {**head, "profile": profile_fields(model)}
        contests = [{"name": name, "in_words": words} for name, words in told.items()]
        print_json({**plan, "launch": launch_fields(cluster, request), "contestants": contests})
    else:
        lines = [*describe_launch(cluster, request), "", "would be measured in turn:"]
        lines += [f"  {name}: {words}" for name, words in told.items()]
        print_text("\n".join([*lines, *profile_warning_lines(model)]))


@contextlib.contextmanager
def _logs() -> Iterator[Path]:
    """Yield a folder for the ranks' logs, which is kept if it has logs at the end."""
    logs = Path(tempfile.mkdtemp(prefix="autosync-compare-"))
    try:
        yield logs
    finally:
        if any(path.is_file() for path in logs.rglob("*")):
            note(f"the logs of the ranks are in {logs}")
        else:
            shutil.rmtree(logs, ignore_errors=True)


def fields(comparison: Comparison, model: ModelSpec, cluster: ClusterSpec) -> dict[str, object]:
    """Return the comparison for programs."""
    from autosync.documents import to_plain
    from autosync.specs.profile.quality import profile_fields

    return {
        "schema": "autosync.comparison/1",
        "model": model.name,
        "cluster": cluster.name,
        "profile": profile_fields(model),
        "num_rounds": comparison.num_rounds,
        "steps_per_round": dict(comparison.steps_per_round),
        "contestants": [
            {"name": name, "measurement": to_plain(measurement)}
            for name, measurement in comparison.measurements.items()
        ],
        "ratios": [
            {
                "name": ratio.name,
                "other": ratio.other,
                "speedup": _interval_fields(ratio.speedup),
                "verdict": ratio.verdict,
                "in_words": str(ratio),
            }
            for ratio in comparison.ratios
        ],
        "beats_first": list(comparison.beats_first),
        "best": comparison.best,
        "failures": {name: to_plain(failure) for name, failure in comparison.failures.items()},
    }


def _interval_fields(interval: Interval) -> dict[str, float]:
    return {"value": interval.value, "low": interval.low, "high": interval.high}


def describe(comparison: Comparison, model: ModelSpec) -> str:
    """Return the comparison for users: a table, and a line for each verdict."""
    speedups = {ratio.name: ratio.speedup for ratio in comparison.ratios}
    table = format_contest(rows_of(comparison.measurements, speedups, model))
    lines = [f"{comparison.rounds_in_words}:", "", table, ""]
    lines += wrapped(f"{ratio}." for ratio in comparison.ratios)
    if comparison.best is not None and len(comparison.measurements) > 2:
        lines.append(f"{comparison.best} is the fastest: faster than each of the others.")
    elif len(comparison.measurements) > 2:
        lines.append("None is faster than each of the others.")
    lines += wrapped(f"{name} was left out: {one.kind}: {one.message}" for name, one in comparison.failures.items())
    lines += profile_warning_lines(model)
    return "\n".join(lines)
