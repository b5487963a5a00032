"""Write the tables of the dataset card again: `python tools/make_dataset_card.py` reads datasets/records and writes
datasets/README.md and the picture docs/pictures/dataset.svg.

The text between `<!-- begin NAME -->` and `<!-- end NAME -->` in the card is made only from the records; the rest is
written by hand. The results of simulators take minutes to compute. They come from

    python benchmarks/simulator_accuracy/simulator_accuracy.py > accuracy.json
    python tools/make_dataset_card.py --accuracy accuracy.json

and stay as they are without that option. `--check` writes nothing, and exits with 1 if the card does not match the
records.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import sys
import textwrap
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autosync import jsonio
from autosync.datasets.facts import Spec, model_of_spec
from autosync.datasets.parquet_folder import DISTURBED_FILE, RECORDS_FILE, SPECS_FILE, read_packed, read_specs
from autosync.datasets.reliability import NOISE_LIMIT, is_disturbed
from autosync.datasets.schema import Record
from autosync.datasets.stats import Stats, dataset_stats, step_times
from autosync.pictures.spread_picture import Spread, spread_picture
from autosync.units import format_size

sys.path.append(str(Path(__file__).resolve().parents[1]))
from benchmarks.simulator_accuracy.tables import held_out

ROOT = Path(__file__).resolve().parents[1]
RECORDS = ROOT / "datasets" / "records"
CARD = ROOT / "datasets" / "README.md"
PICTURE = ROOT / "docs" / "pictures" / "dataset.svg"
ENOUGH = 50
"""Measured strategies of a combination that are enough to learn from it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Dataset:
    """The subject of the card: its numbers are about `records`; `disturbed` records are only counted."""

    records: Sequence[Record]
    disturbed: Sequence[Record]
    specs: Sequence[Spec]
    stats: Stats
    num_bytes: int


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; say whether the card is up to date")
    parser.add_argument("--accuracy", type=Path, metavar="FILE", help="what simulator_accuracy.py printed")
    options = parser.parse_args()
    dataset = load(RECORDS)
    old = CARD.read_text(encoding="utf-8")
    new = filled(old, dataset)
    if options.accuracy:
        new = put_in(new, "baselines", baselines(json.loads(options.accuracy.read_text(encoding="utf-8"))))
    if options.check:
        if old != new:
            sys.stderr.write(f"{CARD} does not say what the records say: python {Path(__file__).name}\n")
        return int(old != new)
    jsonio.write_text(CARD, new)
    jsonio.write_text(PICTURE, picture(dataset))
    return 0


def load(folder: Path) -> Dataset:
    """Return a packed dataset with its numbers."""
    found = list(read_packed(folder))
    records = [record for record in found if not is_disturbed(record)]
    return Dataset(
        records=records,
        disturbed=[record for record in found if is_disturbed(record)],
        specs=list(read_specs(folder)),
        stats=dataset_stats(records),
        num_bytes=sum((folder / name).stat().st_size for name in (RECORDS_FILE, DISTURBED_FILE, SPECS_FILE)),
    )


def filled(card: str, dataset: Dataset) -> str:
    """Return the card with new tables."""
    for name, make in PARTS.items():
        card = put_in(card, name, make(dataset))
    return card


def put_in(card: str, name: str, text: str) -> str:
    """Return the card with a new text at the marked place `name`."""
    place = re.compile(rf"(<!-- begin {name} -->\n).*?(<!-- end {name} -->)", re.DOTALL)
    assert place.search(card), f"the card has a place for {name}"
    return place.sub(lambda match: f"{match[1]}{text}\n{match[2]}", card)


def baselines(accuracy: Mapping[str, Any]) -> str:
    """Return the accuracy of simulators on models and clusters that they were not trained on."""
    return "\n".join([*held_out(accuracy, "model"), "", *held_out(accuracy, "cluster")])


def picture(dataset: Dataset) -> str:
    """Return a picture of all step times."""
    spreads = [
        Spread(model=one.model, cluster=one.cluster, seconds=one.seconds, default_seconds=one.stock_seconds)
        for one in step_times(dataset.records)
    ]
    return spread_picture(spreads, title="The dataset: every strategy against stock DDP")


