"""`autosync loop`: analyse a serial loop, and run it on several ranks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from autosync import units
from autosync.cli.output import force_option, json_option, note, print_json, print_text, refuse_overwrite


@click.group(epilog="Example: autosync loop analyse examples/loops/matrix_factorisation.py")
def loop() -> None:
    """Analyse a serial loop over records, and run it on several ranks with the serial result."""


@loop.command(
    epilog="""\b
Examples:
  autosync loop analyse factors.py
  autosync loop analyse factors.py:step --workers 8 --json"""
)
@click.argument("target", metavar="FILE.py[:NAME]")
@click.option(
    "--workers", "num_ranks", default=4, show_default=True, type=click.IntRange(1, 1024), help="Number of ranks."
)
@json_option
def analyse(*, target: str, num_ranks: int, as_json: bool) -> None:
    """Show the dependences of a loop, its schedule for several ranks with the reason, and the schedule's proof.

    FILE.py has a function of one record under @autosync.loop. The file is run to make the records and tables. Each line
    that cannot be analysed is named with the reason.
    """
    from autosync.loops import dependences, describe
    from autosync.loops.choosing import choose
    from autosync.loops.load import load_loop, naming, records_of
    from autosync.loops.proof import prove
    from autosync.loops.record_blocks import split
    from autosync.loops.schedules import NoSchedule

    found = load_loop(target)
    records = records_of(found, target)
    with naming(target):
        analysis = dependences.analyse(found, records)
    schedule = choose(analysis, records, num_ranks)
    proof = None
    if not isinstance(schedule, NoSchedule):
        proof = prove(analysis, schedule, split(schedule, records), records)
    if as_json:
        print_json(describe.schedule_fields(analysis, schedule, proof))
    else:
        print_text(describe.describe(analysis, schedule, proof, num_ranks))


@loop.command(
    epilog="""\b
Examples:
  autosync loop run factors.py --workers 2 --epochs 10
  autosync loop run factors.py --cluster cluster.yaml -o factors.npz"""
)
@click.argument("target", metavar="FILE.py[:NAME]")
@click.option(
    "--workers", "num_ranks", type=click.IntRange(1, 64), help="Number of ranks on this machine.  [default: 2]"
)
@click.option("--cluster", metavar="CLUSTER", help="Run on the workers of this cluster instead.")
@click.option(
    "--epochs", default=1, show_default=True, type=click.IntRange(1), help="Number of passes over all records."
)
@click.option("--seed", default=0, show_default=True, type=click.IntRange(0), help="The seed of the initial tables.")
@click.option("--interpreted", is_flag=True, help="Run the function in Python, even if numba could compile it.")
@click.option(
    "-o", "--output", type=click.Path(path_type=Path), metavar="TABLES.npz", help="Rank 0 writes the tables here."
)
@force_option
@json_option
def run(
    *,
    target: str,
    num_ranks: int | None,
    cluster: str | None,
    epochs: int,
    seed: int,
    interpreted: bool,
    output: Path | None,
    force: bool,
    as_json: bool,
) -> None:
    """Run a loop on several ranks, with the same tables as a serial run.

    The loop is analysed first. If it has no schedule, it is refused with the reasons. FILE.py must be at the same path
    on every node of CLUSTER. If the loop declares a loss, it is shown after each epoch.
    """
    from autosync.loops.rank_program import LoopSettings
    from autosync.loops.run import run_loop, this_machine
    from autosync.specs.cluster_file import load_cluster

    if cluster is not None and num_ranks is not None:
        raise click.UsageError("--workers are ranks on this machine: it does not go with --cluster")
    refuse_overwrite(output, force=force)
    spec = this_machine(num_ranks or 2) if cluster is None else load_cluster(cluster)
    settings = LoopSettings(num_epochs=epochs, seed=seed, compiled=not interpreted)
    result = run_loop(target, spec, settings, output=output, show=note, told=_tell_epoch)
    if output is not None:
        note(f"wrote {output}")
    if as_json:
        print_json({"schema": "autosync.loop_run/1", **result})
    else:
        print_text(_describe_run(result))


def _tell_epoch(told: dict[str, Any]) -> None:
    loss = "" if told["loss"] is None else f": loss {told['loss']:.6g}"
    note(f"epoch {told['epoch']}{loss}")


def _describe_run(result: dict[str, Any]) -> str:
    """Return a line about the run, and a table of the parts of each rank's time."""
    from autosync.strategy.wording import format_table

    way = "compiled" if result["is_compiled"] else "interpreted"
    why = f" ({result['why_not_compiled']})" if result["why_not_compiled"] else ""
    rows = [
        (
            str(one["rank"]),
            f"{one['num_records']:,}",
            f"{one['compute_seconds']:.3f} s",
            f"{one['wait_seconds']:.3f} s",
            f"{one['merge_seconds']:.3f} s",
            units.format_size(one["sent_bytes"]),
        )
        for one in result["ranks"]
    ]
    header = ("rank", "records", "compute", "waits", "merges", "sent in rotation")
    lines = [
        f"{result['num_records']:,} records on {result['num_ranks']} ranks in {result['seconds']:.3f} s, {way}{why}",
        result["proof"],
        "",
        format_table(rows, header=header, right=header),
    ]
    return "\n".join(lines)
