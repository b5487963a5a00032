"""The shapes in pictures of plans: rings, stars and arcs for transfers, and coloured bars for the ranks' data.

A transfer is drawn between two rows of bars: the data that ranks had before it and the data they have after it. Each
strand has its own position in the bundle of lines, so lines never cover each other.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from autosync.pictures.groups import Group, Strand
from autosync.pictures.stages import Holding, holdings
from autosync.pictures.svg import Drawing, Pen
from autosync.plan.flows import flow
from autosync.plan.types import Algorithm, Collective, Groups

BAR_HEIGHT = 12.0
MAX_LAYERS = 6
MAX_SIDE_BY_SIDE = 4
"""The number of rank groups of one transfer that are drawn above each other; the picture leaves out further ones."""

_PITCH = 4.0
_STAR_HEIGHT = 54.0
_MIN_HEIGHT = 46.0
_MIN_PIECE = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class GlyphColumns:
    """The columns of the ranks: the centre of each column that is shown, and the width of all columns."""

    centres: Mapping[int, float]
    width: float

    @property
    def bar_width(self) -> float:
        return self.width - 14

    def shown(self, ranks: Sequence[int]) -> list[int]:
        """Return those of the ranks that have a column."""
        return [rank for rank in ranks if rank in self.centres]


class Transfers:
    """Draws the transfers of one group."""

    def __init__(self, drawing: Drawing, columns: GlyphColumns, group: Group) -> None:
        self._drawing = drawing
        self._columns = columns
        self._group = group
        self._pitch = min(_PITCH, (columns.width / 2 - 8) / max(1, group.num_slots))
        self._line_width = max(0.8, (0.6 if group.num_slots < 4 else 0.45) * self._pitch)

    def height(self, place: int) -> float:
        """Return the height that a transfer needs."""
        if self._shape(place) == "star":
            return _STAR_HEIGHT + 4 * self._group.num_slots
        num_tracks = min(MAX_SIDE_BY_SIDE, 1 + max(self._tracks(place).values(), default=0))
        return max(_MIN_HEIGHT, num_tracks * self._track_height(place) + 6)

    def num_hidden(self, place: int) -> int:
        """Return how many groups of a transfer are not shown for lack of room."""
        if self._shape(place) == "star":
            return 0
        return sum(track >= MAX_SIDE_BY_SIDE for track in self._tracks(place).values())

    def draw(self, place: int, top: float) -> None:
        """Draw a transfer below `top`."""
        shape = self._shape(place)
        if shape == "star":
            self._star(place, top, top + self.height(place))
            return
        height = self._track_height(place)
        top += max(0.0, (self.height(place) - height) / 2 - 3) if height + 6 < _MIN_HEIGHT else 0.0
        for group, track in self._tracks(place).items():
            if track < MAX_SIDE_BY_SIDE:
                draw = self._ring if shape == "ring" else self._arcs
                draw(place, group, top + 3 + track * height, height)

    def _shape(self, place: int) -> str:
        stage = self._group.stages[place]
        if stage.manner == "star":
            return "star"
        is_rooted = stage.what in ("reduce", "broadcast")
        has_pairs = stage.trees is not None or stage.manner in ("tree", "halving_doubling")
        return "arcs" if is_rooted or has_pairs else "ring"

    def _groups(self, place: int) -> Groups:
        """Return the rank groups of a transfer over all strands, without groups that show only one rank."""
        found = {group: None for strand in self._group.strands for group in strand.stages[place].groups}
        return tuple(group for group in found if len(self._columns.shown(group)) > 1)

    def _tracks(self, place: int) -> Mapping[tuple[int, ...], int]:
        """Assign each rank group a track.

        Groups beside each other share a track; overlapping groups lie above each other.
        """
        ends: list[float] = []
        found: dict[tuple[int, ...], int] = {}
        spans = [(self._span(group), group) for group in self._groups(place)]
        for (left, right), group in sorted(spans):
            track = next((number for number, end in enumerate(ends) if end < left), len(ends))
            ends[track : track + 1] = [right]
            found[group] = track
        return found

    def _span(self, group: Sequence[int]) -> tuple[float, float]:
        centres = [self._columns.centres[rank] for rank in self._columns.shown(group)]
        return min(centres), max(centres)

    def _track_height(self, place: int) -> float:
        if self._shape(place) == "ring":
            return 2 * self._radius(self._group.num_slots - 1) + 12
        return 34 + self._group.num_slots * self._pitch

    def _radius(self, slot: int) -> float:
        return 6 + slot * _PITCH

    def _of_group(self, place: int, group: tuple[int, ...]) -> Iterator[Strand]:
        return (strand for strand in self._group.strands if group in strand.stages[place].groups)

    def _ring(self, place: int, group: tuple[int, ...], top: float, height: float) -> None:
        """Draw a loop for each strand, through a station in each member's column."""
        ranks = self._columns.shown(group)
        centres = sorted(self._columns.centres[rank] for rank in ranks)
        middle = top + height / 2
        radii = []
        for strand in self._of_group(place, group):
            radius = self._radius(strand.slot)
            radii.append(radius)
            bulge = min(radius, self._columns.width / 2 - 4)
            left, right, above, below = centres[0], centres[-1], middle - radius, middle + radius
            pen = Pen().move(left, above).line(right, above).arc(bulge, radius, right, below)
            pen.line(left, below).arc(bulge, radius, left, above)
            self._line(pen, strand)
        self._directions(place, group, middle, radii)
        self._stations(centres, middle - max(radii), middle - min(radii))

    def _directions(self, place: int, group: tuple[int, ...], middle: float, radii: Sequence[float]) -> None:
        """Draw the arrowheads of a ring: to the right on its upper side, to the left on its lower one.

        Arrowheads on a thick bundle of lines are cut into it.
        """
        centres = sorted(self._columns.centres[rank] for rank in self._columns.shown(group))
        reach, centre = (max(radii) - min(radii)) / 2 + 3.5, (max(radii) + min(radii)) / 2
        pen = Pen()
        for here, there in itertools.pairwise(centres):
            pen.chevron((here + there) / 2 + reach / 2, middle - centre, (1, 0), reach)
        pen.chevron((centres[0] + centres[-1]) / 2 - reach / 2, middle + centre, (-1, 0), reach)
        outermost = max(self._of_group(place, group), key=lambda strand: strand.slot)
        self._drawing.path(pen, "cut" if len(radii) > 2 else f"line-{outermost.colour}", width=1.6)

    def _arcs(self, place: int, group: tuple[int, ...], top: float, height: float) -> None:
        """Draw an arc for each pair of ranks that exchange data, with an arrowhead if only one of them sends."""
        stage = self._group.stages[place]
        edges = _edges(stage.what, stage.trees or stage.manner, len(group))  # type: ignore[arg-type]
        base = top + height - 6
        centres = [self._columns.centres.get(rank) for rank in group]
        slots = []
        for strand in self._of_group(place, group):
            pen = Pen()
            rise = strand.slot * self._pitch
            slots.append(rise)
            for (source, destination), is_both in edges.items():
                start, end = centres[source], centres[destination]
                if start is None or end is None:
                    continue
                reach = min(1.0, abs(source - destination) / max(1, len(group) - 1))
                peak = base - rise - 8 - (height - 22 - self._group.num_slots * self._pitch) * reach
                pen.move(start, base - rise).bend(((start + end) / 2, 2 * peak - base + rise), end, base - rise)
                if not is_both:
                    pen.chevron((start + end) / 2, peak, (end - start, 0))
            self._line(pen, strand)
        self._stations([centre for centre in centres if centre is not None], base - max(slots), base - min(slots))

    def _star(self, place: int, top: float, bottom: float) -> None:
        """Draw a line between each member and the root, straight down in the root's own column."""
        inward = self._group.stages[place].what in ("reduce", "gather_v")
        workers = self._workers()
        for strand in self._group.strands:
            pen = Pen()
            offset = (strand.slot - (self._group.num_slots - 1) / 2) * self._pitch
            for root, *others in strand.stages[place].groups:
                if root not in self._columns.centres:
                    continue
                centre = self._columns.centres[root] + offset
                members = self._columns.shown(others) + ([root] if root in workers else [])
                for rank in members:
                    here = self._columns.centres[rank] + offset
                    start, end = (here, centre) if inward else (centre, here)
                    _drop(pen, (start, top), (end, bottom - 2))
                    if not inward:
                        pen.chevron(end, bottom - 1, (0, 1))
                if inward and members:
                    pen.chevron(centre, bottom - 1, (0, 1))
            self._line(pen, strand)

    def _workers(self) -> frozenset[int]:
        """Return the ranks with a gradient of their own. For a root among them, no bytes are sent."""
        return frozenset(rank for group in self._group.stages[0].groups for rank in group)

    def _stations(self, centres: Sequence[float], top: float, bottom: float) -> None:
        for centre in centres:
            corner, size = (centre - 3.5, top - 3.5), (7.0, bottom - top + 7.0)
            self._drawing.rectangle(corner, size, "station", radius=3.5)

    def _line(self, pen: Pen, strand: Strand) -> None:
        self._drawing.path(pen, f"line-{strand.colour}", width=self._line_width)