def _summary(dataset: Dataset) -> str:
    stats, records = dataset.stats, dataset.records
    assert stats.noise_median is not None, "a dataset has measured records"
    assert stats.noise_percentile_95 is not None, "likewise"
    strategies = {(one.model_spec, one.cluster_spec, one.strategy_id) for one in records if one.strategy_id}
    enough = sum(one.num_measured >= ENOUGH for one in stats.combinations)
    days = sorted(one.started[:10] for one in records)
    rows = [
        ("records", f"{stats.num_records:,}: {stats.num_measured:,} measured, {stats.num_failed:,} failed"),
        ("references", f"{stats.num_references:,}: repeated trials of one strategy"),
        ("strategies", f"{len(strategies):,}, counted once for each model and cluster"),
        ("models, clusters", f"{len(stats.models)}, {len(stats.clusters)}"),
        ("combinations", f"{len(stats.combinations)}, of which {enough} have {ENOUGH} measured records or more"),
        ("disturbed records", _disturbed(dataset)),
        ("flagged", f"{stats.num_flagged:,} ({stats.num_flagged / stats.num_measured:.1%}): {_listed(stats.flags)}"),
        (
            "noise of steps",
            f"{stats.noise_median:.1%} at the median, {stats.noise_percentile_95:.1%} at the 95th percentile",
        ),
        ("below 5 % noise", f"{stats.quiet_share or 0.0:.1%} of the measured records"),
        ("95 % interval of a record", _sureness(dataset)),
        ("synchronisers", _listed(stats.synchronisers)),
        ("origins", _listed(_by_kind(stats.origins))),
        ("measured", f"{days[0]} to {days[-1]}"),
        ("size", format_size(dataset.num_bytes)),
    ]
    return _table(("figure", "value"), rows)


def _sureness(dataset: Dataset) -> str:
    """Return the half widths of the intervals, as shares of the figures."""
    found = [record.measurement for record in dataset.records if record.measurement is not None]
    halves = sorted((one.high_seconds - one.low_seconds) / (2 * one.median_seconds) for one in found)
    below = sum(half < NOISE_LIMIT for half in halves) / len(halves)
    return f"within {statistics.median(halves):.1%} at the median, within 5 % for {below:.1%} of the records"


def _disturbed(dataset: Dataset) -> str:
    """Return the number of disturbed records, and their flags."""
    num_all = len(dataset.records) + len(dataset.disturbed)
    flags = dataset_stats(dataset.disturbed).flags
    return f"{len(dataset.disturbed):,} ({len(dataset.disturbed) / num_all:.1%} of all): {_listed(flags)}"


def _by_kind(origins: Mapping[str, int]) -> Mapping[str, int]:
    """Return the numbers of records by the first word of their origins, so that all presets are added up."""
    counts: Counter[str] = Counter()
    for origin, count in origins.items():
        counts[origin.partition(":")[0]] += count
    return dict(counts.most_common())


def _combinations(dataset: Dataset) -> str:
    rows = [
        (
            one.model,
            one.cluster,
            str(one.num_measured),
            str(one.num_flagged),
            str(one.num_sampled),
            *(_milliseconds(value) for value in (one.fastest_seconds, one.median_seconds, one.slowest_seconds)),
            "" if one.speedup is None else f"{one.speedup:.2f}",
        )
        for one in dataset.stats.combinations
        if one.num_measured >= ENOUGH
    ]
    header = ("model", "cluster", "measured", "flagged", "sampled", "fastest", "median", "slowest", "gain")
    return _table(header, rows, num_left=2)


def _models(dataset: Dataset) -> str:
    counts = Counter(record.model_spec for record in dataset.records)
    specs = [one for one in dataset.specs if one.kind == "model"]
    shared = Counter(spec.name for spec in specs)
    rows = []
    for spec in specs:
        model = model_of_spec(spec)
        name = spec.name if shared[spec.name] == 1 else f"{spec.name} ({spec.spec_id[:8]})"
        num_bytes = sum(variable.num_bytes for variable in model.variables)
        sizes = (str(len(model.variables)), format_size(num_bytes), _milliseconds(model.step_seconds))
        rows.append((name, *sizes, str(len(model.timeline.cuts)), str(counts[spec.spec_id])))
    header = ("model", "variables", "gradients", "compute of a step", "cuts", "records")
    return _table(header, sorted(rows), num_left=1)


def _environments(dataset: Dataset) -> str:
    counts = Counter(tuple(sorted(record.environment.items())) for record in dataset.records)
    lines = (f"- {_named(found)}: {count:,} records" for found, count in counts.most_common())
    return "\n".join(textwrap.fill(line, 100, subsequent_indent="  ", break_on_hyphens=False) for line in lines)


def _named(environment: Iterable[tuple[str, str]]) -> str:
    return ", ".join(f"{name} {value}" for name, value in environment)


def _table(header: Sequence[str], rows: Iterable[Sequence[str]], *, num_left: int = 2) -> str:
    """Return a table in Markdown, with numbers aligned right."""
    aligned = ["---" if position < num_left else "---:" for position in range(len(header))]
    return "\n".join(f"| {' | '.join(row)} |" for row in (header, aligned, *rows))


def _milliseconds(seconds: float | None) -> str:
    return "" if seconds is None else f"{seconds * 1e3:.1f} ms"


def _listed(counts: Mapping[str, int]) -> str:
    return ", ".join(f"`{name}` {count:,}" for name, count in counts.items()) or "none"


PARTS: Mapping[str, Callable[[Dataset], str]] = {
    "summary": _summary,
    "combinations": _combinations,
    "models": _models,
    "environments": _environments,
}


if __name__ == "__main__":
    sys.exit(main())
