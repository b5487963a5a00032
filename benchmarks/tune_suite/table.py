"""The figures of `tune_suite.py` as tables for users."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


def real_table(document: Mapping[str, Any]) -> str:
    """Return a line for each target: the winner, the baselines that it had to beat, and the cost of finding it."""
    head = ("target", "winner", "over stock DDP", "bucket", "preset", "of the bound", "near best", "own time", "wall")
    rows = [head, *(_real_row(name, one) for name, one in document["targets"].items())]
    failed = [f"{name}: {reason}" for name, reason in document["failures"].items()]
    return "\n".join([*_aligned(rows), *failed])


def _real_row(name: str, one: Mapping[str, Any]) -> tuple[str, ...]:
    gain = one["over_stock_ddp"]
    return (
        name,
        _milliseconds(one["winner_seconds"]),
        "1 (stock DDP)" if gain is None else f"{gain['value']:.3f} ({gain['low']:.3f} to {gain['high']:.3f})",
        _milliseconds(one["best_bucket"]),
        _milliseconds(one["best_preset"]),
        f"{one['share_of_bound']:.3f}",
        "never" if one["trials_to_near_best_found"] is None else f"trial {one['trials_to_near_best_found']}",
        f"{one['own_share']:.0%}",
        f"{one['wall_seconds']:.0f} s",
    )


def race_table(document: Mapping[str, Any]) -> str:
    """Return a line for each target: each proposer's trials to come near the best known, the median over the seeds.

    The last line has the share of the bound that each reached, if the links' rates are known.
    """
    names = list(document["overall"])
    rows = [("target", *names)]
    for target, found in document["targets"].items():
        rows.append((target, *(_trials(found["proposers"][name]["median_trials_to_near"]) for name in names)))
    rows.append(("all targets", *(_trials(document["overall"][name]["median_trials_to_near"]) for name in names)))
    shares = [document["overall"][name]["mean_share_of_bound"] for name in names]
    if None not in shares:
        rows.append(("of the bound", *(f"{share:.3f}" for share in shares)))
    return "\n".join(_aligned(rows))


def _trials(count: float | None) -> str:
    return "never" if count is None else f"{count:g}"


def _milliseconds(seconds: Mapping[str, float] | None) -> str:
    return "-" if seconds is None else f"{seconds['value'] * 1e3:.1f} ms"


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
