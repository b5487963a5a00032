"""A network on paper: nodes with links and racks with uplinks, whose flows share links fairly, with noise."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field

from autosync.trials.probe.loads import AloneRates
from autosync.trials.probe.rack_search import RackSearch, decide, next_loads
from autosync.trials.probe.request import HostLoad, LoadSamples, Ways

MOST_LOADS = 100


@dataclass(frozen=True, kw_only=True)
class PaperRack:
    """The nodes of a rack, by position, and the rates of its uplink."""

    members: tuple[int, ...]
    out: float = 1e9
    into: float = 1e9


@dataclass(kw_only=True)
class PaperNetwork:
    """Nodes with these rates out and in.

    A measured rate is off by up to `noise`, and one load in ten is slowed to `disturbed` of its rate. The machine
    carries at most `most` of all flows together, and only a part of that, at random, if it is `restless`.
    """

    out: Sequence[float]
    into: Sequence[float]
    racks: Sequence[PaperRack] = ()
    noise: float = 0.02
    disturbed: float = 1.0
    most: float = 1e9
    restless: bool = False
    seed: int = 0
    num_loads: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)

    def search(self) -> RackSearch:
        """Search for shared links as a probe does."""
        alone = self.alone()
        measured: list[LoadSamples] = []
        while loads := next_loads(measured, alone, MOST_LOADS):
            measured += [self.measure(load) for load in loads]
        self.num_loads = len(measured)
        return decide(measured, alone)

    def alone(self) -> AloneRates:
        """What streams with all other nodes measure of each node's link."""
        nodes = range(len(self.out))
        out = [sum(self._rates(tuple((node, other) for other in nodes if other != node))) for node in nodes]
        into = [sum(self._rates(tuple((other, node) for other in nodes if other != node))) for node in nodes]
        return AloneRates(out=tuple(map(self._noisy, out)), into=tuple(map(self._noisy, into)))

    def measure(self, load: HostLoad) -> LoadSamples:
        slowed = self.disturbed if self._random.random() < 0.1 else 1.0
        most = self.most * self._random.uniform(0.5, 1.0) if self.restless else self.most
        rates = [self._noisy(rate) * slowed for rate in self._rates(load.ways, most)]
        busy = sum(rates) / most
        return LoadSamples(load=load, rates=tuple(rates), cpu_share=min(1.0, busy))

    def _noisy(self, rate: float) -> float:
        return rate * (1 + self._random.uniform(-self.noise, self.noise))

    def _rates(self, ways: Ways, most: float = 1e9) -> list[float]:
        """Fill all flows evenly until a link is full; the flows over it stay, the others go on."""
        links = self._links(ways, most)
        rates = [0.0] * len(ways)
        growing = set(range(len(ways)))
        while growing:
            room = {
                link: (capacity - sum(rates[way] for way in used)) / len(used & growing)
                for link, (capacity, used) in links.items()
                if used & growing
            }
            step = min(room.values())
            for way in growing:
                rates[way] += step
            for link, left in room.items():
                if left <= step + 1e-9:
                    growing -= links[link][1]
        return rates

    def _links(self, ways: Ways, most: float) -> dict[object, tuple[float, set[int]]]:
        links: dict[object, tuple[float, set[int]]] = {"machine": (most, set(range(len(ways))))}
        for way, (source, destination) in enumerate(ways):
            links.setdefault(("out", source), (self.out[source], set()))[1].add(way)
            links.setdefault(("in", destination), (self.into[destination], set()))[1].add(way)
            for number, rack in enumerate(self.racks):
                if source in rack.members and destination not in rack.members:
                    links.setdefault(("up", number), (rack.out, set()))[1].add(way)
                if destination in rack.members and source not in rack.members:
                    links.setdefault(("down", number), (rack.into, set()))[1].add(way)
        return links
