"""The estimate of trees' waves agrees with the moves that a shape expands to, and knows which trees are slow."""

from __future__ import annotations

import itertools
import random
from collections import defaultdict

import numpy as np
import pytest

from autosync.plan.expansion import expand
from autosync.runtime.wire.transfer_pieces import SHORT_PIECE_BYTES
from autosync.strategy.shapes import waves
from autosync.strategy.shapes.links import TreeLinks, tree_links
from autosync.strategy.shapes.trees import Parents, TreeShape
from autosync.strategy.shapes.waves import PIECE_BYTES, SENDER_COST, WAVE_SECONDS, wave_seconds
from tests.helpers.rack_clusters import GIGABIT, cluster, node, racks_of
from tests.helpers.random_trees import random_shape

EQUAL = cluster([node(name, None) for name in "abcd"])
ONE_SLOW = cluster([*[node(name, None) for name in "abcd"], node("e", None, 0.4)])


def _by_moves(links: TreeLinks, shape: TreeShape, num_pieces: int) -> float:
    """Seconds for one byte, wave by wave."""
    busy: dict[int, dict[int, float]] = defaultdict(lambda: defaultdict(float))
    for move in expand("all_reduce", shape, shape.num_ranks):
        _, passed = links.crossings(np.array([move.source]), np.array([move.destination]))
        for piece in range(num_pieces):
            for link in passed:
                part = (move.last - move.first) / shape.num_units / num_pieces
                busy[move.round + piece][link] += part / links.rates[link]
    return sum(max(links_of.values()) for links_of in busy.values())


@pytest.mark.parametrize("seed", range(20))
def test_waves_are_those_of_the_moves(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waves, "SENDER_COST", 0.0)
    monkeypatch.setattr(waves, "WAVE_SECONDS", 0.0)
    rng = random.Random(seed)
    sizes = [rng.randint(1, 3) for _ in range(rng.randint(2, 3))]
    links = tree_links(racks_of(*sizes))
    size = sum(sizes)
    shape = random_shape(rng, size)
    trees, weights = [(share.up, share.distribution) for share in shape.shares], [one.weight for one in shape.shares]
    num_pieces = rng.randint(1, 9)
    num_bytes = 0.999 * num_pieces * PIECE_BYTES * sum(weights) / max(weights)
    found = wave_seconds(links, trees, np.array(weights) / sum(weights), num_bytes=num_bytes)
    assert found == pytest.approx(num_bytes * _by_moves(links, shape, num_pieces))


def test_pieces_are_as_long_as_they_travel() -> None:
    assert PIECE_BYTES == SHORT_PIECE_BYTES


def test_a_slow_host_at_the_end_of_a_chain_idles_while_others_work() -> None:
    """Both fill its link equally. Measured, such chains took 1.4 times as long as the stars."""
    links = tree_links(ONE_SLOW)
    flat = wave_seconds(links, [((0,) * 5, (0,) * 5), ((1,) * 5, (1,) * 5)], np.ones(2) / 2, num_bytes=16e6)
    deep = wave_seconds(links, [_chain_from_the_last(root) for root in range(4)], np.ones(4) / 4, num_bytes=16e6)
    assert deep > 1.3 * flat


def test_each_wave_costs_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """So one chain, which has the most waves, is not taken for two stars with the same load."""
    links, chain = tree_links(ONE_SLOW), (1, 2, 3, 4, 4)
    found = wave_seconds(links, [(chain, chain)], np.ones(1), num_bytes=61 * PIECE_BYTES)
    monkeypatch.setattr(waves, "WAVE_SECONDS", 0.0)
    free = wave_seconds(links, [(chain, chain)], np.ones(1), num_bytes=61 * PIECE_BYTES)
    # The last piece sets out after 60 others, and passes eight edges.
    assert found == pytest.approx(free + 68 * WAVE_SECONDS)


def _chain_from_the_last(root: int) -> tuple[Parents, Parents]:
    """Of five ranks: from the last one through the others to this root, and back."""
    order = [4, *[(root + step) % 4 for step in (1, 2, 3)], root]
    parents = [root] * 5
    for one, parent in itertools.pairwise(order):
        parents[one] = parent
    return tuple(parents), tuple(parents)


def test_many_senders_at_once_cost_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waves, "WAVE_SECONDS", 0.0)
    links, even = tree_links(EQUAL), np.ones(4) / 4
    forwards = [tuple([root if one == root else (one + 1) % 4 for one in range(4)]) for root in range(4)]
    backwards = [tuple([root if one == root else (one - 1) % 4 for one in range(4)]) for root in range(4)]
    stars = [(root,) * 4 for root in range(4)]
    seconds = 1.5 * 48e6 / GIGABIT
    for down in (forwards, backwards):
        assert wave_seconds(links, list(zip(forwards, down, strict=True)), even, num_bytes=48e6) == pytest.approx(
            seconds
        )
    found = wave_seconds(links, list(zip(stars, stars, strict=True)), even, num_bytes=48e6)
    assert found == pytest.approx(seconds * (1 + SENDER_COST))
