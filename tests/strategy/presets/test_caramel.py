"""Caramel: what is small, which collective is fastest, and what goes first, worked out by hand."""

from collections.abc import Callable
from typing import Any

import pytest

from autosync.specs.cluster import ClusterSpec
from autosync.specs.model import ModelSpec
from autosync.strategy.presets import build_preset
from autosync.strategy.presets.caramel import RoundCosts
from autosync.strategy.representation import Message
from autosync.strategy.synchronisers.all_reduce import AllReduce
from autosync.strategy.synchronisers.sparse_gather import SparseGather

Models = Callable[..., ModelSpec]
Clusters = Callable[..., ClusterSpec]
Variables = Callable[..., dict[str, Any]]


def _costs(num_ranks: int) -> RoundCosts:
    """Rounds of a second, links of a byte a second."""
    return RoundCosts(num_ranks=num_ranks, rate=1.0, round_seconds=1.0)


@pytest.mark.parametrize(
    ("num_ranks", "halving", "ring"),
    [
        (2, 2 + 1.0 * 120, 2 + 1.0 * 120),
        (3, 4 + 3.0 * 120, 4 + 4 / 3 * 120),
        (4, 4 + 1.5 * 120, 6 + 1.5 * 120),
        (6, 6 + 3.5 * 120, 10 + 5 / 3 * 120),
        (8, 6 + 1.75 * 120, 14 + 1.75 * 120),
    ],
)
def test_rounds_and_bytes(num_ranks: int, halving: float, ring: float) -> None:
    costs = _costs(num_ranks)
    assert costs.seconds("halving_doubling", 120) == pytest.approx(halving)
    assert costs.seconds("ring", 120) == pytest.approx(ring)


def test_the_fastest_collective() -> None:
    assert _costs(8).fastest(1) == _costs(8).fastest(10**9) == "halving_doubling", "among a power of two always"
    # Among six a ring has four rounds more and 11/6 of the bytes fewer: even at 24/11 bytes.
    assert _costs(6).fastest(2) == "halving_doubling"
    assert _costs(6).fastest(3) == "ring"


def test_what_is_small() -> None:
    # Four rounds among four, six among eight; 1.5 and 1.75 times the bytes.
    assert _costs(4).smallest_large_bytes() == 3
    assert _costs(8).smallest_large_bytes() == 4
    assert _costs(1).smallest_large_bytes() == 1
    assert RoundCosts(num_ranks=8, rate=125e6, round_seconds=500e-6).smallest_large_bytes() == 214_286


def test_batches_collectives_and_order(model: Models, variable: Variables, cluster: Clusters) -> None:
    # Among six: six rounds of 1 us at 125 bytes a us are 750 bytes, and 5/3 of what travels passes: 450 are large.
    spec = model(
        variable("a", 10),  # 40 B
        variable("b", 1000),  # 4,000 B
        variable("table", 9, 2, kind="embedding", touched_rows=2.0, max_touched_rows=3),  # 72 B
        variable("c", 60),  # 240 B
        variable("d", 60),  # 240 B
        variable("e", 10),  # 40 B
    )
    strategy = build_preset("caramel", spec, cluster([1] * 6), round_time="1 us", num_lanes=2)
    assert strategy.overlap == "forward"
    # Ready from the last: e, d and c make 520 bytes, and close; b is large; a is what is left, better off with fewer
    # rounds (up to 273 bytes). Bands: of 4,632 bytes the middle of b is in the first half, all after it in the second.
    ring = AllReduce(topology="ring")
    assert strategy.messages == (
        Message(parts=("e", "d", "c"), synchroniser=ring, priority=3, lane=1),
        Message(parts=("table",), synchroniser=SparseGather(), priority=2, lane=1),
        Message(parts=("b",), synchroniser=ring, priority=1, lane=0),
        Message(parts=("a",), synchroniser=AllReduce(topology="halving_doubling"), priority=0, lane=0),
    )


def test_a_batch_has_the_priority_of_its_first_use(model: Models, variable: Variables, cluster: Clusters) -> None:
    spec = model(variable("a", 10), variable("b", 10), variable("c", 10))
    (message,) = build_preset("caramel", spec, cluster([1, 1, 1])).messages
    assert (message.parts, message.priority, message.lane) == (("c", "b", "a"), 0, 0)


def test_where_nothing_overtakes_there_are_batches_alone(model: Models, variable: Variables, cluster: Clusters) -> None:
    spec = model(variable("a", 10), variable("b", 10**6), variable("c", 10))
    strategy = build_preset("caramel", spec, cluster([1, 1, 1], backend="nccl"))
    assert strategy.overlap == "forward"
    assert strategy.messages == (Message(parts=("c", "b")), Message(parts=("a",)))


def test_links_that_are_slower_have_smaller_batches(model: Models, variable: Variables, cluster: Clusters) -> None:
    spec = model(*(variable(f"w{index}", 4000) for index in range(16)))
    # 4 rounds of 500 us are 250 kB at 1 Gbit/s, of which 1.5 times the bytes pass: 167 kB, 11 variables of 16 kB.
    fast = build_preset("caramel", spec, cluster([1] * 4))
    assert [len(message.parts) for message in fast.messages] == [11, 5]
    slow = build_preset("caramel", spec, cluster([1] * 4, gigabits=[1, 1, 1, 0.25]))
    assert [len(message.parts) for message in slow.messages] == [3, 3, 3, 3, 3, 1]
