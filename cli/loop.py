"""`autosync loop`: analyse a serial loop, and run it on several ranks."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from autosync.cli.output import force_option, json_option, note, print_json, print_text, refuse_overwrite

if TYPE_CHECKING:
    from autosync.loops.schedules import LoopSchedule, NoSchedule, ScheduleChoice

F = TypeVar("F", bound=Callable[..., Any])


def schedule_options(command: F) -> F:
    """Add the options that choose a schedule."""
    options = (
        click.option(
            "--schedule", type=click.Path(path_type=Path), metavar="FILE", help="A schedule that autosync tune wrote."
        ),
        click.option("--data-parallel", is_flag=True, help="Let ranks share rows through servers: changes the result."),
        click.option(
            "--merge-every", type=click.IntRange(1), help="Records of a rank between two merges.  [default: 1000]"
        ),
        click.option(
            "--staleness",
            type=click.IntRange(0, 64),
            help="Merges by which the rows that ranks read may lag.  [default: 0]",
        ),
    )
    for option in reversed(options):
        command = option(command)
    return command


@click.group(epilog="Example: autosync loop analyse examples/loops/matrix_factorisation.py")
def loop() -> None:
    """Analyse a serial loop over records, and run it on several ranks with the serial result."""


@loop.command(
    epilog="""\b
Examples:
  autosync loop analyse factors.py
  autosync loop analyse factors.py:step --workers 8 --json
  autosync loop analyse factors.py --picture schedule.svg"""
)
@click.argument("target", metavar="FILE.py[:NAME]")
@click.option(
    "--workers", "num_ranks", default=4, show_default=True, type=click.IntRange(1, 1024), help="Number of ranks."
)
@schedule_options
@click.option("--picture", type=click.Path(path_type=Path), metavar="FILE.svg", help="Draw the schedule's time steps.")
@force_option
@json_option
def analyse(*, target: str, num_ranks: int, picture: Path | None, force: bool, as_json: bool, **schedule: Any) -> None:
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

    refuse_overwrite(picture, force=force)
    choice = _choice(**schedule)
    found = load_loop(target)
    records = records_of(found, target)
    with naming(target):
        analysis = dependences.analyse(found, records)
    chosen = choose(analysis, records, num_ranks, choice)
    proof = None
    if not isinstance(chosen, NoSchedule):
        proof = prove(analysis, chosen, split(chosen, records), records)
    if picture is not None:
        _draw(chosen, found.name, picture)
    if as_json:
        print_json(describe.schedule_fields(analysis, chosen, proof))
    else:
        print_text(describe.describe(analysis, chosen, proof, num_ranks))


@loop.command(
    epilog="""\b