def draw_bars(drawing: Drawing, columns: GlyphColumns, group: Group, place: int, top: float) -> None:
    """Draw the data of each rank after a stage: a frame as wide as the group's bytes, with a piece for each strand.

    A piece lies at its strand's place in the frame, is as wide as the strand's bytes, and is cut to the rank's share.
    """
    intervals = _intervals(group, columns.bar_width)
    framed: dict[int, bool] = {}
    for strand in group.strands:
        stage = strand.stages[place]
        start, width = intervals[strand.slot, strand.order]
        for rank, (holding, share) in _holdings(strand, place).items():
            if rank not in columns.centres:
                continue
            framed[rank] = framed.get(rank, False) or "parameter" in stage.state
            whole = width * share
            piece = max(_MIN_PIECE / 2, whole / holding.num_shares)
            left = columns.centres[rank] - columns.bar_width / 2 + start + holding.share * whole / holding.num_shares
            style = f"fill-{strand.colour}" + (" own" if "own" in stage.state else "")
            for layer in range(min(MAX_LAYERS, holding.num_layers)):
                height = BAR_HEIGHT / min(MAX_LAYERS, holding.num_layers)
                gap = 0.8 if holding.num_layers > 1 else 0.0
                drawing.rectangle((left, top + layer * height), (piece, height - gap), style)
    for rank, is_parameter in framed.items():
        corner = (columns.centres[rank] - columns.bar_width / 2, top)
        drawing.rectangle(corner, (columns.bar_width, BAR_HEIGHT), "held" if is_parameter else "frame", radius=2)


