"""`autosync tune`: find the fastest strategy for a task on a cluster, and prove it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from autosync import units
from autosync.cli.output import force_option, json_option, note, print_json, refuse_overwrite
from autosync.errors import InputError
from autosync.specs.task_file import is_task

if TYPE_CHECKING:
    from autosync.search.guarantee import Contest
    from autosync.search.tune import Tuned


def _seconds(_context: click.Context, _parameter: click.Parameter, text: str | None) -> float | None:
    if text is None:
        return None
    try:
        return units.parse_time(text)
    except ValueError as error:
        raise click.BadParameter(str(error)) from error


@click.command(
    epilog="""\b
Examples:
  autosync tune model.py --cluster cluster.yaml -o best.yaml
  autosync tune examples/transformer.py --cluster local-2 --trials 8 --budget 2min"""
)
@click.argument("target", metavar="MODEL.py[:NAME]")
@click.option("--cluster", required=True, help="A cluster file, or the name of a shipped cluster.")
@click.option("--trials", default=20, show_default=True, type=click.IntRange(0, 100_000), help="Strategies to try.")
@click.option("--budget", callback=_seconds, metavar="TIME", help="Begin no trial after this time, such as 10min.")
@click.option(
    "--trial-timeout",
    default="2min",
    show_default=True,
    callback=_seconds,
    metavar="TIME",
    help="A trial that takes longer has failed.",
)
@click.option("--seed", default=0, show_default=True, help="Where sampling starts.")
@click.option("--study", metavar="NAME", help="The study's name.  [default: model, cluster and time]")
@click.option("-o", "--output", type=click.Path(path_type=Path), help="Write the winner's bundle here too.")
@force_option
@json_option
def tune(
    target: str,
    *,
    cluster: str,
    trials: int,
    budget: float | None,
    trial_timeout: float,
    seed: int,
    study: str | None,
    output: Path | None,
    force: bool,
    as_json: bool,
) -> None:
    """Try strategies on the cluster, keep the fastest, and prove it against stock DDP.

    MODEL.py holds a function task() that returns an autosync.Task. What was tried, the winner (best.yaml) and
    summary.json are left in autosync-studies/NAME.
    """
    refuse_overwrite(output, force=force)
    if not is_task(target):
        raise InputError(f"{target} is no task", rule="tuning runs the model itself: FILE.py or FILE.py:NAME")
    # Loads torch and optuna, so it waits until the command line is known to be right.
    from autosync.search.tune import tune as run_tune

    tuned = run_tune(
        model=target,
        cluster=cluster,
        num_trials=trials,
        budget_seconds=budget,
        trial_timeout_seconds=trial_timeout,
        seed=seed,
        study=study,
        output=output,
        progress=note,
    )
    if as_json:
        print_json(tuned.summary)
    else:
        click.echo(describe(tuned, output))


def describe(tuned: Tuned, output: Path | None) -> str:
    """The verdict for people."""
    verdict = tuned.verdict
    failed = sum(record.failure is not None for record in tuned.records)
    lines = [
        f"{len(tuned.records)} strategies tried, {failed} failed; the finalists, measured in turn with stock DDP:",
        "",
    ]
    lines += [f"  {_contest(contest)}" for contest in verdict.contests]
    winner = verdict.winner
    lines.append("")
    if verdict.beats_default:
        interval = winner.speedup
        lines.append(
            f"{winner.candidate.origin} is {interval.value:.2f} times as fast as stock DDP "
            f"(95 % interval {interval.low:.2f} to {interval.high:.2f}):"
        )
        summary = tuned.summary["winner"]
        assert isinstance(summary, dict), "the summary's winner has fields"
        lines.append(f"  {summary['in_words']}")
    else:
        lines.append("Nothing beats stock DDP for certain: keep it. The bundle has its buckets as a strategy.")
    lines += ["", f"bundle: {output or tuned.folder / 'best.yaml'}", f"study:  {tuned.folder}"]
    return "\n".join(lines)


def _contest(contest: Contest) -> str:
    seconds, speedup = contest.seconds, contest.speedup
    name = f"{contest.candidate.origin} {contest.candidate.strategy_id[:8]}"
    return (
        f"{name:36}  {seconds.value * 1e3:8.2f} ms a step ({seconds.low * 1e3:.2f} to {seconds.high * 1e3:.2f})"
        f"  x{speedup.value:.2f} ({speedup.low:.2f} to {speedup.high:.2f})"
    )
