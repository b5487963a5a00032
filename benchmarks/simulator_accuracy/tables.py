"""The result of benchmarks/simulator_accuracy/simulator_accuracy.py as tables in Markdown."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

_COLUMNS = {
    "pair_ranking": "pair ranking",
    "kendall_tau": "Kendall's tau",
    "median_error": "median error",
    "p90_error": "90th percentile",
    "top_regret": "regret of the pick",
    "top5_regret": "best of 5",
}
_SHARES = ("median_error", "p90_error", "top_regret", "top5_regret")


def tables(document: Mapping[str, Any]) -> Iterator[str]:
    """Yield the tables line by line."""
    yield (
        f"{document['records']} records of {document['combinations']} combinations of {len(document['models'])} models "
        f"and {len(document['clusters'])} clusters; {len(document['targets'])} combinations are judged by. A trial "
        f"is within {document['noise']:.1%} of the middle of all trials of its strategy (95 %)."
    )
    yield from _missing(document["missing"])
    yield from _verdicts(document["verdicts"])
    for part, title in (
        ("as they are", "Told nothing"),
        ("after trials", f"Told {document['trials']} trials of the target, no prior"),
        ("transfer", "With a prior of other models and other clusters"),
    ):
        if document["total"].get(part):
            yield from _total(document, part, title)
    yield from _by_target(document)
    yield from _bounds(document)
    for by in ("model", "cluster"):
        if f"{by}_held_out" in document:
            yield ""
            yield f"### Without a trial, trained on all other {by}s"
            yield ""
            yield from held_out(document, by)


def _missing(found: Sequence[str]) -> Iterator[str]:
    if found:
        yield ""
        yield "Missing of a whole dataset:"
        yield ""
        for what in found:
            yield f"- {what}"


def _verdicts(found: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    yield ""
    yield "### What is asked for"
    yield ""
    yield "| what | wanted | found | where | holds |"
    yield "|---|---|---|---|---|"
    for one in found:
        holds = "yes" if one["holds"] else "no"
        if one["holds_in"]:
            holds += f", in {one['holds_in'][0]} of {one['holds_in'][1]}"
        yield f"| {one['what'].replace('_', ' ')} | {one['wanted']} | {one['found']} | {one['where']} | {holds} |"


def _total(document: Mapping[str, Any], part: str, title: str) -> Iterator[str]:
    yield ""
    yield f"### {title}"
    yield ""
    yield f"| simulator | {' | '.join(_COLUMNS.values())} |"
    yield f"|---|{'---|' * len(_COLUMNS)}"
    for name, found in document["total"][part].items():
        yield f"| {name} | {' | '.join(_cell(column, found[column]) for column in _COLUMNS)} |"


def _by_target(document: Mapping[str, Any]) -> Iterator[str]:
    """Yield pair ranking and the regret of the pick, by combination."""
    parts = [part for part in ("as they are", "after trials", "transfer") if document["total"].get(part)]
    columns = [(part, name) for part in parts for name in document["total"][part]]
    yield ""
    yield "### By combination: pair ranking, and in parentheses the regret of the pick"
    yield ""
    combinations = [f"{target['model']} on {target['cluster']}" for target in document["targets"]]
    yield f"| simulator | {' | '.join(combinations)} |"
    yield f"|---|{'---|' * len(combinations)}"
    counts = [str(target["strategies"]) for target in document["targets"]]
    yield f"| strategies | {' | '.join(counts)} |"
    for part, name in columns:
        cells = []
        for target in document["targets"]:
            found = target.get(part, {}).get(name)
            cells.append(
                f"{_cell('pair_ranking', found['pair_ranking'])} ({_cell('top_regret', found['top_regret'])})"
                if found
                else ""
            )
        yield f"| {name if part != 'after trials' else f'{name}, told'} | {' | '.join(cells)} |"


def _bounds(document: Mapping[str, Any]) -> Iterator[str]:
    yield ""
    yield "### The bound"
    yield ""
    yield "| combination | bound | exact trials | faster than the bound | fastest | median |"
    yield "|---|---|---|---|---|---|"
    for found in document["bounds"]:
        yield (
            f"| {found['model']} on {found['cluster']} | {found['term']} | {found['num_exact']} | "
            f"{found['num_faster']} | {found['fastest_over_bound']:.2f} x | {found['median_over_bound']:.2f} x |"
        )


def held_out(document: Mapping[str, Any], by: str) -> Iterator[str]:
    """Yield the accuracy without a trial, for each model (cluster), of a ranker that was trained on all others."""
    columns = ("pair_ranking", "median_error", "top_regret")
    titles = [f"{who}: {_COLUMNS[column]}" for who in ("timeline", "learned") for column in columns]
    yield f"| {by} left out | records | {' | '.join(titles)} |"
    yield f"|---|{'---|' * (1 + len(titles))}"
    for name, row in document[f"{by}_held_out"].items():
        cells = [_cell(column, row[who][column]) for who in ("timeline", "learned") for column in columns]
        yield f"| {name} | {row['records']} | {' | '.join(cells)} |"


def _cell(column: str, value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:.1%}" if column in _SHARES else f"{value:.3f}"
