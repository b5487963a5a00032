"""`autosync dataset`: count and check the records of a dataset, merge datasets, and split one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import click

from autosync.cli.consent_prompt import consent_of
from autosync.cli.export import read_records
from autosync.cli.output import force_option, json_option, note, print_json, print_text, refuse_overwrite
from autosync.errors import InputError, Problem, first_problems
from autosync.strategy.wording import format_table

if TYPE_CHECKING:
    from autosync.datasets.dataset import Dataset
    from autosync.datasets.facts import Spec
    from autosync.datasets.schema import Record
    from autosync.datasets.stats import CombinationStats, Stats

_SOURCE = (
    "PATH is a folder with records.parquet, a store of a campaign, a study, a folder as AutoDist has it, or a file of "
    "records (parquet, csv, jsonl)."
)
_OPTIONAL = f"{_SOURCE} Without it: the records that ship with autosync."

_path_argument = click.argument("path", required=False, type=click.Path(path_type=Path))
_folder_option = click.option(
    "-o", "--output", type=click.Path(path_type=Path), metavar="FOLDER", required=True, help="Write it here."
)
_skip_option = click.option(
    "--skip-unreadable", is_flag=True, help="Leave out unreadable entries, report them, and keep them in a file."
)


@click.group(epilog="Example: autosync dataset stats datasets/records")
def dataset() -> None:
    """Count, check, import, merge and split records."""


@dataset.command(
    epilog="""\b
Examples:
  autosync dataset stats datasets/records
  autosync dataset stats autosync-studies/resnet50 --picture spread.svg""",
    help=f"Count the records, models and clusters of a dataset.\n\n{_OPTIONAL}",
)
@_path_argument
@click.option("--picture", type=click.Path(path_type=Path), metavar="PICTURE.svg", help="Draw all step times here.")
@force_option
@json_option
def stats(*, path: Path | None, picture: Path | None, force: bool, as_json: bool) -> None:
    """Count the records, models and clusters of a dataset."""
    from autosync.datasets.stats import dataset_stats

    refuse_overwrite(picture, force=force)
    source = _source(path)
    problems: list[Problem] = []
    records = list(source.records(problems.append))
    found = dataset_stats(records)
    for problem in problems:
        note(f"left out: {problem}")
    if picture is not None:
        _draw(records, picture, source.path)
    if as_json:
        print_json({**asdict(found), "left_out": [str(problem) for problem in problems]})
    else:
        print_text(_told(found))


@dataset.command(
    epilog="Example: autosync dataset validate datasets/records",
    help=f"Check that records fit their models and clusters, and that no record occurs twice.\n\n{_OPTIONAL}",
)
@_path_argument
@json_option
def validate(*, path: Path | None, as_json: bool) -> None:
    """Check every record."""
    from autosync.datasets.checks import Checker

    source = _source(path)
    problems: list[Problem] = []
    checker = Checker(source.specs())
    num_records = 0
    for record in source.records(problems.append):
        num_records += 1
        found = checker.problems(record)
        problems += [replace(problem, file=str(source.path)) for problem in found]
    if as_json:
        told = [str(problem) for problem in problems]
        print_json({"path": str(source.path), "num_records": num_records, "problems": told})
    if problems:
        raise InputError(first_problems(problems))
    if not as_json:
        print_text(f"{source.path}: {num_records:,} records, nothing wrong with them")


@dataset.command(
    epilog="Example: autosync dataset merge autosync-campaigns/first lab/records -o all",
    help=f"Merge datasets into a folder with records.parquet and specs.parquet, each record once.\n\n{_SOURCE}",
)
@click.argument("paths", metavar="PATH ...", nargs=-1, required=True, type=click.Path(path_type=Path))
@_folder_option
@_skip_option
@force_option
@json_option
def merge(*, paths: tuple[Path, ...], output: Path, skip_unreadable: bool, force: bool, as_json: bool) -> None:
    """Merge several datasets into one."""
    _merge(paths, output, skip_unreadable=skip_unreadable, force=force, as_json=as_json)


@dataset.command(
    "import",
    epilog="Example: autosync dataset import release/ -o lab/records",
    help=f"Convert a dataset from elsewhere into a folder with records.parquet and specs.parquet.\n\n{_SOURCE}",
)
@click.argument("path", type=click.Path(path_type=Path))
@_folder_option
@_skip_option
@force_option
@json_option
def import_(*, path: Path, output: Path, skip_unreadable: bool, force: bool, as_json: bool) -> None:
    """Convert a dataset of any form into ours."""
    _merge((path,), output, skip_unreadable=skip_unreadable, force=force, as_json=as_json)


@dataset.command(
    epilog="""\b
