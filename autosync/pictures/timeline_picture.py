"""The picture of a timeline: the compute, waits and transfers of a rank over a step or two.

The first track shows training itself: forward, backward, optimizer, and the times in which training stood still. Below
it are a track of local operations and a track for each queue of a lane. Each message has one colour, the same as in the
picture of its plan.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from autosync.errors import InputError
from autosync.pictures.lettering import clipped, text_width
from autosync.pictures.svg import Drawing
from autosync.pictures.theme import NUM_COLOURS, OTHERS
from autosync.pictures.trace_file import RankTrace, Span, TracedStep
from autosync.strategy.wording import count
from autosync.units import format_time

MAX_LANES = 24
"""The number of lane queues that are shown for a rank. The picture says how many others exist."""

_MARGIN = 18.0
_LABELS = 134.0
_PLOT = 820.0
_WIDTH = _MARGIN + _LABELS + _PLOT + _MARGIN
_COMPUTE_HEIGHT = 26.0
_TRACK_HEIGHT = 19.0
_SHORTEST = 9
"""The fewest characters that a shortened name may have; a name that would be shorter is left out."""
_PHASES = ("forward", "backward", "optimizer")
# The engine names operations such as `all_reduce of fc.weight and 3 more (operation 12)`.
_NAMED = re.compile(r"(?P<what>\S+) of (?P<subject>.+) \(operation (?P<number>[0-9]{1,9})\)", re.DOTALL)


class _Named:
    """The components of a span's name."""

    def __init__(self, name: str) -> None:
        match = _NAMED.fullmatch(name) if len(name) < 5000 else None
        self.what = match["what"] if match else name
        self.subject = match["subject"] if match else name
        self.number = int(match["number"]) if match else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """The numbers of a rank's timeline, over the steps that are shown."""

    rank: str
    first_step: int
    num_steps: int
    seconds: float
    wait_seconds: float
    transfer_seconds: float


def figures(rank: RankTrace, steps: Sequence[TracedStep]) -> Figures:
    """Return how long the steps took, how long training stood still, and how long at least one transfer was running."""
    start, end = steps[0].start, steps[-1].end
    return Figures(
        rank=rank.name,
        first_step=steps[0].iteration,
        num_steps=len(steps),
        seconds=end - start,
        wait_seconds=_covered(rank, "wait", start, end),
        transfer_seconds=_covered(rank, "transfer", start, end),
    )


def timeline_picture(
    ranks: Sequence[RankTrace],
    steps: Sequence[TracedStep],
    *,
    title: str,
    subtitle: str = "",
    tells_figures: bool = True,
) -> str:
    """Draw the steps of some ranks as SVG, on the clock of the ranks' machine; the first rank's steps are marked.

    With `tells_figures`, the figures of the first rank stand below the title, and its steps are numbered.
    """
    if not ranks or not steps:
        raise InputError("there is nothing to draw", rule="one rank and one step at least")
    return _Picture(ranks, steps, tells_figures=tells_figures).svg(title, subtitle)


def _covered(rank: RankTrace, kind: str, start: float, end: float) -> float:
    """Return how long at least one span of a kind was running."""
    total, reached = 0.0, start
    for span in rank.spans:
        if span.kind == kind:
            stop = min(span.end, end)
            total += max(0.0, stop - max(span.start, reached))
            reached = max(reached, stop)
    return total


