"""The picture of a plan: the data of each rank, and the transfers between ranks.

Columns are ranks. Above them stand the nodes with their rates; servers are set apart. Messages with the same stages
form a block, read from top to bottom: a bar shows the data of a rank (one coloured piece for each message), and the
lines between two rows of bars are a transfer. Beside each block its messages are listed with their bytes, lanes and
priorities. The foot shows the bytes that a step moves over each node's interface.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from autosync.pictures import captions
from autosync.pictures.glyphs import BAR_HEIGHT, GlyphColumns, Transfers, draw_bars
from autosync.pictures.groups import Group, Strand, groups_of, merged
from autosync.pictures.lettering import clipped, text_width
from autosync.pictures.pipeline_picture import pipeline_picture
from autosync.pictures.stages import is_about_norm
from autosync.pictures.svg import Drawing
from autosync.pictures.theme import OTHERS
from autosync.plan.traffic import amortised_traffic
from autosync.plan.types import Plan
from autosync.specs.cluster import ClusterSpec, Rank
from autosync.strategy.wording import count
from autosync.units import format_rate, format_size, format_time

MAX_RANKS = 24
"""The number of ranks that are shown. The picture says how many others exist."""
MAX_LISTED = 10

_MARGIN = 18.0
_LABELS = 240.0
_TABLE = 372.0
_GAP = 22.0
_NODE_GAP = 8.0
_SERVER_GAP = 26.0
_ROW = 34.0
# The width of columns, by the largest number of ranks with this width.
_WIDTHS = ((6, 84.0), (8, 66.0), (12, 52.0), (MAX_RANKS, 42.0))


def plan_picture(plan: Plan, cluster: ClusterSpec, *, title: str, subtitle: str = "") -> str:
    """Return the picture of the plan as SVG. `title` names the strategy, and `subtitle` its model and cluster.

    A plan with stages has another picture: see `pipeline_picture`.
    """
    if plan.stages:
        return pipeline_picture(plan, cluster, title=title, subtitle=subtitle)
    return _Picture(plan, cluster).svg(title, subtitle)


class _Picture:
    def __init__(self, plan: Plan, cluster: ClusterSpec) -> None:
        self._plan = plan
        self._cluster = cluster
        self._drawing = Drawing()
        self._groups = groups_of(plan)
        self._shown = _shown_ranks(plan)
        self._columns, self._right = _columns(self._shown)
        self._table = self._right + _GAP
        self._width = self._table + _TABLE + _MARGIN

    def svg(self, title: str, subtitle: str) -> str:
        y = self._head(title, subtitle)
        y = self._nodes(y)
        for group in self._groups:
            y = self._block(group, y + 32)
        y = self._foot(y + 16)
        height = self._legend(y + 20) + 18
        ways = "; ".join(f"{captions.heading(group)[0]} ({format_size(group.num_bytes)})" for group in self._groups)
        description = f"{subtitle}. {ways}" if subtitle else ways
        return self._drawing.svg(self._width, height, title=title, description=description)

    def _head(self, title: str, subtitle: str) -> float:
        words = [
            subtitle,
            f"{count(len(self._plan.messages), 'message')}, {count(self._plan.num_lanes, 'lane')}",
            captions.overlap_words(self._plan),
        ]
        room = self._width - 2 * _MARGIN
        self._drawing.text(_MARGIN, 30, clipped(title, room, 17), "head ink")
        self._drawing.text(_MARGIN, 49, clipped(" · ".join(filter(None, words)), room, 12), "soft")
        return 80.0

    # The ranks.

    def _nodes(self, top: float) -> float:
        """Draw the boxes of the nodes over the columns of their ranks."""
        height, half = 40.0, self._columns.width / 2
        for role, words in (("worker", "workers"), ("server", "only serve")):
            first = next((rank.index for rank in self._shown if rank.role == role), None)
            if first is not None:
                self._drawing.text(self._columns.centres[first] - half + 4, top - 6, words, "tiny soft")
        for node, ranks in _by_node(self._shown).items():
            left = self._columns.centres[ranks[0].index] - half + 2
            right = self._columns.centres[ranks[-1].index] + half - 2
            spec, middle, room = self._cluster.nodes[node], (left + right) / 2, right - left - 4
            serves = spec.role == "server"
            self._drawing.rectangle((left, top), (right - left, height), "serves" if serves else "box", radius=5)
            self._drawing.text(middle, top + 16, clipped(spec.name, room, 12.5), "bold ink", anchor="middle")
            rate = format_rate(min(spec.bandwidth_out, spec.bandwidth_in))
            self._drawing.text(middle, top + 31, clipped(rate, room, 10.5), "tiny soft", anchor="middle")
            if len(ranks) > 1:
                for rank in ranks:
                    words = clipped(f"rank {rank.index}", 2 * half - 4, 10) or str(rank.index)
                    centre = self._columns.centres[rank.index]
                    self._drawing.text(centre, top + height + 13, words, "tiny soft", anchor="middle")
        several = any(len(ranks) > 1 for ranks in _by_node(self._shown).values())
        hidden = len(self._plan.ranks) - len(self._shown)
        if hidden:
            self._drawing.text(self._right + 8, top + 24, f"and {count(hidden, 'more rank')}", "soft")
        return top + height + (16 if several else 0)

    # The messages.

    def _block(self, group: Group, top: float) -> float:
        """Draw one group: heading, bars and transfers, and its messages beside them."""
        name, told = captions.heading(group)
        self._drawing.underlay((_MARGIN, top - 16), (self._width - _MARGIN, top - 16), "thin")
        self._drawing.text(_MARGIN, top + 4, name, "bold ink")
        self._drawing.text(_MARGIN, top + 20, told, "small soft")
        y = self._rows(group, top + 34)
        for centre in self._columns.centres.values():
            self._drawing.underlay((centre, top + 34), (centre, y), "thin")
        return max(y, self._messages(group, top + 44))

    def _rows(self, group: Group, top: float) -> float:
        transfers = Transfers(self._drawing, self._columns, group)
        self._label(captions.start_words(group), "on each worker", top + BAR_HEIGHT / 2)
        draw_bars(self._drawing, self._columns, group, 0, top)
        y = top + BAR_HEIGHT
        for row in group.rows:
            name, plain = captions.stage_words(group, row, self._plan.ranks)
            if group.stages[row[0]].is_transfer:
                hidden = transfers.num_hidden(row[0])
                plain += f" (and {hidden} more groups)" if hidden else ""
                height = transfers.height(row[0]) + 4
                transfers.draw(row[0], y + 2)
                self._label(name, plain, y + height / 2)
                y += height
            else:
                y += _ROW - BAR_HEIGHT
                self._label(name, plain, y + BAR_HEIGHT / 2)
            draw_bars(self._drawing, self._columns, group, row[-1], y)
            y += BAR_HEIGHT
        return y

    def _label(self, name: str, plain: str, middle: float) -> None:
        """Write what happens, left of the columns: the plan's word and below it plain words."""
        self._drawing.text(_MARGIN, middle + (0 if plain else 4), clipped(name, _LABELS - 8, 12), "ink")
        self._drawing.text(_MARGIN, middle + 13, clipped(plain, _LABELS - 4, 10), "tiny soft")

    def _messages(self, group: Group, top: float) -> float:
        """Draw the messages of a block as a table."""
        has_priorities = len({number for strand in group.strands for number in strand.priorities}) > 1
        has_slices = any(strand.num_slices > 1 for strand in group.strands)
        servers = {strand.order: self._server(strand) for strand in group.strands}
        columns = [("server", 66.0)] * any(servers.values()) + [("lane", 44.0)]
        columns += [("priority", 50.0)] * has_priorities + [("slices", 42.0)] * has_slices
        right = self._table + _TABLE
        places = [
            (right - sum(wide for _, wide in columns[place + 1 :]), name) for place, (name, _) in enumerate(columns)
        ]
        bytes_at = right - sum(wide for _, wide in columns)
        room = bytes_at - 64 - self._table - 22
        self._drawing.text(self._table + 22, top, count(group.num_messages, "message"), "tiny soft")
        self._drawing.text(bytes_at, top, format_size(group.num_bytes), "tiny soft", anchor="end")
        for place, name in places:
            self._drawing.text(place, top, name, "tiny soft", anchor="end")
        y = top
        for strand in _listed(group):
            y += 17
            self._drawing.rectangle((self._table, y - 8), (14, 8), f"fill-{strand.colour}", radius=2)
            words = captions.parts_words(strand.parts, strand.num_messages)
            self._drawing.text(self._table + 22, y, clipped(words, room, 11), "small ink")
            self._drawing.text(bytes_at, y, format_size(strand.num_bytes), "small ink", anchor="end")
            cells = {
                "server": clipped(servers.get(strand.order, ""), 60, 11),
                "lane": captions.numbers_words(strand.lanes),
                "priority": captions.numbers_words(strand.priorities),
                "slices": str(strand.num_slices),
            }
            for place, name in places:
                self._drawing.text(place, y, cells[name], "small soft", anchor="end")
        return y + 4

    def _server(self, strand: Strand) -> str:
        """Return the name of the server that a strand uses; empty if there is not exactly one."""
        roots = {
            group[0]
            for stage in strand.stages
            if stage.manner == "star" and stage.what in ("broadcast", "gather_v")
            for group in stage.groups
        }
        return self._cluster.nodes[self._plan.ranks[roots.pop()].node].name if len(roots) == 1 else ""

    # The foot.

    def _foot(self, top: float) -> float:
        """Draw the bytes that a step moves over each node's interface, and the time that they take at its rate."""
        traffic = amortised_traffic(self._plan, self._cluster)
        nodes = self._cluster.nodes
        lines = [
            ("sent", traffic.node_out, [node.bandwidth_out for node in nodes]),
            ("received", traffic.node_in, [node.bandwidth_in for node in nodes]),
        ]
        seconds = {name: [float(b) / r for b, r in zip(moved, rates, strict=True)] for name, moved, rates in lines}
        longest = max(max(times) for times in seconds.values())
        self._drawing.underlay((_MARGIN, top), (self._width - _MARGIN, top), "thin")
        self._drawing.text(_MARGIN, top + 22, "a step over each link", "bold ink")
        average = "on average, " if any(operation.every > 1 for operation in self._plan.operations) else ""
        told = f"{average}full bar: {format_time(float(f'{longest:.2g}'))}" if longest else "nothing is sent"
        self._drawing.text(_MARGIN, top + 37, told, "tiny soft")
        y = top + 8
        for name, moved, _ in lines:
            for node, ranks in _by_node(self._shown).items():
                left = self._columns.centres[ranks[0].index] - self._columns.bar_width / 2
                wide = self._columns.centres[ranks[-1].index] + self._columns.bar_width / 2 - left
                filled = wide * (seconds[name][node] / longest if longest else 0.0)
                self._drawing.rectangle((left, y), (wide, 5), "frame", radius=1)
                self._drawing.rectangle((left, y), (filled, 5), "meter", radius=1)
                words = clipped(format_size(float(moved[node])), wide + 8, 10)
                self._drawing.text(left + wide / 2, y + 16, words, "tiny ink", anchor="middle")
            self._drawing.text(_MARGIN + _LABELS - 8, y + 9, name, "tiny soft", anchor="end")
            y += 24
        return y

    def _legend(self, top: float) -> float:
        """Draw the legend of the bars."""
        samples = [
            ("fill-0 own", "frame", "a rank's own"),
            ("fill-0", "frame", "sum or average of all"),
            ("fill-0", "held", "new parameters"),
        ]
        if any(stage.state == "own parameter" for group in self._groups for stage in group.stages):
            samples.append(("fill-0 own", "held", "a worker's own parameters"))
        x = _MARGIN
        for filled, frame, words in samples:
            self._drawing.rectangle((x, top - 9), (26, 10), filled, radius=2)
            self._drawing.rectangle((x, top - 9), (26, 10), frame, radius=2)
            self._drawing.text(x + 33, top, words, "small soft")
            x += 33 + text_width(words, 11) + 16
        words = "the wider, the more bytes"
        if any(is_about_norm(self._plan, operation) for operation in self._plan.operations):
            words += "; every update waits for the norm of all gradients"
        self._drawing.text(x, top, words, "small soft")
        return top


