"""`autosync draw`: pictures of plans and of timelines, as SVG."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from autosync.cli.operands import context_options, strategy_operand
from autosync.cli.output import force_option, json_option, note, print_json, refuse_overwrite

if TYPE_CHECKING:
    from collections.abc import Mapping

_output_option = click.option(
    "-o", "--output", type=click.Path(path_type=Path), metavar="PICTURE.svg", help="Write the picture here."
)
_title_option = click.option("--title", metavar="TEXT", help="The picture's title.")


@click.group()
def draw() -> None:
    """Draw plans and timelines as SVG, which browsers show.

    Without -o the picture is printed.
    """


@draw.command(
    epilog="""\b
Examples:
  autosync draw plan best.yaml -o plan.svg
  autosync draw plan hierarchical --model resnet18 --cluster 4-hosts-2-ranks -o plan.svg"""
)
@click.argument("name", metavar="S")
@context_options
@_title_option
@_output_option
@force_option
@json_option
def plan(
    *,
    name: str,
    model_target: str | None,
    cluster_target: str | None,
    title: str | None,
    output: Path | None,
    force: bool,
    as_json: bool,
) -> None:
    """Draw the plan of a strategy: the data of each rank, the transfers between ranks, and their lanes.

    S is a strategy file, a bundle (which contains its model and cluster), or the name of a preset.
    """
    from autosync.pictures.plan_picture import plan_picture
    from autosync.plan.identity import plan_id
    from autosync.plan.lowering import lower

    refuse_overwrite(output, force=force)
    operand = strategy_operand(name, model_target, cluster_target)
    strategy, model, cluster = operand.in_context("a plan is drawn for a model on a cluster")
    lowered = lower(strategy, model, cluster)
    called = title or strategy.name or Path(name).stem
    text = plan_picture(lowered, cluster, title=called, subtitle=f"{model.name} on {cluster.name}")
    facts = {"messages": len(lowered.messages), "lanes": lowered.num_lanes, "plan_id": plan_id(lowered, cluster)}
    _deliver(text, facts, output, as_json=as_json)


@draw.command(
    epilog="""\b
Examples:
  autosync draw timeline trace-rank0.json -o timeline.svg
  autosync draw timeline trace-rank0.json trace-rank1.json --first 10 --steps 1 -o step-10.svg"""
)
@click.argument("paths", metavar="TRACE.json ...", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option(
    "--steps", "num_steps", default=2, show_default=True, type=click.IntRange(1, 100), help="Number of steps."
)
@click.option(
    "--first", type=click.IntRange(0), metavar="STEP", help="The first step to draw.  [default: typical steps]"
)
@_title_option
@_output_option
@force_option
@json_option
def timeline(
    *,
    paths: tuple[Path, ...],
    num_steps: int,
    first: int | None,
    title: str | None,
    output: Path | None,
    force: bool,
    as_json: bool,
) -> None:
    """Draw some steps of a timeline: compute, waits, local work and lanes.

    TRACE.json is the file that `autosync.parallelize(..., trace="trace.json")` writes on each rank, or a simulator's.
    The ranks of several files are drawn below each other, on the clock of their machine.
    """
    from autosync.documents import to_plain
    from autosync.pictures.timeline_picture import figures, timeline_picture
    from autosync.pictures.trace_file import choose_steps, read_trace, steps_of

    refuse_overwrite(output, force=force)
    ranks = [rank for path in paths for rank in read_trace(path)]
    # A server's trace has no steps of its own; it is drawn for the workers' steps.
    steps = choose_steps(next((rank for rank in ranks if steps_of(rank)), ranks[0]), num_steps, first=first)
    text = timeline_picture(ranks, steps, title=title or ", ".join(rank.name for rank in ranks))
    facts = {"ranks": [to_plain(figures(rank, steps)) for rank in ranks]}
    _deliver(text, facts, output, as_json=as_json)


def _deliver(text: str, facts: Mapping[str, object], output: Path | None, *, as_json: bool) -> None:
    """Write the picture to its file or to stdout. With `--json`, print its facts instead."""
    from autosync import jsonio

    if output is not None:
        jsonio.write_text(output, text)
        note(f"wrote {output}")
    if as_json:
        print_json({"schema": "autosync.picture/1", "output": None if output is None else str(output), **facts})
    elif output is None:
        print(text, end="")
