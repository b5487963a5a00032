"""`autosync tune`: find the fastest strategy for a task on a cluster, and prove it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from autosync import units
from autosync.cli.output import force_option, json_option, note, print_json, refuse_overwrite

if TYPE_CHECKING:
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
  autosync tune examples/transformer.py --cluster local-2 --trials 8 --budget 2min
  autosync tune resnet50 --cluster 4-hosts"""
)
@click.argument("target", metavar="MODEL")
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

    MODEL is a file FILE.py[:NAME] with a function task() that returns an autosync.Task, or a model spec (a file, or
    the name of a shipped one, also SPEC@x4 for slow motion), whose compute is replayed. What was tried, the winner
    (best.yaml) and summary.json are left in autosync-studies/NAME.
    """
    refuse_overwrite(output, force=force)
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
    return "\n".join([_tried(tuned), "", *_contests(tuned), "", *_verdict(tuned), "", *_places(tuned, output)])


def _tried(tuned: Tuned) -> str:
    failed = sum(record.failure is not None for record in tuned.records)
    count = len(tuned.records)
    text = "1 strategy tried" if count == 1 else f"{count} strategies tried"
    if failed:
        text += f", {failed} of them failed (the study says why)"
    return f"{text}. Stock DDP and the fastest others, measured again in turn:"


def _contests(tuned: Tuned) -> list[str]:
    """A table: milliseconds a step and how many times as fast as stock DDP, each with its 95 % interval."""
    rows = [("", "ms a step", "(95 % interval)", "speedup", "(95 % interval)")]
    for contest in tuned.verdict.contests:
        seconds, speedup = contest.seconds, contest.speedup
        rows.append(
            (
                contest.candidate.name,
                f"{seconds.value * 1e3:.2f}",
                f"({seconds.low * 1e3:.2f} to {seconds.high * 1e3:.2f})",
                f"{speedup.value:.2f}",
                f"({speedup.low:.2f} to {speedup.high:.2f})",
            )
        )
    widths = [max(len(row[column]) for row in rows) for column in range(5)]
    return [
        f"  {row[0]:{widths[0]}}  {row[1]:>{widths[1]}} {row[2]:{widths[2]}}  {row[3]:>{widths[3]}} {row[4]}"
        for row in rows
    ]


def _verdict(tuned: Tuned) -> list[str]:
    winner = tuned.verdict.winner
    if not tuned.verdict.beats_default:
        if len(tuned.verdict.contests) == 1:
            return ["Nothing was there to compare with stock DDP: keep it."]
        return ["Nothing tried is faster than stock DDP for certain: keep it."]
    interval = winner.speedup
    summary = tuned.summary["winner"]
    assert isinstance(summary, dict), "the summary's winner has fields"
    factor = f"{interval.value:.2f} times as fast as stock DDP ({interval.low:.2f} to {interval.high:.2f})"
    return [f"{winner.candidate.name} is {factor}:", f"  {summary['in_words']}"]


def _places(tuned: Tuned, output: Path | None) -> list[str]:
    what = "" if tuned.verdict.beats_default else " (stock DDP's buckets as a strategy)"
    return [f"bundle: {output or tuned.folder / 'best.yaml'}{what}", f"study:  {tuned.folder}"]
