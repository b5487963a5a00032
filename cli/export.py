"""`autosync export`: the records of studies as a file for other tools."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import click

from autosync.cli.output import force_option, json_option, note, print_json, refuse_overwrite
from autosync.errors import InputError, Problem, first_problems

if TYPE_CHECKING:
    from collections.abc import Sequence

    from autosync.datasets.schema import Record

_FORMATS = ("parquet", "csv", "jsonl")


@click.command(
    epilog="""\b
Examples:
  autosync export autosync-studies/resnet50 --format parquet -o records.parquet
  autosync export -o records.csv"""
)
@click.argument("names", metavar="[STUDY ...]", nargs=-1)
@click.option(
    "--format",
    "file_format",
    type=click.Choice(_FORMATS),
    help="The format of the file; by default the one that its name ends with.",
)
@click.option("-o", "--output", type=click.Path(path_type=Path), metavar="OUT", required=True, help="Write them here.")
@click.option(
    "--skip-unreadable", is_flag=True, help="Leave out trials whose records cannot be read, and say which they are."
)
@force_option
@json_option
def export(
    *,
    names: tuple[str, ...],
    file_format: Literal["parquet", "csv", "jsonl"] | None,
    output: Path,
    skip_unreadable: bool,
    force: bool,
    as_json: bool,
) -> None:
    """Write the records of studies: a row for each trial, measured or failed.

    STUDY is a study folder, or the name of one in ./autosync-studies; without any, all of those are taken.
    """
    from autosync.datasets.export import export as export_records
    from autosync.datasets.export import format_of
    from autosync.datasets.studies import read_study

    refuse_overwrite(output, force=force)
    found_format = format_of(output, file_format)
    folders = _folders(names)
    problems: list[Problem] = []
    records = [record for folder in folders for record in read_study(folder, report=problems.append)]
    if problems and not skip_unreadable:
        hint = "--skip-unreadable writes all the others"
        raise InputError(first_problems([replace(p, hint=f"{p.hint}; {hint}" if p.hint else hint) for p in problems]))
    for problem in problems:
        note(f"left out: {problem}")
    export_records(records, output, found_format, force=force)
    note(f"wrote {output}: {_counts(records, folders)}")
    if as_json:
        num_failed = sum(record.failure is not None for record in records)
        print_json(
            {
                "output": str(output),
                "format": found_format,
                "studies": [str(folder) for folder in folders],
                "num_records": len(records),
                "num_failed": num_failed,
                "left_out": [str(problem) for problem in problems],
            }
        )


def _folders(names: Sequence[str]) -> list[Path]:
    from autosync.datasets.studies import STUDIES_FOLDER, find_studies, find_study

    # A study that is named twice is still there once.
    folders = list({path.resolve(): path for path in map(find_study, names)}.values()) if names else find_studies()
    if not folders:
        hint = "name the folder of a study, or make one with autosync tune"
        raise InputError(f"there are no studies in ./{STUDIES_FOLDER}", rule="at least one study", hint=hint)
    return folders


def _counts(records: Sequence[Record], folders: Sequence[Path]) -> str:
    num_failed = sum(record.failure is not None for record in records)
    studies = "1 study" if len(folders) == 1 else f"{len(folders)} studies"
    trials = "1 record" if len(records) == 1 else f"{len(records)} records"
    return f"{trials} of {studies}, {num_failed} of them a failure"
