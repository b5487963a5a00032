"""The report of where the time of a run goes: the shares of all ranks' time, and the parts of each rank's."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from autosync import units
from autosync.strategy.wording import format_table

_PARTS = (
    ("compute_seconds", "computes"),
    ("idle_seconds", "waits for the slowest rank"),
    ("wait_seconds", "waits for blocks"),
    ("merge_seconds", "exchanges with servers"),
    ("other_seconds", "other work"),
)
_UNEVEN = 1.1


def time_parts(rank: Mapping[str, Any], longest_seconds: float) -> dict[str, float]:
    """Return the parts of a rank's time, which add up to the time of the slowest rank."""
    busy = sum(rank[name] for name in ("compute_seconds", "wait_seconds", "merge_seconds"))
    return {
        **{name: rank[name] for name in ("compute_seconds", "wait_seconds", "merge_seconds")},
        "other_seconds": max(0.0, rank["epoch_seconds"] - busy),
        "idle_seconds": max(0.0, longest_seconds - rank["epoch_seconds"]),
    }


def time_lines(ranks: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield the shares of the ranks' time in words, the reason for uneven compute, and a table by rank."""
    longest = max(rank["epoch_seconds"] for rank in ranks)
    parts = [time_parts(rank, longest) for rank in ranks]
    total = longest * len(ranks)
    shares = [(sum(one[name] for one in parts) / total if total else 0.0, words) for name, words in _PARTS]
    told = ", ".join(f"{words} {share:.0%}" for share, words in shares if round(share, 2) > 0)
    yield f"of its time, a rank {told}"
    counts = [rank["num_records"] for rank in ranks]
    mean = sum(counts) / len(counts)
    if mean and max(counts) > _UNEVEN * mean:
        rank = counts.index(max(counts))
        yield f"rank {rank} has {max(counts) / mean:.2f} times the mean number of records"
    yield ""
    rows = [
        (
            str(rank["rank"]),
            f"{rank['num_records']:,}",
            f"{rank['compute_seconds']:.3f} s",
            f"{rank['wait_seconds']:.3f} s",
            f"{rank['merge_seconds']:.3f} s",
            units.format_size(rank["sent_bytes"]),
        )
        for rank in ranks
    ]
    header = ("rank", "records", "compute", "waits", "servers", "sent")
    yield format_table(rows, header=header, right=header)
