"""`autosync export`: write the records of studies and datasets in a format for other tools."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import click

from autosync.cli.consent_prompt import consent_of, trust_option
from autosync.cli.output import force_option, json_option, note, print_json, refuse_overwrite
from autosync.errors import InputError, Problem, first_problems

if TYPE_CHECKING:
    from collections.abc import Sequence

    from autosync.datasets.dataset import Dataset
    from autosync.datasets.schema import Record

_FORMATS = ("parquet", "csv", "jsonl", "autodist")


@click.command(
    epilog="""\b
Examples:
  autosync export autosync-studies/resnet50 --format parquet -o records.parquet
  autosync export -o records.csv
  autosync export datasets/records --format autodist -o release"""
)
@click.argument("names", metavar="[STUDY ...]", nargs=-1)
@click.option(
    "--format",
    "file_format",
    type=click.Choice(_FORMATS),
    help="The format of the file.  [default: by the ending of its name]",
)
@click.option(
    "-o", "--output", type=click.Path(path_type=Path), metavar="OUT", required=True, help="Write the records here."
)
@click.option(
    "--skip-unreadable", is_flag=True, help="Leave out trials whose records cannot be read, and list these trials."
)
@force_option
@trust_option
@json_option
def export(
    *,
    names: tuple[str, ...],
    file_format: Literal["parquet", "csv", "jsonl", "autodist"] | None,
    output: Path,
    skip_unreadable: bool,
    force: bool,
    trust: bool,
    as_json: bool,
) -> None:
    """Write the records of studies or datasets: a row for each trial, measured or failed.

    STUDY is a study's folder, the name of a study in ./autosync-studies, or a dataset as autosync dataset takes it.
    Without STUDY, all studies there are exported. The format autodist writes folders in the layout of AutoDist's
    release: one for each model, with a folder for each cluster, which has resource_spec, runtime and strategies.
    """
    from autosync.datasets.autodist_folder import write_autodist_folder
    from autosync.datasets.dataset import Dataset
    from autosync.datasets.export import export as export_records
    from autosync.datasets.export import format_of
    from autosync.datasets.files import refuse_folder
    from autosync.datasets.parquet_folder import distinct
    from autosync.datasets.studies import storage_named
    from autosync.specs.consent import require

    if file_format == "autodist":
        if force:
            raise click.UsageError("--force replaces a file; a folder is never replaced")
        refuse_folder(output)
    else:
        refuse_overwrite(output, force=force)
    shown_format = file_format if file_format == "autodist" else format_of(output, file_format)
    paths = _paths(names)
    require([one for path in paths for one in storage_named(path)], consent_of(trust=trust))
    sources = [Dataset(path) for path in paths]
    read, problems = read_records(sources, skip_unreadable=skip_unreadable)
    records = list(distinct(read))
    if file_format == "autodist":
        write_autodist_folder(records, [spec for source in sources for spec in source.specs()], output)
    else:
        export_records(records, output, file_format, force=force)
    doubles = len(read) - len(records)
    note(f"wrote {output}: {_counts(records, sources)}" + (f"; {doubles:,} were there twice" if doubles else ""))
    if as_json:
        num_failed = sum(record.failure is not None for record in records)
        print_json(
            {
                "output": str(output),
                "format": shown_format,
                "studies": [str(source.path) for source in sources],
                "num_records": len(records),
                "num_failed": num_failed,
                "left_out": [str(problem) for problem in problems],
            }
        )


def read_records(sources: Sequence[Dataset], *, skip_unreadable: bool) -> tuple[list[Record], list[Problem]]:
    """Return all records and the unreadable entries. Raise at unreadable entries unless the user allows them."""
    problems: list[Problem] = []
    records = [record for source in sources for record in source.records(problems.append)]
    if problems and not skip_unreadable:
        hint = "--skip-unreadable writes all the others"
        raise InputError(first_problems([replace(p, hint=f"{p.hint}; {hint}" if p.hint else hint) for p in problems]))
    for problem in problems:
        note(f"left out: {problem}")
    return records, problems


def _paths(names: Sequence[str]) -> list[Path]:
    from autosync.datasets.studies import STUDIES_FOLDER, find_studies, find_study

    # A study that is named twice is exported once.
    folders = list({path.resolve(): path for path in map(find_study, names)}.values()) if names else find_studies()
    if not folders:
        hint = "name the folder of a study, or make one with autosync tune"
        raise InputError(f"there are no studies in ./{STUDIES_FOLDER}", rule="at least one study", hint=hint)
    return folders


def _counts(records: Sequence[Record], sources: Sequence[Dataset]) -> str:
    num_failed = sum(record.failure is not None for record in records)
    what = "study" if all(source.kind == "study" for source in sources) else "dataset"
    named = {"study": "studies", "dataset": "datasets"}[what]
    studies = f"1 {what}" if len(sources) == 1 else f"{len(sources)} {named}"
    trials = "1 record" if len(records) == 1 else f"{len(records)} records"
    return f"{trials} of {studies}, {num_failed} of them a failure"