Examples:
  autosync loop run factors.py --workers 2 --epochs 10
  autosync loop run factors.py --cluster cluster.yaml -o factors.npz
  autosync loop run factors.py --cluster cluster.yaml --schedule schedule.yaml
  autosync loop run factors.py --workers 2 --data-parallel --merge-every 5000
  autosync loop run factors.py --epochs 20 --checkpoint factors.ckpt.npz --resume"""
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
@schedule_options
@click.option(
    "--checkpoint", type=click.Path(path_type=Path), metavar="FILE.npz", help="Rank 0 keeps the state of the run here."
)
@click.option("--every", type=click.IntRange(1), help="Epochs between two checkpoints.  [default: 1]")
@click.option("--resume", is_flag=True, help="Continue from the checkpoint; --epochs counts all epochs.")
@click.option(
    "--shards",
    metavar="DIR",
    help="Each rank keeps its records in a file of this folder on its disk, for later runs too.",
)
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
    checkpoint: Path | None,
    every: int | None,
    resume: bool,
    shards: str | None,
    output: Path | None,
    force: bool,
    as_json: bool,
    **schedule: Any,
) -> None:
    """Run a loop on several ranks, with the same tables as a serial run.

    The loop is analysed first. If it has no schedule, it is refused with the reasons. FILE.py must be at the same path
    on every node of CLUSTER. If the loop declares a loss, it is shown after each epoch.

    With --data-parallel, or a schedule file that asks for it, rows that ranks share go through servers, and the result
    is not that of a serial run.
    """
    from autosync.loops.checkpoints import Checkpoints
    from autosync.loops.launch import this_machine
    from autosync.loops.rank_run import LoopSettings
    from autosync.loops.reports import finite
    from autosync.loops.run import run_loop
    from autosync.specs.cluster_file import load_cluster

    if cluster is not None and num_ranks is not None:
        raise click.UsageError("--workers are ranks on this machine: it does not go with --cluster")
    if checkpoint is None and (every is not None or resume):
        raise click.UsageError("--every and --resume need --checkpoint")
    kept = None if checkpoint is None else Checkpoints(path=checkpoint, every=every or 1, resumes=resume)
    spec = this_machine(num_ranks or 2) if cluster is None else load_cluster(cluster, is_run=True)
    if spec.is_one_machine:
        # On another machine, rank 0 checks its files there.
        refuse_overwrite(output, force=force)
        refuse_overwrite(None if resume else checkpoint, force=force)
    settings = LoopSettings(
        num_epochs=epochs,
        seed=seed,
        compiled=not interpreted,
        choice=_choice(**schedule),
        shards="" if shards is None else str(Path(shards).resolve()),
    )
    result = run_loop(target, spec, settings, output=output, checkpoints=kept, force=force, show=note, told=_tell_epoch)
    if output is not None:
        note(f"wrote {output}")
    if as_json:
        print_json({"schema": "autosync.loop_run/1", **result, "losses": [*map(finite, result["losses"])]})
    else:
        print_text(_describe_run(result))


def _draw(schedule: LoopSchedule | NoSchedule, name: str, path: Path) -> None:
    from autosync import jsonio
    from autosync.loops.schedule_picture import schedule_picture
    from autosync.loops.schedules import NoSchedule

    if isinstance(schedule, NoSchedule):
        note(f"{path} is not written: there is no schedule to draw")
        return
    jsonio.write_text(path, schedule_picture(schedule, title=f"{name} on {schedule.num_ranks} ranks"))
    note(f"wrote {path}")


def _choice(
    *, schedule: Path | None, data_parallel: bool, merge_every: int | None, staleness: int | None
) -> ScheduleChoice:
    """Return the schedule that the options ask for."""
    from autosync.loops.schedule_file import read_choice
    from autosync.loops.schedules import ScheduleChoice

    given: dict[str, Any] = {
        name: value for name, value in (("merge_every", merge_every), ("staleness", staleness)) if value is not None
    }
    if given and not data_parallel:
        raise click.UsageError("--merge-every and --staleness need --data-parallel")
    if schedule is None:
        return ScheduleChoice(data_parallel=data_parallel, **given)
    if data_parallel:
        raise click.UsageError("--schedule names the whole schedule: it does not go with --data-parallel")
    return read_choice(schedule)


def _tell_epoch(told: dict[str, Any]) -> None:
    loss = "" if told["loss"] is None else f": loss {told['loss']:.6g}"
    note(f"epoch {told['epoch']}{loss}")


def _describe_run(result: dict[str, Any]) -> str:
    """Return a line about the run, the parts of the ranks' time, and a table of each rank's."""
    from autosync.loops.time_report import time_lines

    way = "compiled" if result["is_compiled"] else "interpreted"
    why = f" ({result['why_not_compiled']})" if result["why_not_compiled"] else ""
    lines = [
        f"{result['num_records']:,} records on {result['num_ranks']} ranks in {result['seconds']:.3f} s, {way}{why}",
        result["proof"],
        "",
        *time_lines(result["ranks"]),
    ]
    return "\n".join(lines)
