"""`autosync input`: look at tar shards, measure a storage, and find the fastest settings of an input pipeline."""

from __future__ import annotations

from pathlib import Path
from typing import cast

import click

from autosync import units
from autosync.cli.output import force_option, json_option, note, print_json, print_text, refuse_overwrite

_LEAST_READ_BYTES = 512


@click.group("input", epilog="Example: autosync input tune data.py:images --batch-size 64 -o input.yaml")
def input_group() -> None:
    """Look at tar shards, measure a storage, and find the fastest settings of an input pipeline."""


@input_group.command(
    epilog="""\b
Examples:
  autosync input show shards/*.tar
  autosync input show https://data.example.org/train-0000.tar --json
  autosync input show shards/*.tar --index-folder indexes"""
)
@click.argument("shards", metavar="PATH_OR_URL...", nargs=-1, required=True)
@click.option(
    "--index-folder",
    type=click.Path(file_okay=False, path_type=Path),
    help="Keep what is found in this folder, for TarShards(..., index_folder=...).",
)
@json_option
def show(*, shards: tuple[str, ...], index_folder: Path | None, as_json: bool) -> None:
    """Show the samples of tar shards. A truncated or damaged shard is an error.

    Files with the same name before the first dot are one sample, as in webdataset. Only headers are read.
    """
    from autosync.inputs import describe
    from autosync.inputs.tar_shards import TarShards

    found = TarShards(shards, index_folder=index_folder)
    if as_json:
        print_json(describe.shards_fields(found))
    else:
        print_text(describe.describe_shards(found))


@input_group.command(
    epilog="""\b
Examples:
  autosync input measure shards/*.tar
  autosync input measure https://data.example.org/train-0000.tar --sizes "1 MiB,8 MiB" --concurrency 4,16"""
)
@click.argument("files", metavar="PATH_OR_URL...", nargs=-1, required=True)
@click.option("--sizes", default="64 KiB,1 MiB,8 MiB", show_default=True, help="Sizes of one request.")
@click.option("--concurrency", default="1,4,16", show_default=True, help="Numbers of requests at a time.")
@click.option(
    "--seconds", default=1.0, show_default=True, type=click.FloatRange(0.01), help="Time of each measurement."
)
@json_option
def measure(*, files: tuple[str, ...], sizes: str, concurrency: str, seconds: float, as_json: bool) -> None:
    """Measure how many bytes a second a storage gives, by size and number of requests.

    Before each measurement, the operating system is asked to forget local files. Files that are smaller than a request
    are read in one request.
    """
    from autosync.inputs import describe
    from autosync.inputs.storage import open_shard
    from autosync.inputs.storage_rates import measure_storage

    wanted = [_size(word) for word in sizes.split(",")]
    at_a_time = [_whole_number(word) for word in concurrency.split(",")]
    rates = measure_storage(
        [open_shard(file) for file in files],
        sizes=wanted,
        concurrencies=at_a_time,
        seconds=seconds,
        told=lambda one: note(f"{units.exact_size(one.read_bytes)} x {one.read_concurrency}: measured"),
    )
    if as_json:
        print_json(describe.rates_fields(rates))
    else:
        print_text(describe.describe_rates(rates))


