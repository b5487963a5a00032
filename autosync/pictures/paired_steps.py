"""One picture of two timelines: a typical step of each, one above the other, from the same instant and on one scale."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from autosync.pictures.timeline_picture import Figures, figures, timeline_picture
from autosync.pictures.trace_file import RankTrace, TracedStep, choose_steps
from autosync.units import format_time


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedTimeline:
    """The timeline of one rank under a strategy of that name."""

    name: str
    rank: RankTrace


def paired_steps_picture(timelines: Sequence[NamedTimeline], *, title: str, subtitle: str) -> str:
    """Draw a typical step of each timeline as SVG, one above the other."""
    chosen = [choose_steps(one.rank, 1)[0] for one in timelines]
    shown = [_moved(one, step) for one, step in zip(timelines, chosen, strict=True)]
    longest = max(step.end - step.start for step in chosen)
    return timeline_picture(shown, [TracedStep(0, 0.0, longest)], title=title, subtitle=subtitle, tells_figures=False)


def step_figures(timeline: NamedTimeline) -> Figures:
    """Return the numbers of the step that the picture shows."""
    return figures(timeline.rank, choose_steps(timeline.rank, 1))


def _moved(timeline: NamedTimeline, step: TracedStep) -> RankTrace:
    """Return what a step shows, named by its strategy and beginning at 0."""
    spans = [
        span._replace(start=max(span.start, step.start) - step.start, end=min(span.end, step.end) - step.start)
        for span in timeline.rank.spans
        if span.start < step.end and span.end > step.start
    ]
    found = step_figures(timeline)
    still = f"training stands still for {found.wait_seconds / max(found.seconds, 1e-9):.0%} of it"
    name = f"{timeline.name}: {format_time(round(found.seconds, 4))} a step, {still}"
    return replace(timeline.rank, name=name, spans=tuple(spans))
