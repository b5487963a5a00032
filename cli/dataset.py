"""`autosync dataset`: what a dataset holds, whether it is whole, and several made one."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from autosync.cli.output import force_option, json_option, note, print_json
from autosync.errors import InputError, Problem, first_problems
from autosync.strategy.wording import format_table

if TYPE_CHECKING:
    from autosync.datasets.stats import CombinationStats, Stats

_SOURCE = "PATH is a store of a campaign, a folder with records.parquet, or a file of records (parquet, csv, jsonl)."


@click.group(epilog="Example: autosync dataset stats datasets/records")
def dataset() -> None:
    """Look at records, check them and put them together."""


@dataset.command(
    epilog="Example: autosync dataset stats datasets/records", help=f"Count what a dataset holds.\n\n{_SOURCE}"
)
@click.argument("path", type=click.Path(path_type=Path))
@json_option
def stats(*, path: Path, as_json: bool) -> None:
    """Count what a dataset holds."""
    from autosync.datasets.sources import Source
    from autosync.datasets.stats import dataset_stats

    problems: list[Problem] = []
    found = dataset_stats(Source(path).records(problems.append))
    for problem in problems:
        note(f"left out: {problem}")
    if as_json:
        print_json({**asdict(found), "left_out": [str(problem) for problem in problems]})
    else:
        print(_told(found))


@dataset.command(
    epilog="Example: autosync dataset validate datasets/records",
    help=f"Check that records fit their models and clusters, and that none is there twice.\n\n{_SOURCE}",
)
@click.argument("path", type=click.Path(path_type=Path))
@json_option
def validate(*, path: Path, as_json: bool) -> None:
    """Check every record."""
    from autosync.datasets.checks import Checker
    from autosync.datasets.sources import Source

    source = Source(path)
    problems: list[Problem] = []
    checker = Checker(source.specs())
    num_records = 0
    for record in source.records(problems.append):
        num_records += 1
        problems += [replace(problem, file=str(path), line=num_records) for problem in checker.problems(record)]
    if as_json:
        print_json({"path": str(path), "num_records": num_records, "problems": [str(problem) for problem in problems]})
    if problems:
        raise InputError(first_problems(problems))
    if not as_json:
        print(f"{path}: {num_records:,} records, nothing wrong with them")


@dataset.command(
    epilog="Example: autosync dataset merge autosync-campaigns/first lab/records -o all",
    help=f"Put datasets together: a folder with records.parquet and specs.parquet, each record once.\n\n{_SOURCE}",
)
@click.argument("paths", metavar="PATH ...", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("-o", "--output", type=click.Path(path_type=Path), metavar="FOLDER", required=True, help="Write it here.")
@click.option("--skip-unreadable", is_flag=True, help="Leave out lines that hold no record, and say which they are.")
@force_option
@json_option
def merge(*, paths: tuple[Path, ...], output: Path, skip_unreadable: bool, force: bool, as_json: bool) -> None:
    """Several datasets as one."""
    from autosync.datasets.packed import pack
    from autosync.datasets.sources import Source

    sources = [Source(path) for path in paths]
    problems: list[Problem] = []
    records = [record for source in sources for record in source.records(problems.append)]
    if problems and not skip_unreadable:
        hint = "--skip-unreadable takes all the others"
        raise InputError(first_problems([replace(problem, hint=hint) for problem in problems]))
    for problem in problems:
        note(f"left out: {problem}")
    num_records = pack(records, [spec for source in sources for spec in source.specs()], output, force=force)
    note(f"wrote {output}: {num_records:,} of {len(records):,} records, the others were there twice")
    if as_json:
        left_out = [str(problem) for problem in problems]
        print_json({"output": str(output), "num_records": num_records, "num_read": len(records), "left_out": left_out})


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
    return "\n".join([*lines, table])


def _row(one: CombinationStats) -> tuple[str, ...]:
    counts = (one.num_records, one.num_measured, one.num_flagged, one.num_sampled)
    seconds = (one.fastest_seconds, one.median_seconds, one.slowest_seconds)
    times = ["" if value is None else f"{value * 1e3:.1f} ms" for value in seconds]
    gain = "" if one.speedup is None else f"{one.speedup:.2f}"
    return (one.model, one.cluster, *map(str, counts), *times, gain)


def _listed(counts: object) -> str:
    assert isinstance(counts, dict), "counts are by name"
    return ", ".join(f"{name} {count:,}" for name, count in counts.items()) or "none"