def _holdings(strand: Strand, place: int) -> Mapping[int, tuple[Holding, float]]:
    """Return what each rank holds after a stage, and its share of the dense bytes.

    After the last stage this includes the whole parameter on ranks that updated it, even if other ranks received it
    later.
    """
    found = {rank: (holding, strand.stages[place].share) for rank, holding in holdings(strand.stages[place]).items()}
    if place == len(strand.stages) - 1:
        for stage in strand.stages:
            if stage.what == "update" and not stage.sharded:
                found.update({rank: (holding, stage.share) for rank, holding in holdings(stage).items()})
    return found


def _intervals(group: Group, width: float) -> Mapping[tuple[int, int], tuple[float, float]]:
    """Return the start and width of each strand in a bar, by its bytes and wide enough to see."""
    total = max(1, group.num_bytes)
    widths = [max(_MIN_PIECE, width * strand.num_bytes / total) for strand in group.strands]
    scale = width / sum(widths)
    found: dict[tuple[int, int], tuple[float, float]] = {}
    start = 0.0
    for strand, wide in zip(group.strands, widths, strict=True):
        found[strand.slot, strand.order] = (start, wide * scale)
        start += wide * scale
    return found


def _edges(collective: Collective, algorithm: Algorithm, num_members: int) -> Mapping[tuple[int, int], bool]:
    """Return the pairs of members that exchange data, and whether both of a pair send.

    Each such pair is listed once.
    """
    terms = flow(collective, algorithm, num_members)
    pairs = {
        (int(source), int(destination)) for source, destination in zip(terms.source, terms.destination, strict=True)
    }
    return {
        (source, destination): (destination, source) in pairs
        for source, destination in sorted(pairs)
        if source < destination or (destination, source) not in pairs
    }


def _drop(pen: Pen, start: tuple[float, float], end: tuple[float, float]) -> None:
    (left, top), (right, bottom) = start, end
    middle = (top + bottom) / 2
    pen.move(left, top)
    if left == right:
        pen.line(right, bottom)
    else:
        pen.curve((left, middle), (right, middle), right, bottom)
