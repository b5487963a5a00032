"""`autosync emit`: a strategy as settings of a stock engine."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from autosync.cli.output import force_option, json_option, note, print_json, refuse_overwrite
from autosync.errors import InputError

if TYPE_CHECKING:
    from autosync.specs.cluster import ClusterSpec
    from autosync.specs.model import ModelSpec
    from autosync.strategy.representation import Strategy


@click.command(
    epilog="""\b
Examples:
  autosync emit best.yaml --to ddp
  autosync emit best.yaml --to ddp -o tuned_ddp.py
  autosync emit ddp.yaml --to ddp --model resnet50 --cluster 4-hosts --json"""
)
@click.argument("path", metavar="S", type=click.Path(path_type=Path))
@click.option("--to", "target", required=True, type=click.Choice(["ddp"]), help="The engine.")
@click.option("--model", "model_target", metavar="MODEL", help="What a strategy that is no bundle is for.")
@click.option("--cluster", "cluster_target", metavar="CLUSTER", help="Where it is to run.")
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
    """Write a strategy as settings of a stock engine, or say why that engine cannot do it.

    S is a bundle written by `autosync tune`, or a strategy file with its --model and --cluster. For ddp the result is a
    Python file with one function: in the training script, `wrap(model)` takes the place of
    `DistributedDataParallel(model)`. Nothing of autosync is needed to run it.
    """
    from autosync.errors import DoesNotApplyError
    from autosync.strategy.emit.script import emit_ddp

    refuse_overwrite(output, force=force)
    strategy, model, cluster = _strategy(path, model_target, cluster_target)
    try:
        emitted = emit_ddp(strategy, model, cluster)
    except DoesNotApplyError as error:
        raise error.located(str(path), 1) from error
    if output is not None:
        output.write_text(emitted.python, encoding="utf-8")
        note(f"wrote {output}: {emitted.fields['notes'][0]}")
    if as_json:
        print_json(emitted.fields)
    elif output is None:
        print(emitted.python, end="")


def _strategy(
    path: Path, model_target: str | None, cluster_target: str | None
) -> tuple[Strategy, ModelSpec, ClusterSpec]:
    """A strategy and what it is for: what the user names, else what the bundle says."""
    from autosync import documents
    from autosync.specs.cluster_file import load_cluster
    from autosync.specs.model_file import model_of
    from autosync.strategy.bundle import load_bundle
    from autosync.strategy.files import is_bundle, load_strategy_for

    if model_target is not None and cluster_target is not None:
        # The cluster first: a mistake in it is told before a task is profiled.
        cluster = load_cluster(cluster_target)
        model = model_of(model_target)
        return load_strategy_for(path, model, cluster), model, cluster
    if model_target is None and cluster_target is None and is_bundle(documents.read_document(path)):
        bundle = load_bundle(path)
        return bundle.strategy, bundle.model, bundle.cluster
    if model_target is not None or cluster_target is not None:
        missing = "--cluster" if cluster_target is None else "--model"
        raise InputError(f"{missing} is missing", rule="--model and --cluster go together")
    rule = "what DDP makes of a strategy depends on its model and cluster"
    raise InputError(f"{path} names no model and no cluster", rule=rule, hint="give --model and --cluster")