@input_group.command(
    epilog="""\b
Examples:
  autosync input tune data.py:images --batch-size 64 -o input.yaml
  autosync input tune data.py:images --batch-size 64 --compute "80 ms" --trials 8 --json
  autosync input tune data.py:images --batch-size 64 --into best.yaml -o with-input.yaml"""
)
@click.argument("target", metavar="FILE.py:NAME")
@click.option("--batch-size", required=True, type=click.IntRange(1), help="Number of examples in a batch.")
@click.option("--compute", metavar="TIME", help="Time that a step computes between two batches, such as 80 ms.")
@click.option(
    "--shuffle",
    type=click.Choice(["none", "shards", "examples"]),
    default="examples",
    show_default=True,
    help="The order of examples.",
)
@click.option("--trials", default=12, show_default=True, type=click.IntRange(1, 100), help="Number of trials.")
@click.option("--seconds", default=3.0, show_default=True, type=click.FloatRange(0.05), help="Time of each trial.")
@click.option("--max-workers", type=click.IntRange(0, 64), help="Most workers.  [default: twice the cores]")
@click.option("--start", type=click.Path(path_type=Path), metavar="SETTINGS", help="Settings to begin with.")
@click.option("--seed", default=0, show_default=True, type=click.IntRange(0), help="The seed of orders and choices.")
@click.option(
    "--into",
    type=click.Path(path_type=Path),
    metavar="STRATEGY",
    help="A strategy or bundle: -o gets it with the settings found.",
)
@click.option(
    "-o", "--output", type=click.Path(path_type=Path), metavar="OUTPUT", help="Write the settings to this file."
)
@force_option
@json_option
def tune(
    *,
    target: str,
    batch_size: int,
    compute: str | None,
    shuffle: str,
    trials: int,
    seconds: float,
    max_workers: int | None,
    start: Path | None,
    seed: int,
    into: Path | None,
    output: Path | None,
    force: bool,
    as_json: bool,
) -> None:
    """Find the settings that deliver the most examples a second, by trials on this machine.

    NAME is a dataset in FILE.py with __len__ and __getitem__, or a function that returns one. The file is run. Give the
    compute time of a step, and settings are found that let steps wait least.
    """
    from autosync.inputs import describe
    from autosync.inputs.epoch_order import Shuffle
    from autosync.inputs.load import load_dataset
    from autosync.inputs.settings import load_settings, load_whole, save_settings, save_with
    from autosync.inputs.tuning import tune_input

    if into is not None and output is None:
        raise click.UsageError("--into needs -o: the file that gets the strategy with the settings")
    refuse_overwrite(output, force=force)
    begin = None if start is None else load_settings(start)
    # What is wrong with the strategy is said before the trials.
    whole = None if into is None else load_whole(into)
    found = tune_input(
        load_dataset(target),
        batch_size=batch_size,
        shuffle=cast("Shuffle", shuffle),
        compute_seconds=0.0 if compute is None else _time(compute),
        start=begin,
        max_trials=trials,
        trial_seconds=seconds,
        max_workers=max_workers,
        seed=seed,
        told=lambda trial: note(describe.describe_trial(trial)),
    )
    if output is not None:
        if whole is None:
            save_settings(output, found.settings)
        else:
            save_with(output, whole, found.settings)
        note(f"wrote {output}")
    if as_json:
        print_json(describe.tuning_fields(found))
    else:
        print_text(describe.describe_tuning(found))


@input_group.command(epilog="Example: autosync input deal best.yaml --rates rates.yaml -o dealt.yaml")
@click.argument("bundle", metavar="BUNDLE", type=click.Path(path_type=Path))
@click.option(
    "--rates",
    required=True,
    type=click.Path(path_type=Path),
    metavar="RATES",
    help="Rates that loaders measured: save_rates(path, loader.served_rates()).",
)
@click.option(
    "-o", "--output", required=True, type=click.Path(path_type=Path), metavar="OUTPUT", help="Write the bundle here."
)
@force_option
@json_option
def deal(*, bundle: Path, rates: Path, output: Path, force: bool, as_json: bool) -> None:
    """Put measured rates of storage into a bundle, and deal examples to its ranks by them.

    A rank on a host that is served worse gets fewer examples of each step, if its input does not keep up with its
    compute. The shares of the bundle say so; autosync.loader deals them, and gradients are weighed by them.
    """
    from autosync.inputs import describe
    from autosync.inputs.served_rates import dealt_by_rate, load_rates
    from autosync.strategy.bundle import load_bundle, save_bundle

    refuse_overwrite(output, force=force)
    dealt = dealt_by_rate(load_bundle(bundle), load_rates(rates))
    save_bundle(output, dealt)
    note(f"wrote {output}")
    if as_json:
        print_json(describe.dealing_fields(dealt))
    else:
        print_text(describe.describe_dealing(dealt))


def _size(word: str) -> int:
    try:
        size = units.parse_size(word.strip())
    except ValueError as error:
        raise click.UsageError(f"--sizes: {error}") from error
    if size < _LEAST_READ_BYTES:
        raise click.UsageError(f"--sizes: {word.strip()} is less than {_LEAST_READ_BYTES} B")
    return size


def _whole_number(word: str) -> int:
    if not word.strip().isdecimal() or not 1 <= int(word) <= 256:
        raise click.UsageError(f"--concurrency: {word.strip()!r} is no number from 1 to 256")
    return int(word)


def _time(text: str) -> float:
    try:
        return units.parse_time(text)
    except ValueError as error:
        raise click.UsageError(f"--compute: {error}") from error
