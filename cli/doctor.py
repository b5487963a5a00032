"""`autosync doctor`: explain why a step takes as long as it does."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import click
from click.core import ParameterSource

from autosync.cli.operands import CLUSTER_HELP, model_and_cluster
from autosync.cli.options import ScriptCommand, positive_seconds, script_of_command
from autosync.cli.output import (
    force_option,
    json_option,
    note,
    page_option,
    print_json,
    print_text,
    refuse_overwrite,
)
from autosync.cli.progress import Reporter

if TYPE_CHECKING:
    from autosync.doctor.diagnosis import Diagnosis
    from autosync.doctor.wording import Operands
    from autosync.specs.cluster import ClusterSpec
    from autosync.specs.model import ModelSpec


@click.command(
    cls=ScriptCommand,
    epilog="""\b
Examples:
  autosync doctor --cluster cluster.yaml -- train.py --epochs 3
  autosync doctor examples/transformer.py --cluster local-2
  autosync doctor resnet50 --cluster 4-hosts-one-slow --json
  autosync doctor model.py --cluster cluster.yaml -o diagnosis.html""",
)
@click.argument("model_target", metavar="[MODEL | -- TRAIN.py ARGS]", required=False)
@click.option("--cluster", "cluster_target", required=True, help=CLUSTER_HELP)
@click.option(
    "--steps", default=12, show_default=True, type=click.IntRange(2, 1000), help="Steps to watch, if the time suffices."
)
@click.option(
    "--timeout",
    default="90s",
    show_default=True,
    callback=positive_seconds,
    metavar="TIME",
    help="End the ranks after this time.",
)
@click.option("--no-probe", is_flag=True, help="Do not measure the links; use the rates in the cluster file.")
@page_option
@force_option
@json_option
@click.pass_context
def doctor(
    context: click.Context,
    *,
    model_target: str | None,
    cluster_target: str,
    steps: int,
    timeout: float,
    no_probe: bool,
    report: Path | None,
    force: bool,
    as_json: bool,
) -> None:
    """Explain why a step takes as long as it does: one cause, its share of the step, and the next command.

    The cluster's launcher runs some steps of stock DDP, and each rank notes when its passes and messages begin and end.
    TRAIN.py is an unchanged script that wraps its model in DistributedDataParallel. It is stopped after these steps.
    MODEL is a task, or a model spec whose compute is replayed. If transfers matter, the links are measured as well.
    Models on GPUs are refused.
    """
    from autosync.doctor.examine import examine
    from autosync.doctor.wording import Operands, describe, fields

    refuse_overwrite(report, force=force)
    script = script_of_command(context)
    model, cluster = _what(model_target, cluster_target, script)
    with Reporter() as progress, _logs() as logs:
        diagnosis = examine(
            cluster,
            target=model_target,
            model=model,
            script=script,
            num_steps=steps,
            seconds=timeout,
            probes=not no_probe,
            folder=logs,
            progress=progress.now,
        )
    options = _given(context, {"steps": str(steps), "timeout": f"{timeout:.12g}s", "no_probe": None})
    operands = Operands(cluster=cluster_target, model=model_target, script=script, options=options)
    if as_json:
        print_json(fields(diagnosis, operands))
    else:
        print_text(describe(diagnosis, operands))
    if report is not None:
        _write_page(report, diagnosis, operands, cluster)


def _given(context: click.Context, values: Mapping[str, str | None]) -> tuple[str, ...]:
    """Return the words of those options that were given on the command line; a flag has no value."""
    words: list[str] = []
    for name, value in values.items():
        if context.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            words += [f"--{name.replace('_', '-')}", *([] if value is None else [value])]
    return tuple(words)


def _write_page(path: Path, diagnosis: Diagnosis, operands: Operands, cluster: ClusterSpec) -> None:
    """Write the page about a diagnosis."""
    from autosync import jsonio
    from autosync.report.diagnosis_page import DiagnosisReport, diagnosis_page

    jsonio.write_text(path, diagnosis_page(DiagnosisReport(diagnosis=diagnosis, operands=operands, cluster=cluster)))
    note(f"wrote {path}")


def _what(target: str | None, cluster: str, script: tuple[str, ...]) -> tuple[ModelSpec | None, ClusterSpec]:
    """Return the model, if one is named instead of a script, and the cluster."""
    from autosync.doctor.examine import refuse_gpus
    from autosync.specs.cluster_file import load_cluster

    if bool(script) == (target is not None):
        raise click.UsageError("name a MODEL, or a script after --: one of them")
    loaded = load_cluster(cluster, is_run=True)
    if target is None:
        return None, loaded
    # Before the task is profiled.
    refuse_gpus(target, loaded)
    return model_and_cluster(target, cluster, is_run=True)


@contextlib.contextmanager
def _logs() -> Iterator[Path]:
    """Yield a folder for the ranks' output. It is kept if the block raises an error."""
    logs = Path(tempfile.mkdtemp(prefix="autosync-doctor-"))
    try:
        yield logs
    except BaseException:
        if any(path.stat().st_size for path in logs.rglob("*.log")):
            note(f"what ranks wrote: {logs}")
        else:
            shutil.rmtree(logs, ignore_errors=True)
        raise
    shutil.rmtree(logs, ignore_errors=True)
