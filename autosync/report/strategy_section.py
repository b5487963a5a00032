"""The winner's strategy layer by layer."""

from __future__ import annotations

from collections.abc import Iterator

from autosync.report.markup import Markup, element, items, joined
from autosync.report.study_report import StudyReport
from autosync.report.tables import Row, TableCell, figure, table
from autosync.strategy.bundle import Bundle
from autosync.strategy.representation import all_parts
from autosync.strategy.wording import settings
from autosync.units import format_size

_COLUMNS = (
    "layer",
    "shape",
    "size",
    "ready",
    "message",
    "of parts",
    "synchroniser",
    "codec",
    "lane",
    "priority",
    "slices",
)


def strategy_section(report: StudyReport) -> Markup:
    """Return the winner's strategy: a row for each variable, or for each part of a variable that is cut."""
    bundle, winner = report.bundle, report.summary.winner
    if bundle is None:
        return element("p", "The winner's bundle is not in the study's folder.", class_="soft")
    words = winner.in_words if winner.beats_stock_ddp else "the buckets of stock DDP, as a strategy"
    schedule = f" How it runs: {winner.schedule}." if winner.schedule else ""
    numbers = ("size", "ready", "message", "of parts", "lane", "priority", "slices")
    caption = (
        "Layers in the order of their use. Parts of one message travel together; messages are numbered as written."
    )
    stages = winner.stages if winner.beats_stock_ddp else ()
    return joined(
        element("p", f"{words[:1].upper()}{words[1:]}.{schedule}"),
        items([f"{one[:1].upper()}{one[1:]}." for one in stages]),
        table(caption, _COLUMNS, list(_rows(bundle)), numbers=numbers),
    )


def _rows(bundle: Bundle) -> Iterator[Row]:
    messages = {
        part: (number, message) for number, message in enumerate(bundle.strategy.messages) for part in message.parts
    }
    parts = all_parts(bundle.strategy, bundle.model)
    for name, part in sorted(parts.items(), key=lambda item: item[1].variable.use):
        number, message = messages[name]
        sliced = message.slice_bytes
        yield (
            name,
            "\u00a0×\u00a0".join(map(str, part.shape)),
            figure(part.num_bytes, format_size(part.num_bytes)),
            _count(part.variable.ready),
            _count(number),
            _count(len(message.parts)),
            settings(message.synchroniser),
            "" if message.codec is None else settings(message.codec),
            _count(message.lane),
            _count(message.priority),
            figure(sliced, format_size(sliced or 0)),
        )


def _count(number: int) -> TableCell:
    return TableCell(shown=str(number), number=number)
