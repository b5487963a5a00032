"""Fits trees to a cluster's rates: the trees and shares with which an all-reduce finishes first.

This is a linear programme: choose the shares of candidate trees so that the busiest link finishes as early as possible.
A node whose interface is as busy as a full uplink delays that uplink, so the busiest interface counts a little more.
There are far too many trees to list, so candidates are added while they help. The programme's dual prices say how much
a link's time is worth. The cheapest tree under these prices is the best new candidate. If no tree is cheaper than those
already used, the shares are optimal.

To the programme, deep and flat trees with the same load are the same, but not to a network: see `waves`. So `levels`
and chains are tried too, and the fastest is taken. Each tree costs every node a message for each piece, so only so many
of the best trees are kept as shorten an all-reduce of `num_bytes` by more than that.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from autosync.specs.cluster import ClusterSpec
from autosync.strategy.shapes.cheapest_trees import CheapestTrees, TreePrices, TreesToRoots
from autosync.strategy.shapes.levels import Ranks, levels, num_level_shares
from autosync.strategy.shapes.links import Floats, Integers, TreeLinks, tree_links, without_servers
from autosync.strategy.shapes.pod_trees import PodPlaces, PodTrees
from autosync.strategy.shapes.trees import ABSENT, MAX_SHARES, Parents, TreeShare, simplified
from autosync.strategy.shapes.waves import pieces_of, wave_seconds

MOST_TREES = 64
MANY_NODES = 64
"""With more nodes, the search is shorter: so many of them are tried as roots, in few rounds."""
NUM_BYTES = 16e6
MESSAGE_SECONDS = 1e-4
"""The price of one more message at a node, both its ends together."""

_MOST_ROUNDS, _FEW_ROUNDS = 60, 5
_CLOSE_ENOUGH = 0.005
"""How near to the optimum the search for candidates ends, as a share of the time."""

_PATIENCE = 4
"""With pods, the search ends after so many rounds that gained less than this together."""

_VARIATION = 0.5
"""The standard deviation of the logarithms of varied prices."""

_LEAST_PRICE = 0.1
"""The price that varied prices add for links that are not full, all links together."""

_INTERFACE_COST = 0.1
"""How much the time of the busiest interface counts beside that of the busiest link."""

_NUM_UNITS = 2520
_SMALLEST_SHARE = 1e-6


class _Candidate(NamedTuple):
    """Two trees over nodes with one root, and the seconds for which a byte occupies each link."""

    up: Parents
    down: Parents
    seconds: Floats


class _Division(NamedTuple):
    """Candidates, and the share of the data that each carries."""

    candidates: Sequence[_Candidate]
    shares: Floats


class _Solution(NamedTuple):
    """What is minimal, in seconds for a byte; the share of each candidate, and the price of each link."""

    cost: float
    shares: Floats
    prices: Floats


def fitted_shares(
    cluster: ClusterSpec,
    *,
    num_bytes: float = NUM_BYTES,
    message_seconds: float = MESSAGE_SECONDS,
    most_trees: int = MOST_TREES,
    takes_servers: bool = True,
) -> tuple[TreeShare, ...]:
    """Return the shares with which an all-reduce of `num_bytes` finishes first; the cluster has two workers or more.

    Nodes that only serve may be inner nodes, unless `takes_servers` is false.
    """
    # Without servers, it is the same search for all-reduces and for shards.
    leaves_out = not takes_servers and any(rank.role == "server" for rank in cluster.ranks)
    return _fitted(cluster, num_bytes, message_seconds, most_trees, leaves_out_servers=leaves_out)


@functools.lru_cache(maxsize=64)
def _fitted(
    cluster: ClusterSpec,
    num_bytes: float,
    message_seconds: float,
    most_trees: int,
    *,
    leaves_out_servers: bool,
) -> tuple[TreeShare, ...]:
    links = without_servers(tree_links(cluster)) if leaves_out_servers else tree_links(cluster)
    if links.serves[1:].all():
        # The only node with workers comes first, and no link is used.
        alone = (0, *[ABSENT] * (links.num_nodes - 1))
        return _as_shares(links, [_Candidate(alone, alone, np.zeros(0))], np.ones(1))
    price = message_seconds * 2 * (links.num_nodes - 1) / links.num_nodes

    def seconds(division: _Division) -> float:
        trees = [candidate[:2] for candidate in division.candidates]
        num_messages = len(trees) * pieces_of(division.shares, num_bytes=num_bytes)
        return wave_seconds(links, trees, division.shares, num_bytes=num_bytes) + price * num_messages

    # Only with pods, candidates begin with levels, which may then be more than are kept.
    most_levels = MAX_SHARES if links.has_pods else most_trees
    has_levels = num_level_shares(cluster) <= most_levels
    of_levels = _of_levels(cluster, links) if has_levels else _Division((), np.zeros(0))
    useful = _useful_candidates(links, of_levels.candidates if links.has_pods else ())
    chains = list(itertools.islice(_chains(links), most_trees))
    divisions = [*_divisions(useful, most_trees), *_divisions(chains, most_trees)]
    # The programme uses no more trees than it needs. With more of them, the first and the last waves are fuller.
    divisions.append(_Division(chains, np.ones(len(chains)) / len(chains)))
    if 0 < len(of_levels.candidates) <= most_trees:
        divisions.append(of_levels)
    return _as_shares(links, *min(divisions, key=seconds))


def _divisions(candidates: Sequence[_Candidate], most_trees: int) -> Iterable[_Division]:
    """Yield the best divisions of the data among 1, 2, 3, 4, 6 and so on of these candidates."""
    shares = _solve(candidates).shares
    order = np.argsort(-shares, kind="stable")
    num_used = int((shares > _SMALLEST_SHARE).sum())
    for count in _counts(min(num_used, most_trees)):
        chosen = [candidates[place] for place in order[:count]]
        found = _solve(chosen).shares
        used = np.flatnonzero(found > _SMALLEST_SHARE)
        yield _Division([chosen[place] for place in used], found[used])


def _counts(most: int) -> Iterable[int]:
    """Yield 1, 2, 3, 4, 6, 8, 12 and so on, and `most`."""
    count = 1
    while count < most:
        yield count
        if count > 1 and 3 * count // 2 < most:
            yield 3 * count // 2
        count *= 2
    yield most


def _useful_candidates(links: TreeLinks, known: Iterable[_Candidate]) -> list[_Candidate]:
    """Return candidates whose best shares are as good as those of all trees; with pods, nearly as good."""
    found: dict[tuple[Parents, Parents], _Candidate] = {}
    even = np.ones(len(links.rates)) / len(links.rates)
    rng = np.random.default_rng(0)
    for candidate in [*known, *_cheapest(links, even), *_around_each_node(links)]:
        found.setdefault(candidate[:2], candidate)
    best = [math.inf]
    for _ in range(_MOST_ROUNDS if links.num_nodes <= MANY_NODES else _FEW_ROUNDS):
        solution = _solve(list(found.values()))
        best.append(min(best[-1], solution.cost))
        # With pods, no candidate is proven to be the cheapest, so prices may never tell that the end has come.
        if links.has_pods and best[-1] > (1 - _CLOSE_ENOUGH) * best[-1 - _PATIENCE :][0]:
            break
        new = [one for one in _cheapest(links, solution.prices) if one[:2] not in found]
        least = min([float(one.seconds @ solution.prices) for one in new], default=solution.cost)
        if least >= solution.cost * (1 - _CLOSE_ENOUGH):
            break
        new += _varied(links, solution.prices + _LEAST_PRICE * even, rng)
        found.update({one[:2]: one for one in new})
    return list(found.values())


def _of_levels(cluster: ClusterSpec, links: TreeLinks) -> _Division:
    """Return the trees of `levels` over nodes, and their shares."""
    node_of = {rank: node for node, group in enumerate(links.ranks) for rank in group}
    shares = levels(cluster).shares
    candidates = []
    for share in shares:
        parents = np.full(links.num_nodes, ABSENT)
        for rank, parent in enumerate(share.up):
            if parent == rank or node_of[parent] != node_of[rank]:
                parents[node_of[rank]] = node_of[parent]
        candidates.append(_candidate(links, parents, parents))
    weights = np.array([float(share.weight) for share in shares])
    return _Division(candidates, weights / weights.sum())


def _chains(links: TreeLinks) -> Iterable[_Candidate]:
    """Yield a chain of all workers for each root: through the other racks one by one, then through its own."""
    workers = np.flatnonzero(~links.serves).tolist()
    for place, root in enumerate(workers):
        rest = [*workers[place + 1 :], *workers[:place]]
        rest.sort(key=lambda node: (links.rack[node] == links.rack[root], links.inner[node] == links.inner[root]))
        parents = np.full(links.num_nodes, ABSENT)
        parents[[*rest, root]] = [*rest[1:], root, root]
        yield _candidate(links, parents, parents)


def _around_each_node(links: TreeLinks) -> Iterable[_Candidate]:
    """Yield a tree for each root, in which the root leads its rack and others are led in turn."""
    for root in _roots(links):
        receive = np.ones(links.num_nodes)
        for rack in range(links.num_racks):
            members = np.flatnonzero((links.rack == rack) & ~links.serves)
            if len(members):
                receive[members[root % len(members)]] = 0.5
        receive[root] = 0.0
        dear = np.full(links.num_racks, 2.0)
        dear_inside = np.full(len(links.inner_out), 2.0)
        prices = TreePrices(np.ones(links.num_nodes), receive, dear, dear)
        parents = _trees(links, prices, dear_inside, dear_inside).to(root)
        yield _candidate(links, parents, parents)


def _roots(links: TreeLinks) -> list[int]:
    """Return the nodes that are tried as roots: all, or of very many the fastest ones of each rack."""
    rack, speed = links.rack.tolist(), np.minimum(links.node_out, links.node_in).tolist()
    by_speed = sorted(range(links.num_nodes), key=lambda node: -speed[node])
    faster: Counter[int] = Counter()
    places: dict[int, int] = {}
    for node in by_speed:
        places[node] = faster[rack[node]]
        faster[rack[node]] += 1
    return sorted(sorted(by_speed, key=places.__getitem__)[:MANY_NODES])


def _cheapest(links: TreeLinks, prices: Floats) -> list[_Candidate]:
    """Return for each root the cheapest trees under prices of links (for the seconds of each)."""
    reduction, distribution = _both_ways(links, prices)
    return [_candidate(links, reduction.to(root), distribution.to(root)) for root in _roots(links)]


def _varied(links: TreeLinks, prices: Floats, rng: np.random.Generator) -> list[_Candidate]:
    """Return for each root the cheapest trees under prices that differ by chance from root to root.

    Under the same prices, the same nodes lead their racks in the trees to all roots. A good division needs all of them
    as leaders, and without variation each round would add one.
    """
    found = []
    for root in _roots(links):
        noise = np.exp(_VARIATION * rng.standard_normal(len(prices)))
        reduction, distribution = _both_ways(links, prices * noise)
        found.append(_candidate(links, reduction.to(root), distribution.to(root)))
    return found


def _both_ways(links: TreeLinks, prices: Floats) -> tuple[TreesToRoots, TreesToRoots]:
    """Return what finds cheap reduction trees and cheap distribution trees under prices of links."""
    cuts = np.cumsum([len(rates) for rates in links.by_kind[:-1]])
    out, into, leave, enter, inner_leave, inner_enter = np.split(prices / links.rates, cuts)
    reduction = _trees(links, TreePrices(out, into, leave, enter), inner_leave, inner_enter)
    return reduction, _trees(links, TreePrices(into, out, enter, leave), inner_enter, inner_leave)


def _trees(links: TreeLinks, prices: TreePrices, leave: Floats, enter: Floats) -> TreesToRoots:
    """Return what finds cheap trees under prices; `leave` and `enter` are those of inner racks."""
    if not links.has_pods:
        return CheapestTrees(prices, links.rack, links.serves)
    places = PodPlaces(pod=links.rack, rack=links.inner, serves=links.serves)
    return PodTrees(prices, leave, enter, places)


def _candidate(links: TreeLinks, up: Integers, down: Integers) -> _Candidate:
    return _Candidate(tuple(up.tolist()), tuple(down.tolist()), links.loads(up, down) / links.rates)


def _solve(candidates: Sequence[_Candidate]) -> _Solution:
    """Return the best shares of these candidates.

    Minimal is the time of the busiest link, and a little of the time of the busiest interface.
    """
    # scipy takes a while to load, and few commands need it.
    from scipy.optimize import linprog

    seconds = np.array([one.seconds for one in candidates]).T
    scale = float(seconds.max())
    count, num_links = len(candidates), len(seconds)
    interfaces = np.arange(2 * len(candidates[0].up))
    limits = np.zeros((num_links + len(interfaces), 2))
    limits[:num_links, 0] = limits[num_links:, 1] = -1.0
    loads = np.vstack((seconds, seconds[interfaces])) / scale
    usual = np.zeros(len(loads))
    if len(candidates[0].up) > MANY_NODES:
        # Most trees occupy a link equally long. As shares add up to 1, that is a constant, and few numbers are left.
        usual = np.median(loads, axis=1)
    found = linprog(
        c=[*[0.0] * count, 1.0, _INTERFACE_COST],
        A_ub=np.hstack((loads - usual[:, None], limits)),
        b_ub=-usual,
        A_eq=[[*[1.0] * count, 0.0, 0.0]],
        b_eq=[1.0],
        method="highs",
    )
    assert found.status == 0, f"sharing among trees is always possible: {found.message}"
    prices = np.maximum(-found.ineqlin.marginals, 0.0)
    prices[interfaces] += prices[num_links:]
    return _Solution(float(found.fun) * scale, np.maximum(found.x[:count], 0.0), prices[:num_links])


def _as_shares(links: TreeLinks, candidates: Sequence[_Candidate], shares: Floats) -> tuple[TreeShare, ...]:
    """Return trees over ranks, with whole numbers in proportion to the shares as weights."""
    weights = _whole(shares)
    found = [
        TreeShare(
            up=_over_ranks(links.ranks, candidate.up, number),
            down=_over_ranks(links.ranks, candidate.down, number),
            weight=weight,
        )
        for number, (candidate, weight) in enumerate(zip(candidates, weights, strict=True))
        if weight
    ]
    return simplified(found)


def _whole(shares: Floats) -> list[int]:
    """Return whole numbers with a fixed sum, as near to the shares as can be."""
    exact = shares / shares.sum() * _NUM_UNITS
    weights = np.floor(exact).astype(np.int64)
    missing = _NUM_UNITS - int(weights.sum())
    weights[np.argsort(weights - exact, kind="stable")[:missing]] += 1
    return [int(weight) for weight in weights]


def _over_ranks(ranks: Sequence[Ranks], parents: Parents, turn: int) -> Parents:
    """Return a tree over nodes as a tree over ranks. In turn, each rank of a node speaks for it."""
    speakers = [group[turn % len(group)] for group in ranks]
    found: dict[int, int] = {}
    for group, speaker, parent in zip(ranks, speakers, parents, strict=True):
        found.update(dict.fromkeys(group, speaker))
        found[speaker] = ABSENT if parent == ABSENT else speakers[parent]
    return tuple([found[rank] for rank in range(len(found))])
