"""The picture of a cluster: its nodes, racks and links, and how busy each link is.

The spine is at the top, pods and racks below it, nodes at the bottom. Each link has two rows of meters, out and in as
seen from the lower end, with a meter for each load. Rates are those of the cluster file.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from autosync.pictures.lettering import clipped, text_width
from autosync.pictures.svg import Drawing, Pen
from autosync.specs.cluster import ClusterSpec, Node, Rack
from autosync.specs.links import Direction, inside_name, interface_name, uplink_name
from autosync.specs.uplinks import NO_RACK, nodes_behind, racks_around
from autosync.strategy.wording import count
from autosync.units import format_rate

MAX_NODES = 16
"""The number of nodes that are drawn: those in front. The picture says how many others exist."""

_MARGIN = 18.0
_COLUMN = 146.0
_BOX = 128.0
_METER = 58.0
_METER_HEIGHT = 7.0
_SWITCH_HEIGHT = 24.0
_LEAST_WIDTH = 560.0
_COLOURS = (0, 2, 1, 3)
MAX_LOADS = len(_COLOURS)
"""The number of loads that are drawn: those in front."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterLoad:
    """How busy links are under one strategy: a share of the step for each link, by the names of `specs.links`."""

    name: str
    shares: Mapping[str, float]


def cluster_picture(cluster: ClusterSpec, loads: Sequence[ClusterLoad] = (), *, title: str, subtitle: str = "") -> str:
    """Return the picture as SVG. Links that a load does not know have no meter for it."""
    return _Picture(cluster, loads[:MAX_LOADS]).svg(title, subtitle)


