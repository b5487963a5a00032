"""The picture of a plan with stages: the passes of each rank in the order of time, and what crosses between stages.

Rows are ranks. A forward pass takes one unit of time and a backward pass two, or one if the gradients of weights come
apart, which take another one. In a stage with n ranks each takes n times as much, and sends take none: it is the order
of passes that is shown, and not their measured times. Below are the stages with their bytes, and the messages that sum
gradients.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from autosync.pictures.lettering import clipped, text_width
from autosync.pictures.svg import Drawing
from autosync.pictures.theme import NUM_COLOURS
from autosync.plan.types import Local, LocalKind, Plan, StagePass, Transfer
from autosync.specs.cluster import ClusterSpec
from autosync.strategy.wording import abbreviated, count
from autosync.units import format_size

MOST_RANKS = 24
MOST_LISTED = 10
"""The numbers of ranks, and of stages and messages, that are shown. The picture says how many others exist."""

_MARGIN = 18.0
_LABELS = 120.0
_TRACK = 760.0
_ROW = 26.0
_BAR = 20.0
_WIDEST_UNIT = 22.0
_STYLES: Mapping[LocalKind, str] = {"forward": "fill-{} own", "backward": "fill-{}", "weights": "line-{}"}


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawnPass:
    """A pass in units of time."""

    rank: int
    stage: int
    microbatch: int
    kind: LocalKind
    begin: int
    end: int


def pipeline_picture(plan: Plan, cluster: ClusterSpec, *, title: str, subtitle: str = "") -> str:
    """Return the picture of a plan with stages as SVG."""
    return _Picture(plan, cluster).svg(title, subtitle)


def drawn_passes(plan: Plan) -> list[DrawnPass]:
    """Return the passes of a plan in its order, each as early as its rank and what it waits for allow."""
    found: list[DrawnPass] = []
    ends: dict[int, int] = {}
    free = dict.fromkeys(range(plan.num_workers), 0)
    for index, one in enumerate(plan.operations):
        if isinstance(one, Transfer) and one.message < 0 and one.collective == "send":
            ends[index] = max(ends[edge.target] for edge in one.after)
        elif isinstance(one, Local) and isinstance(one.settings, StagePass):
            rank, place = one.groups[0][0], one.settings
            begin = max([free[rank], *(ends[edge.target] for edge in one.after if not edge.lag)])
            width = len(plan.stages[place.stage].ranks)
            units = 2 if one.kind == "backward" and not plan.splits_backward else 1
            ends[index] = free[rank] = begin + width * units
            found.append(
                DrawnPass(
                    rank=rank,
                    stage=place.stage,
                    microbatch=place.microbatch,
                    kind=one.kind,
                    begin=begin,
                    end=ends[index],
                )
            )
    return found


class _Picture:
    def __init__(self, plan: Plan, cluster: ClusterSpec) -> None:
        self._plan = plan
        self._cluster = cluster
        self._drawing = Drawing()
        self._passes = drawn_passes(plan)
        self._unit = min(_WIDEST_UNIT, _TRACK / max(one.end for one in self._passes))
        self._width = 2 * _MARGIN + _LABELS + _TRACK

    def svg(self, title: str, subtitle: str) -> str:
        plan = self._plan
        words = [
            subtitle,
            f"{count(len(plan.stages), 'stage')}, {count(plan.microbatches, 'microbatch')}",
            "" if plan.flushes else "passes of the steps before and after it fill the gaps",
        ]
        told = " · ".join(filter(None, words))
        room = self._width - 2 * _MARGIN
        self._drawing.text(_MARGIN, 30, clipped(title, room, 17), "head ink")
        self._drawing.text(_MARGIN, 49, clipped(told, room, 12), "soft")
        y = self._rows(72.0)
        y = self._stages(y + 26)
        y = self._messages(y + 22)
        y = self._legend(y + 24)
        return self._drawing.svg(self._width, y + 18, title=title, description=told)

    def _rows(self, top: float) -> float:
        """Draw a row of passes for each rank."""
        shown = min(self._plan.num_workers, MOST_RANKS)
        left = _MARGIN + _LABELS
        for rank in range(shown):
            y = top + rank * _ROW
            node = self._cluster.nodes[self._plan.ranks[rank].node].name
            self._drawing.text(_MARGIN, y + 14, clipped(f"rank {rank} ({node})", _LABELS - 8, 12), "ink")
            self._drawing.underlay((left, y + _BAR), (left + _TRACK, y + _BAR), "thin")
        for one in self._passes:
            if one.rank < shown:
                self._pass(one, left, top + one.rank * _ROW)
        y = top + shown * _ROW
        if shown < self._plan.num_workers:
            self._drawing.text(_MARGIN, y + 12, f"and {count(self._plan.num_workers - shown, 'more rank')}", "soft")
            y += 18
        return y

    def _pass(self, one: DrawnPass, left: float, y: float) -> None:
        x, wide = left + one.begin * self._unit, (one.end - one.begin) * self._unit
        tip = f"{one.kind} pass of microbatch {one.microbatch} through stage {one.stage}"
        if one.kind == "weights":
            tip = f"gradients of weights of stage {one.stage} for microbatch {one.microbatch}"
        style = _STYLES[one.kind].format(one.stage % NUM_COLOURS)
        self._drawing.rectangle((x, y), (max(wide - 0.8, 0.4), _BAR), style, radius=2, tip=tip)
        words = str(one.microbatch)
        if text_width(words, 10) <= wide - 1:
            colour = "on" if one.kind == "backward" else "ink"
            self._drawing.text(x + wide / 2, y + 14, words, f"tiny {colour}", anchor="middle")

    def _stages(self, top: float) -> float:
        """Draw a line for each stage: its ranks, and what a microbatch sends to the next stage and back."""
        self._drawing.text(_MARGIN, top, "stages", "bold ink")
        sizes = self._boundary_bytes()
        y = top
        for number, stage in enumerate(self._plan.stages[:MOST_LISTED]):
            y += 18
            self._drawing.rectangle((_MARGIN, y - 9), (14, 10), f"fill-{number % NUM_COLOURS}", radius=2)
            ranks = ", ".join(map(str, stage.ranks))
            words = f"stage {number} on {'rank' if len(stage.ranks) == 1 else 'ranks'} {ranks}"
            self._drawing.text(_MARGIN + 22, y, clipped(words, 380, 11), "small ink")
            if number in sizes:
                forth, back = sizes[number]
                told = f"a microbatch sends {format_size(forth)} on, and {format_size(back)} come back"
                self._drawing.text(_MARGIN + 420, y, told, "small soft")
        return self._more(y, len(self._plan.stages), "more stage")

    def _boundary_bytes(self) -> dict[int, tuple[int, int]]:
        """Return what a microbatch sends from a stage to the next one and back, where it leaves its rank."""
        found: dict[int, list[int]] = {}
        for one in self._plan.operations:
            if isinstance(one, Transfer) and one.message < 0 and one.collective == "send":
                region = self._plan.regions[one.regions[0]]
                sizes = found.setdefault(region.part, [0, 0])
                sizes[region.kind == "activation_grads"] = one.num_bytes
        return {stage: (forth, back) for stage, (forth, back) in found.items()}

    def _messages(self, top: float) -> float:
        """Draw a line for each message that goes among several ranks."""
        sums = [
            one
            for one in self._plan.operations
            if isinstance(one, Transfer) and one.message >= 0 and len(one.groups[0]) > 1
        ]
        by_message = {one.message: one for one in sums}
        known = {str(part.name): part.num_bytes for part in self._plan.parts}
        what = "gradients that ranks add up" if by_message else "no gradients are added up: each rank has other layers"
        self._drawing.text(_MARGIN, top, what, "bold ink")
        y = top
        for number, one in list(by_message.items())[:MOST_LISTED]:
            y += 18
            parts = self._plan.messages[number]
            size = format_size(sum(known[part] for part in parts))
            ranks = ", ".join(map(str, one.groups[0]))
            names = abbreviated(parts, most=2)
            self._drawing.text(_MARGIN + 22, y, clipped(f"{names} ({size})", 380, 11), "small ink")
            self._drawing.text(_MARGIN + 420, y, clipped(f"among ranks {ranks}", 420, 11), "small soft")
        return self._more(y, len(by_message), "more message")

    def _more(self, y: float, number: int, what: str) -> float:
        if number <= MOST_LISTED:
            return y
        self._drawing.text(_MARGIN + 22, y + 17, f"and {count(number - MOST_LISTED, what)}", "small soft")
        return y + 17

    def _legend(self, top: float) -> float:
        x = _MARGIN
        words_of: dict[LocalKind, str] = {"forward": "forward pass", "backward": "backward pass, twice as long"}
        if self._plan.splits_backward:
            words_of |= {"backward": "backward pass", "weights": "gradients of weights"}
        for kind, words in words_of.items():
            style = _STYLES[kind].format(0)
            self._drawing.rectangle((x, top - 9), (26, 10), style, radius=2)
            self._drawing.text(x + 33, top, words, "small soft")
            x += 33 + text_width(words, 11) + 16
        self._drawing.text(x, top, "numbers are microbatches; sends take no time here", "small soft")
        return top
