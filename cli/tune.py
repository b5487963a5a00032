"""`autosync tune`: find the fastest strategy for a task on a cluster, and prove it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from autosync import units
from autosync.cli.dry_run import describe_launch, dry_run_option, launch_fields
from autosync.cli.output import force_option, json_option, print_json, refuse_overwrite
from autosync.cli.progress import Reporter

if TYPE_CHECKING:
    from collections.abc import Sequence

    from autosync.search.candidates import Candidate
    from autosync.search.plan import TuningPlan
    from autosync.search.tune import Tuned

NUM_SHOWN = 10
"""How many of the strategies that would be tried a dry run shows."""


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
  autosync tune resnet50 --cluster 4-hosts
  autosync tune resnet50 --cluster 4-hosts --dry-run"""
)
@click.argument("target", metavar="MODEL")
@click.option("--cluster", required=True, help="A cluster file, or the name of a shipped cluster.")
@click.option("--trials", default=20, show_default=True, type=click.IntRange(0, 100_000), help="Strategies to try.")
@click.option("--budget", callback=_seconds, metavar="TIME", help="Begin no trial after this time, such as 10min.")
@click.option(
    "--effort",
    default="normal",
    show_default=True,
    type=click.Choice(["normal", "quick"]),
    help="How much is measured of each strategy.",
)
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
@dry_run_option
@json_option
def tune(
    target: str,
    *,
    cluster: str,
    trials: int,
    budget: float | None,
    effort: str,
    trial_timeout: float,
    seed: int,
    study: str | None,
    output: Path | None,
    force: bool,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Try strategies on the cluster, keep the fastest, and prove it against stock DDP.

    MODEL is a file FILE.py[:NAME] with a function task() that returns an autosync.Task, or a model spec (a file, or
    the name of a shipped one, also SPEC@x4 for slow motion), whose compute is replayed. What was tried, the winner
    (best.yaml) and summary.json are left in autosync-studies/NAME.
    """
    refuse_overwrite(output, force=force)
    if dry_run:
        _dry_run(target, cluster=cluster, trials=trials, seed=seed, study=study, as_json=as_json)
        return
    # Loads torch and optuna, so it waits until the command line is known to be right.
    from autosync.search.effort import EFFORTS
    from autosync.search.tune import tune as run_tune

    with Reporter() as progress:
        tuned = run_tune(
            model=target,
            cluster=cluster,
            num_trials=trials,
            budget_seconds=budget,
            effort=EFFORTS[effort],
            trial_timeout_seconds=trial_timeout,
            seed=seed,
            study=study,
            output=output,
            progress=progress,
        )
    if as_json:
        print_json(tuned.summary)
    else:
        click.echo(describe(tuned, output))


def _dry_run(target: str, *, cluster: str, trials: int, seed: int, study: str | None, as_json: bool) -> None:
    """Show what would be started and tried first."""
    from itertools import islice

    from autosync.search.plan import plan_tuning

    with Reporter() as progress:
        plan = plan_tuning(model=target, cluster=cluster, study=study, seed=seed, progress=progress)
        first = list(islice(plan.candidates(), min(trials, NUM_SHOWN)))
    if as_json:
        print_json(_plan_fields(plan, first, trials))
    else:
        click.echo(_describe_plan(plan, first, trials))


def _plan_fields(plan: TuningPlan, first: Sequence[Candidate], trials: int) -> dict[str, object]:
    return {
        "schema": "autosync.tuning-plan/1",
        "model": plan.model.name,
        "cluster": plan.cluster.name,
        "study": str(plan.folder.path),
        "launch": launch_fields(plan.cluster, plan.request),
        "num_trials": trials,
        "first": [
            {
                "name": candidate.name,
                "origin": candidate.origin,
                "strategy_id": None if candidate.strategy is None else candidate.strategy_id,
                "in_words": candidate.in_words(plan.model),
            }
            for candidate in first
        ],
    }


def _describe_plan(plan: TuningPlan, first: Sequence[Candidate], trials: int) -> str:
    lines = [*describe_launch(plan.cluster, plan.request), ""]
    if first:
        which = f"first of {trials}" if trials > len(first) else "in this order"
        lines.append(f"would be tried, {which}:")
        lines += [f"  {candidate.name}: {candidate.in_words(plan.model)}" for candidate in first]
        lines.append("")
    return "\n".join([*lines, f"study: {plan.folder.path}"])


def describe(tuned: Tuned, output: Path | None) -> str:
    """The verdict for people."""
    return "\n".join([_tried(tuned), "", _contests(tuned), "", *_verdict(tuned), "", *_places(tuned, output)])


def _tried(tuned: Tuned) -> str:
    failed = sum(record.failure is not None for record in tuned.records)
    count = len(tuned.records)
    text = "1 strategy tried" if count == 1 else f"{count} strategies tried"
    if failed:
        text += f", {failed} of them failed (the study says why)"
    if len(tuned.verdict.contests) == 1:
        return f"{text}. Stock DDP alone:"
    return f"{text}. Stock DDP and the fastest others, measured again in turn:"


def _contests(tuned: Tuned) -> str:
    from autosync.cli.compare import table

    contests = tuned.verdict.contests
    return table(
        {contest.candidate.name: contest.measurement for contest in contests},
        {contest.candidate.name: contest.ratio.speedup for contest in contests if contest.ratio is not None},
    )


def _verdict(tuned: Tuned) -> list[str]:
    verdict = tuned.verdict
    lines = [f"{contest.ratio}." for contest in verdict.contests if contest.ratio is not None]
    lines += [f"{name} was left out: {one.kind}: {one.message}" for name, one in verdict.left_out.items()]
    if verdict.beats_default:
        candidate, summary = verdict.winner.candidate, tuned.summary["winner"]
        assert isinstance(summary, dict), "the summary's winner has fields"
        return [*lines, "", f"The winner is {candidate.name}:", f"  {summary['in_words']}"]
    if len(verdict.contests) == 1:
        return ["Nothing was there to compare with stock DDP: keep it."]
    return [*lines, "", "Nothing tried is faster than stock DDP for certain: keep it."]


def _places(tuned: Tuned, output: Path | None) -> list[str]:
    what = "" if tuned.verdict.beats_default else " (stock DDP's buckets as a strategy)"
    return [f"bundle: {output or tuned.folder / 'best.yaml'}{what}", f"study:  {tuned.folder}"]