class _Picture:
    def __init__(self, cluster: ClusterSpec, loads: Sequence[ClusterLoad]) -> None:
        self._cluster = cluster
        self._loads = loads
        self._drawing = Drawing()
        shown = cluster.nodes[:MAX_NODES]
        # Nodes of a rack stand side by side, those without a rack last.
        behind = nodes_behind(cluster)
        racks = [rack for rack, nodes in zip(cluster.racks, behind, strict=True) if any(n < MAX_NODES for n in nodes)]
        # Pods come first, then racks; nodes of a pod stand side by side too.
        holders = {rack.rack for rack in racks}
        tiers = [[rack for rack in racks if (rack.name in holders) == is_pod] for is_pod in (True, False)]
        self._tiers = [tier for tier in tiers if tier]
        self._tier_of = {rack.name: number for number, tier in enumerate(self._tiers) for rack in tier}
        around = racks_around(cluster)
        last = len(cluster.racks)
        places = {node.name: [last if rack == NO_RACK else rack for rack in around[n]] for n, node in enumerate(shown)}
        self._nodes = sorted(shown, key=lambda node: places[node.name])
        self._behind = {
            rack.name: {cluster.nodes[n].name for n in nodes} for rack, nodes in zip(cluster.racks, behind, strict=True)
        }
        self._bottoms: list[float] = []
        self._width = max(_LEAST_WIDTH, 2 * _MARGIN + _COLUMN * len(self._nodes))
        self._link_height = 52.0 + 2 * (_METER_HEIGHT + 4) * max(len(loads), 1)

    def svg(self, title: str, subtitle: str) -> str:
        self._drawing.text(_MARGIN, 30, clipped(title, self._width - 2 * _MARGIN, 17), "head ink")
        self._drawing.text(_MARGIN, 49, clipped(subtitle, self._width - 2 * _MARGIN, 12), "soft")
        y = self._legend(68.0)
        left, right = self._x(0), self._x(len(self._nodes) - 1) + _COLUMN
        self._switch((left, y), right - left, "spine" if self._tiers else "switch")
        y += _SWITCH_HEIGHT
        self._bottoms = [y]
        for tier in self._tiers:
            for rack in tier:
                self._rack(rack, y)
            y += self._link_height + _SWITCH_HEIGHT
            self._bottoms.append(y)
        for place, node in enumerate(self._nodes):
            self._node(node, self._x(place), y)
        bottom = y + self._link_height + 62
        hidden = len(self._cluster.nodes) - len(self._nodes)
        if hidden:
            self._drawing.text(_MARGIN, bottom + 6, f"and {count(hidden, 'more node')}", "small soft")
            bottom += 20
        names = " and ".join(load.name for load in self._loads)
        description = f"{count(len(self._cluster.nodes), 'node')}; the load of each link under {names}".removesuffix(
            "; the load of each link under "
        )
        return self._drawing.svg(self._width, bottom + 10, title=title, description=description)

    def _x(self, place: int) -> float:
        return _MARGIN + _COLUMN * place

    def _legend(self, y: float) -> float:
        x = _MARGIN
        for colour, load in zip(_COLOURS, self._loads, strict=False):
            shown = clipped(load.name, 260, 11)
            self._drawing.rectangle((x, y - 9), (16, 10), f"fill-{colour}", radius=2)
            self._drawing.text(x + 21, y, shown, "small soft")
            x += 33 + text_width(shown, 11)
        if self._loads:
            self._drawing.text(x, y, "how much of a step each link is busy", "small soft")
            y += 16
        return y

    def _switch(self, corner: tuple[float, float], width: float, name: str) -> None:
        self._drawing.rectangle(corner, (width, _SWITCH_HEIGHT), "box", radius=4)
        shown = clipped(name, width - 12, 12)
        self._drawing.text(corner[0] + width / 2, corner[1] + 16, shown, "ink", anchor="middle")

    def _rack(self, rack: Rack, top: float) -> None:
        """Draw a rack's switch and its uplink, which goes to its pod or to the spine."""
        places = [place for place, node in enumerate(self._nodes) if node.name in self._behind[rack.name]]
        left, right = self._x(places[0]), self._x(places[-1]) + _COLUMN - 8
        self._join((left + right) / 2, rack.rack, top)
        shares = {direction: self._shares(uplink_name(rack.name, direction)) for direction in _DIRECTIONS}
        self._link((left + right) / 2, (top, top + self._link_height), (rack.uplink_out, rack.uplink_in), shares)
        self._switch((left, top + self._link_height), right - left, rack.name)

    def _node(self, node: Node, left: float, top: float) -> None:
        """Draw a node and its link. A node without a rack is joined to the spine."""
        middle = left + _COLUMN / 2
        self._join(middle, node.rack, top)
        shares = {direction: self._shares(interface_name(node.name, direction)) for direction in _DIRECTIONS}
        end = top + self._link_height
        self._link(middle, (top, end), (node.bandwidth_out, node.bandwidth_in), shares)
        box = middle - _BOX / 2
        style = "serves" if node.role == "server" else "box"
        self._drawing.rectangle((box, end), (_BOX, 52), style, radius=5)
        self._drawing.text(middle, end + 18, clipped(node.name, _BOX - 10, 12), "bold ink", anchor="middle")
        what = "serves" if node.role == "server" else count(node.devices, "rank")
        self._drawing.text(middle, end + 32, what, "small soft", anchor="middle")
        inside = self._shares(inside_name(node.name))
        if any(share is not None for share in inside):
            words = " → ".join("" if share is None else _percent(share) for share in inside)
            self._drawing.text(middle, end + 45, f"inside {words}", "small soft", anchor="middle")

    def _join(self, middle: float, rack: str | None, top: float) -> None:
        """Draw a line from a rack's switch, or from the spine, if it is not directly above."""
        above = self._bottoms[0 if rack is None else self._tier_of[rack] + 1]
        if above < top:
            self._drawing.path(Pen().move(middle, above).line(middle, top), "line")

    def _shares(self, link: str) -> list[float | None]:
        """Return the share of each load."""
        return [load.shares.get(link) for load in self._loads]

    def _link(
        self,
        middle: float,
        ends: tuple[float, float],
        rates: tuple[float, float],
        shares: Mapping[Direction, Sequence[float | None]],
    ) -> None:
        """Draw a link with its rates, outwards left of its line and inwards right of it."""
        top, bottom = ends
        self._drawing.path(Pen().move(middle, top).line(middle, bottom), "line")
        for direction, rate in zip(_DIRECTIONS, rates, strict=True):
            side = middle - 6 - _METER if direction == "out" else middle + 6
            tip = (middle, top + 2) if direction == "out" else (middle, bottom - 2)
            toward = (0.0, -1.0) if direction == "out" else (0.0, 1.0)
            self._drawing.path(Pen().chevron(*tip, toward, 5.0), "line")
            self._drawing.text(side, top + 22, f"{direction}, up to", "tiny soft")
            self._drawing.text(side, top + 34, clipped(format_rate(rate), _METER + 4, 10), "tiny soft")
            for number, share in self._told(shares[direction]):
                self._meter(side, top + 42 + number * 2 * (_METER_HEIGHT + 4), share, _COLOURS[number])

    def _told(self, shares: Sequence[float | None]) -> Iterator[tuple[int, float]]:
        return ((number, share) for number, share in enumerate(shares) if share is not None)

    def _meter(self, left: float, top: float, share: float, colour: int) -> None:
        shown = min(max(share, 0.0), 1.0)
        self._drawing.rectangle((left, top), (_METER, _METER_HEIGHT), "frame", radius=2)
        if shown > 0:
            self._drawing.rectangle((left, top), (_METER * shown, _METER_HEIGHT), f"fill-{colour}", radius=2)
        self._drawing.text(left, top + _METER_HEIGHT + 9, _percent(share), "tiny ink")


_DIRECTIONS: tuple[Direction, Direction] = ("out", "in")


def _percent(share: float) -> str:
    return f"{min(share, 1.0):.0%}"
