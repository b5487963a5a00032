"""Two timelines in one picture: a step of each, from the same instant on and on one scale."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from autosync.pictures.paired_steps import NamedTimeline, paired_steps_picture, step_figures
from autosync.pictures.trace_file import RankTrace, Span

See = Callable[[str], Any]


def _timeline(name: str, length: float, *, num_steps: int = 6, begin: float = 0.0) -> NamedTimeline:
    """Half of each step is compute; then training waits for a transfer."""
    spans = []
    for number in range(num_steps):
        start = begin + number * length
        spans += [
            Span("compute", "forward", 0, start, start + length / 4, number),
            Span("compute", "backward", 0, start + length / 4, start + length / 2, number),
            Span("wait", "wait", 0, start + length / 2, start + length, number),
            Span("transfer", "all_reduce of w (operation 0)", 1, start + length / 4, start + length, number),
        ]
    return NamedTimeline(
        name=name, rank=RankTrace(name="rank 0", tracks={0: "training", 1: "lane"}, spans=tuple(spans))
    )


def _widths(seen: Any, style: str) -> list[float]:
    found = [one for one in seen.elements if one.attrib.get("class") == style and one.tag.endswith("rect")]
    # The last one of a style is in the legend.
    return [float(one.attrib["width"]) for one in found[:-1]]


def test_both_steps_have_one_scale(see: See) -> None:
    text = paired_steps_picture(
        [_timeline("stock DDP", 0.4, begin=7.0), _timeline("ours", 0.1, begin=99.0)], title="A step", subtitle="here"
    )
    seen = see(text)
    first, second = _widths(seen, "forward")
    assert first == pytest.approx(4 * second, abs=0.5)
    assert "A step" in seen.texts
    assert "here" in seen.texts
    assert "stock DDP: 400 ms a step, training stands still for 50% of it" in seen.texts
    assert "ours: 100 ms a step, training stands still for 50% of it" in seen.texts
    assert not any(one.startswith("step ") for one in seen.texts)


def test_what_lies_outside_the_step_is_cut_off(see: See) -> None:
    timeline = _timeline("ours", 0.1)
    late = Span("transfer", "all_reduce of v (operation 1)", 1, -5.0, 5.0, 0)
    longer = replace(timeline, rank=replace(timeline.rank, spans=(late, *timeline.rank.spans)))
    seen = see(paired_steps_picture([longer], title="A step", subtitle=""))
    assert "all_reduce of v (operation 1): 100 ms" in seen.tips


def test_the_figures_are_of_the_step_that_is_shown() -> None:
    found = step_figures(_timeline("ours", 0.1))
    assert (round(found.seconds, 6), round(found.wait_seconds, 6)) == (0.1, 0.05)
