"""Presents a prediction of scaling: a table of sizes for stock DDP, one for the fastest strategy, and the knees."""

from __future__ import annotations

import textwrap
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence

from autosync.scaling.prediction import Forecast, Outlook, ScalingPrediction, SizePrediction
from autosync.strategy.wording import format_table
from autosync.units import format_time

WIDTH = 100
BEYOND = "*"
"""The mark of a size at which no prediction was ever compared with a measurement."""


def describe(found: ScalingPrediction) -> str:
    """Return the prediction as text for users, at most `WIDTH` columns wide."""
    source = "its probe" if found.is_probed else "its file"
    about = f"{found.model} on {found.cluster}, predicted from {source}. "
    about += f"Each rank keeps its batch of {found.batch_size}. In brackets: 90 % intervals."
    lines = [*_wrapped(about), "", "Stock DDP:", *_table(found, lambda size: size.stock)]
    faster = [size for size in found.sizes if size.best is not size.stock]
    if faster:
        lines += ["", "The fastest strategy found by simulation:", *_table(found, lambda size: size.best)]
        lines += ["", *(line for size in faster for line in _strategy(size))]
    else:
        lines += ["", "No strategy is predicted to be faster than stock DDP at any of these sizes."]
    if found.price is not None:
        lines += ["", *_costs(found)]
    lines += ["", *_knees(found), *_losses(found)]
    for sentence in (*(_marked(warning) for warning in found.warnings), *found.assumptions):
        lines += _wrapped(sentence)
    return "\n".join(lines)


def _table(found: ScalingPrediction, of: Callable[[SizePrediction], Outlook]) -> list[str]:
    rows = [
        (
            _number(size),
            _with_ends(outlook.step_seconds.times(1e3), _milliseconds),
            _with_ends(outlook.samples_per_second, _amount),
            f"{outlook.efficiency.value:.0%}",
            str(outlook.bottleneck),
        )
        for size in found.sizes
        for outlook in (of(size),)
    ]
    header = ("nodes", "ms a step", "samples/s", "efficiency", "bottleneck")
    return format_table(rows, header=header, right=header[:-1]).split("\n")


def _costs(found: ScalingPrediction) -> list[str]:
    """Return the table of costs."""
    price = found.price
    assert price is not None, "asked of predictions with a price"
    rows = []
    for size in found.sizes:
        cells = [outlook.cost and _with_ends(outlook.cost, _money) for outlook in (size.stock, size.best)]
        rows.append((_number(size), *(cell or "" for cell in cells)))
    header = ("nodes", "stock DDP", "fastest")
    unit = f" {price.currency}" if price.currency else ""
    title = f"Cost of a million samples{' in' + unit if unit else ''}, at {price.per_hour:g}{unit} a node and hour:"
    return [title, *format_table(rows, header=header, right=header).split("\n")]


def _strategy(size: SizePrediction) -> list[str]:
    node = "node" if size.num_nodes == 1 else "nodes"
    words = f"{size.num_nodes} {node}, {size.gain:.2f} times as fast as stock DDP: {size.best.name}"
    return textwrap.wrap(words, WIDTH, initial_indent="  ", subsequent_indent="    ")


def _knees(found: ScalingPrediction) -> Iterator[str]:
    if found.stock_knee is None or found.best_knee is None:
        return
    if str(found.stock_knee) == str(found.best_knee):
        yield from _wrapped(f"How many nodes pay: {found.stock_knee}.")
        return
    yield from _wrapped(f"How many nodes pay, with stock DDP: {found.stock_knee}.")
    yield from _wrapped(f"With the fastest strategy: {found.best_knee}.")


def _losses(found: ScalingPrediction) -> Iterator[str]:
    """Yield a sentence for each size that trains more samples a second than larger ones."""
    losers: dict[int, list[int]] = defaultdict(list)
    peak = found.sizes[0]
    for size in found.sizes[1:]:
        if size.best.samples_per_second.value < peak.best.samples_per_second.value:
            losers[peak.num_nodes].append(size.num_nodes)
        else:
            peak = size
    for fewer, more in losers.items():
        words = f"{_listed(more)} nodes train fewer samples a second than {fewer}"
        yield from _wrapped(f"Even with the fastest strategy, {words}.")


def _listed(numbers: Sequence[int]) -> str:
    *first, last = map(str, numbers)
    return f"{', '.join(first)} and {last}" if first else last


def _marked(warning: str) -> str:
    return f"{BEYOND} {warning}" if "was ever compared" in warning else warning


def _number(size: SizePrediction) -> str:
    return f"{size.num_nodes}{BEYOND if size.beyond and size.num_ranks > 1 else ''}"


def _with_ends(forecast: Forecast, in_words: Callable[[float], str]) -> str:
    if forecast.low is None or forecast.high is None:
        return f"{in_words(forecast.value)} (unknown)"
    return f"{in_words(forecast.value)} ({in_words(forecast.low)} to {in_words(forecast.high)})"


def _milliseconds(value: float) -> str:
    return f"{value:.1f}" if value < 1e4 else format_time(value / 1e3)


def _amount(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _money(value: float) -> str:
    return f"{value:,.2f}" if value >= 10 else f"{value:.3g}"


def _wrapped(sentence: str) -> list[str]:
    return textwrap.wrap(sentence, WIDTH)