class _Picture:
    def __init__(self, ranks: Sequence[RankTrace], steps: Sequence[TracedStep], *, tells_figures: bool) -> None:
        self._ranks = ranks
        self._tells_figures = tells_figures
        self._steps = steps
        self._start, self._end = steps[0].start, steps[-1].end
        self._seconds = max(self._end - self._start, 1e-9)
        self._drawing = Drawing()
        self._left = _MARGIN + _LABELS
        self._colours = _colours([span for rank in ranks for span in self._visible(rank)])

    def svg(self, title: str, subtitle: str) -> str:
        line = " · ".join(filter(None, [subtitle, *self._figures()]))
        self._drawing.text(_MARGIN, 30, clipped(title, _WIDTH - 2 * _MARGIN, 17), "head ink")
        self._drawing.text(_MARGIN, 49, clipped(line, _WIDTH - 2 * _MARGIN, 12), "soft")
        top = 74.0
        y = top
        for rank in self._ranks:
            y = self._rank(rank, y)
        self._axis(top - 4, y)
        bottom = self._legend(y + 38)
        return self._drawing.svg(_WIDTH, bottom + 16, title=title, description=line)

    def _figures(self) -> list[str]:
        """Return the figures of the first rank in words."""
        if not self._tells_figures:
            return []
        shown = figures(self._ranks[0], self._steps)
        still = shown.wait_seconds / max(shown.seconds, 1e-9)
        each = format_time(round(shown.seconds / len(self._steps), 4))
        return [f"{each} a step", f"training stands still for {still:.0%} of it"]

    def _visible(self, rank: RankTrace) -> Iterator[Span]:
        return (span for span in rank.spans if span.start < self._end and span.end > self._start)

    def _x(self, seconds: float) -> float:
        inside = min(max(seconds, self._start), self._end)
        return self._left + _PLOT * (inside - self._start) / self._seconds

    def _rank(self, rank: RankTrace, top: float) -> float:
        """Draw the tracks of one rank, one below the other."""
        tracks: dict[int, list[Span]] = {}
        for span in self._visible(rank):
            tracks.setdefault(span.track, []).append(span)
        y = top
        if len(self._ranks) > 1:
            self._drawing.text(_MARGIN, y + 8, clipped(rank.name, _WIDTH - 2 * _MARGIN, 12), "bold ink")
            y += 16
        order = sorted(tracks)
        for track in order[: MAX_LANES + 2]:
            height = self._track(rank.tracks.get(track, f"track {track}"), tracks[track], y)
            y += height + 3
        hidden = len(order) - MAX_LANES - 2
        if hidden > 0:
            self._drawing.text(_MARGIN, y + 11, f"and {count(hidden, 'more track')}", "small soft")
            y += 16
        return y + 6

    def _track(self, name: str, spans: Sequence[Span], top: float) -> float:
        """Draw one track: its name, a base line, and its spans; return its height."""
        is_training = any(span.kind in ("compute", "wait") for span in spans)
        height = _COMPUTE_HEIGHT if is_training else _TRACK_HEIGHT
        kinds = {_Named(span.name).what for span in spans if span.kind == "transfer"}
        # The operation of a lane's queue says more than the number of its stage.
        words = f"{name.partition(', stage')[0]}: {min(kinds)}" if len(kinds) == 1 else name
        self._drawing.text(_MARGIN, top + height / 2 + 4, clipped(words, _LABELS - 6, 11), "small soft")
        self._drawing.underlay((self._left, top + height), (self._left + _PLOT, top + height), "thin")
        # Waits happen within passes and are drawn on top of them.
        for span in sorted(spans, key=lambda span: span.kind == "wait"):
            if span.kind in ("compute", "wait"):
                self._training(span, top, height)
            else:
                self._work(span, top, height, tells_what=len(kinds) > 1)
        self._phases(spans, top, height)
        return height

    def _training(self, span: Span, top: float, height: float) -> None:
        is_wait = span.kind == "wait"
        style = "wait" if is_wait else span.name if span.name in _PHASES else "forward"
        inset = 3.0 if is_wait else 0.0
        self._block(span, top + inset, height - 2 * inset, style)
        if is_wait:
            self._words(span, top, height, "tiny soft", span.name)

    def _phases(self, spans: Sequence[Span], top: float, height: float) -> None:
        """Write the names of passes, each at a place without a wait."""
        waits = [span for span in spans if span.kind == "wait"]
        for span in spans:
            if span.kind == "compute":
                start = max(span.start, self._start)
                for wait in waits:
                    if wait.start <= start < wait.end:
                        start = wait.end
                end = min([wait.start for wait in waits if wait.start >= start] + [span.end])
                if start < end:
                    self._words(span._replace(start=start, end=end), top, height, "tiny ink", span.name)

    def _work(self, span: Span, top: float, height: float, *, tells_what: bool) -> None:
        named = _Named(span.name)
        colour = self._colours.get(_key(named, self._colours), OTHERS)
        words = f"{named.what} {named.subject}" if tells_what or span.kind == "local" else named.subject
        style = f"fill-{colour}" + (" own" if span.kind == "local" else "")
        self._block(span, top + 1, height - 2, style)
        self._words(span, top, height, "tiny ink" if span.kind == "local" else "tiny on", words)

    def _block(self, span: Span, top: float, height: float, style: str) -> None:
        left, right = self._x(span.start), self._x(span.end)
        width = max(0.6, right - left)
        tip = f"{span.name}: {format_time(round(span.end - span.start, 6))}"
        self._drawing.rectangle((left, top), (width, height), style, radius=min(2.0, width / 3), tip=tip)

    def _words(self, span: Span, top: float, height: float, style: str, words: str) -> None:
        """Write the words on a span, as far as they fit."""
        left, right = self._x(span.start), self._x(span.end)
        shown = clipped(words, right - left - 7, 10)
        if shown == words or len(shown) >= _SHORTEST:
            self._drawing.text(left + 3, top + height / 2 + 3.6, shown, style)

    def _axis(self, top: float, bottom: float) -> None:
        """Draw the time axis from the first step's start, and a mark at the start of each step."""
        every = _tick(self._seconds)
        for number in range(int(self._seconds / every) + 1):
            x = self._x(self._start + number * every)
            self._drawing.underlay((x, top), (x, bottom + 4), "thin")
            unit = 1e3 if self._seconds < 10 else 1.0
            words = f"{number * every * unit:g}" + (" ms" if unit > 1 else " s") * (number == 0)
            self._drawing.text(x, bottom + 16, words, "tiny soft", anchor="middle")
        for step in self._steps:
            x = self._x(step.start)
            self._drawing.line((x, top - 10), (x, bottom + 4), "dashed")
            if self._tells_figures:
                self._drawing.text(x + 4, top - 3, f"step {step.iteration}", "tiny soft")

    def _legend(self, top: float) -> float:
        """Draw the legend of the colours."""
        entries = [
            *((name, name) for name in (*_PHASES, "wait")),
            *((f"fill-{c}", n) for n, c in self._colours.items()),
        ]
        x, y = _MARGIN, top
        for style, words in entries:
            shown = clipped(words, 190, 11)
            wide = 24 + text_width(shown, 11) + 12
            if x + wide > _WIDTH - _MARGIN:
                x, y = _MARGIN, y + 17
            self._drawing.rectangle((x, y - 9), (16, 10), style, radius=2)
            self._drawing.text(x + 21, y, shown, "small soft")
            x += wide
        return y


def _colours(spans: Sequence[Span]) -> Mapping[str, int]:
    """Return a colour for each message, in the order of the plan; with too many, for each kind of operation."""
    first: dict[str, int] = {}
    whats: dict[str, int] = {}
    for span in spans:
        if span.kind in ("transfer", "local"):
            named = _Named(span.name)
            first[named.subject] = min(first.get(named.subject, named.number), named.number)
            if span.kind == "transfer":
                whats[named.what] = min(whats.get(named.what, named.number), named.number)
    chosen = first if len(first) <= NUM_COLOURS else whats
    order = sorted(chosen, key=lambda name: (chosen[name], name))
    return {name: place for place, name in enumerate(order[:NUM_COLOURS])}


def _key(named: _Named, colours: Mapping[str, int]) -> str:
    return named.subject if named.subject in colours else named.what


def _tick(seconds: float) -> float:
    """Return the distance between marks: 1, 2 or 5 times a power of ten, so that there are five to twelve marks."""
    rough = seconds / 8
    unit = 10.0 ** math.floor(math.log10(rough))
    return next(unit * factor for factor in (1, 2, 5, 10) if unit * factor >= rough)
