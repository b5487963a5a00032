"""`autosync emit`: write a strategy as settings of a stock engine."""

from __future__ import annotations

from pathlib import Path

import click

from autosync.cli.operands import strategy_operand
from autosync.cli.output import force_option, json_option, note, print_json, refuse_overwrite


@click.command(
    epilog="""\b
Examples:
  autosync emit best.yaml --to ddp
  autosync emit best.yaml --to ddp -o tuned_ddp.py
  autosync emit ddp.yaml --to ddp --model resnet50 --cluster 4-hosts --json"""
)
@click.argument("path", metavar="S", type=click.Path(path_type=Path))
@click.option("--to", "target", required=True, type=click.Choice(["ddp"]), help="The engine.")
@click.option("--model", "model_target", metavar="MODEL", help="The model of the strategy; a bundle has its own.")
@click.option(
    "--cluster", "cluster_target", metavar="CLUSTER", help="The cluster of the strategy; a bundle has its own."
)
@click.option("-o", "--output", type=click.Path(path_type=Path), metavar="FILE.py", help="Write the Python file here.")
@force_option
@json_option
def emit(
    *,
    path: Path,
    target: str,  # noqa: ARG001 - one engine so far
    model_target: str | None,
    cluster_target: str | None,
    output: Path | None,
    force: bool,
    as_json: bool,
) -> None:
    """Write a strategy as settings of a stock engine, or say why that engine cannot express it.

    S is a bundle written by `autosync tune`, or a strategy file with its --model and --cluster. For ddp the result is a
    Python file with one function. In the training script, call `wrap(model)` instead of
    `DistributedDataParallel(model)`. The file runs without autosync.
    """
    from autosync import jsonio
    from autosync.errors import DoesNotApplyError
    from autosync.strategy.emit.script import emit_ddp

    refuse_overwrite(output, force=force)
    operand = strategy_operand(str(path), model_target, cluster_target)
    strategy, model, cluster = operand.in_context("what DDP makes of a strategy depends on its model and cluster")
    try:
        emitted = emit_ddp(strategy, model, cluster)
    except DoesNotApplyError as error:
        raise error.located(str(path), 1) from error
    if output is not None:
        jsonio.write_text(output, emitted.python)
        note(f"wrote {output}: {emitted.fields['notes'][0]}")
    if as_json:
        print_json(emitted.fields)
    elif output is None:
        print(emitted.python, end="")