Examples:
  autosync dataset split datasets/records --by model -o by-model
  autosync dataset split datasets/records --share 0.8 --seed 1 -o parts""",
    help="Take a dataset apart: a folder with records.parquet and specs.parquet for each model or each cluster; or "
    f"train and test, with a share of the strategies of each combination by lot.\n\n{_SOURCE}",
)
@click.argument("path", type=click.Path(path_type=Path))
@click.option("--by", type=click.Choice(("model", "cluster")), help="A part for each model or each cluster.")
@click.option("--share", type=float, help="The share of train, above 0 and below 1; the others are in test.")
@click.option("--seed", type=int, metavar="N", help="With --share: another seed draws other strategies.  [default: 0]")
@_folder_option
@_skip_option
@json_option
def split(
    *,
    path: Path,
    by: Literal["model", "cluster"] | None,
    share: float | None,
    seed: int | None,
    output: Path,
    skip_unreadable: bool,
    as_json: bool,
) -> None:
    """Split a dataset into several."""
    from autosync.datasets.files import refuse_folder
    from autosync.datasets.split import split_by, split_by_share

    if (by is None) == (share is None):
        raise click.UsageError("either --by or --share says what the parts are")
    if by is not None and seed is not None:
        raise click.UsageError("--seed goes with --share: by model or cluster nothing is drawn")
    refuse_folder(output)
    source = _source(path)
    records, problems = read_records([source], skip_unreadable=skip_unreadable)
    parts = split_by(records, by) if by is not None else split_by_share(records, share or 0.0, seed or 0)
    counts = _write_parts(parts, source.specs(), output, problems)
    note(f"wrote {output}: {', '.join(f'{name} {count:,}' for name, count in counts.items())}")
    if as_json:
        left_out = [str(problem) for problem in problems]
        print_json({"output": str(output), "num_records": counts, "left_out": left_out})


def _source(path: Path | None) -> Dataset:
    from autosync.datasets.dataset import SHIPPED, Dataset
    from autosync.datasets.studies import storage_named
    from autosync.specs.consent import require

    if path is None and not SHIPPED.is_dir():
        raise InputError("no records ship with this copy of autosync", rule="PATH names a dataset")
    if path is not None:
        require(storage_named(path), consent_of(trust=None))
    return Dataset(SHIPPED if path is None else path)


def _merge(paths: tuple[Path, ...], output: Path, *, skip_unreadable: bool, force: bool, as_json: bool) -> None:
    from autosync.datasets.dataset import refuse_source
    from autosync.datasets.left_out import LEFT_OUT_FILE, write_left_out
    from autosync.datasets.parquet_folder import DISTURBED_FILE, RECORDS_FILE, SPECS_FILE, agreeing, pack

    # Checked before anything is read. Existing files are kept unless the user gives --force.
    refuse_source(output)
    for name in (RECORDS_FILE, DISTURBED_FILE, SPECS_FILE, LEFT_OUT_FILE):
        refuse_overwrite(output / name, force=force)
    sources = [_source(path) for path in paths]
    records, problems = read_records(sources, skip_unreadable=skip_unreadable)
    num_records = pack(agreeing(records), [spec for source in sources for spec in source.specs()], output, force=force)
    num_left_out = write_left_out(problems, output)
    doubles = len(records) - num_records
    note(f"wrote {output}: {num_records:,} records" + (f"; {doubles:,} were there twice" if doubles else ""))
    if num_left_out:
        note(f"kept aside in {output / LEFT_OUT_FILE}: {num_left_out:,} that hold no record")
    if as_json:
        left_out = [str(problem) for problem in problems]
        print_json({"output": str(output), "num_records": num_records, "num_read": len(records), "left_out": left_out})


def _write_parts(
    parts: Mapping[str, list[Record]], specs: list[Spec], output: Path, problems: list[Problem]
) -> dict[str, int]:
    from autosync.datasets.files import folder_name, new_folder
    from autosync.datasets.left_out import write_left_out
    from autosync.datasets.parquet_folder import pack

    with new_folder(output) as made:
        counts = {name: pack(records, specs, made / folder_name(name)) for name, records in parts.items()}
        write_left_out(problems, made)
    return counts


def _draw(records: list[Record], picture: Path, path: Path) -> None:
    from autosync import jsonio
    from autosync.datasets.stats import step_times
    from autosync.pictures.spread_picture import Spread, spread_picture

    spreads = [
        Spread(model=one.model, cluster=one.cluster, seconds=one.seconds, default_seconds=one.stock_seconds)
        for one in step_times(records)
    ]
    jsonio.write_text(picture, spread_picture(spreads, title=f"Step times in {path}"))
    note(f"wrote {picture}")


def _told(found: Stats) -> str:
    referred = f"{found.num_references:,} of them references"
    lines = [
        f"{found.num_records:,} records: {found.num_measured:,} measured, {found.num_failed:,} failed; {referred}",
        f"flagged: {found.num_flagged:,} ({_listed(found.flags)})",
    ]
    if found.noise_median is not None and found.noise_percentile_95 is not None and found.quiet_share is not None:
        lines.append(
            f"noise of steps: {found.noise_median:.1%} in the median, {found.noise_percentile_95:.1%} at the 95th "
            f"percentile; below 5% in {found.quiet_share:.1%} of the records"
        )
    lines += [f"origins: {_listed(found.origins)}", f"synchronisers: {_listed(found.synchronisers)}", ""]
    header = ("model", "cluster", "records", "measured", "flagged", "sampled", "fastest", "median", "slowest", "gain")
    table = format_table([_row(one) for one in found.combinations], header=header, right=header[2:])
    if any(one.is_all_flagged for one in found.combinations):
        table += "\n* All of these records are flagged: there is a reason to doubt the times."
    return "\n".join([*lines, table])


def _row(one: CombinationStats) -> tuple[str, ...]:
    counts = (one.num_records, one.num_measured, one.num_flagged, one.num_sampled)
    seconds = (one.fastest_seconds, one.median_seconds, one.slowest_seconds)
    mark = "*" if one.is_all_flagged else ""
    times = ["" if value is None else f"{value * 1e3:.1f} ms{mark}" for value in seconds]
    gain = "" if one.speedup is None else f"{one.speedup:.2f}"
    return (one.model, one.cluster, *map(str, counts), *times, gain)


def _listed(counts: object) -> str:
    assert isinstance(counts, dict), "counts are by name"
    return ", ".join(f"{name} {count:,}" for name, count in counts.items()) or "none"