def _listed(group: Group) -> Sequence[Strand]:
    """Return the strands to list: those with a colour of their own, and all others as one."""
    own = [strand for strand in group.strands if strand.colour != OTHERS]
    others = [strand for strand in group.strands if strand.colour == OTHERS]
    return [*own, *([replace(merged(others), colour=OTHERS)] if others else [])]


def _shown_ranks(plan: Plan) -> Sequence[Rank]:
    """Return all ranks, or as many as there is room for; servers take at most a third if there are many workers."""
    workers = [rank for rank in plan.ranks if rank.role == "worker"]
    servers = [rank for rank in plan.ranks if rank.role == "server"]
    num_servers = min(len(servers), max(MAX_RANKS // 3, MAX_RANKS - len(workers)))
    return [*workers[: MAX_RANKS - num_servers], *servers[:num_servers]]


def _by_node(ranks: Sequence[Rank]) -> dict[int, list[Rank]]:
    found: dict[int, list[Rank]] = {}
    for rank in ranks:
        found.setdefault(rank.node, []).append(rank)
    return found


def _columns(ranks: Sequence[Rank]) -> tuple[GlyphColumns, float]:
    """Return the columns of the ranks and where the last one ends; servers are set apart."""
    width = next(wide for most, wide in _WIDTHS if len(ranks) <= most)
    centres: dict[int, float] = {}
    x = _MARGIN + _LABELS
    for place, rank in enumerate(ranks):
        if place and rank.node != ranks[place - 1].node:
            x += _NODE_GAP
        if place and rank.role != ranks[place - 1].role:
            x += _SERVER_GAP
        centres[rank.index] = x + width / 2
        x += width
    return GlyphColumns(centres=centres, width=width), x
