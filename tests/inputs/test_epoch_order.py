"""Each example once in each epoch, for any settings, ranks and places to continue."""

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from autosync.errors import InputError
from autosync.inputs.epoch_order import EpochOrder, Shuffle

SHUFFLES: tuple[Shuffle, ...] = ("none", "shards", "examples")


def _orders(
    sizes: list[int], batch: int, world: int, shuffle: Shuffle, shares: tuple[float, ...] = (), *, drop: bool = False
) -> list[EpochOrder]:
    return [
        EpochOrder(
            shard_sizes=tuple(sizes),
            batch_size=batch,
            shuffle=shuffle,
            seed=3,
            rank=rank,
            world_size=world,
            shares=shares,
            drop_last=drop,
        )
        for rank in range(world)
    ]


def _seen(orders: list[EpochOrder], epoch: int, num_seen: int = 0) -> list[int]:
    return [number for order in orders for batch in order.batches(epoch, num_seen) for number in batch]


_SIZES = st.lists(st.integers(0, 40), min_size=1, max_size=6).filter(lambda sizes: sum(sizes) > 0)


@given(_SIZES, st.integers(1, 9), st.integers(1, 5), st.sampled_from(SHUFFLES), st.integers(0, 5))
def test_each_example_comes_once(sizes: list[int], batch: int, world: int, shuffle: Shuffle, epoch: int) -> None:
    orders = _orders(sizes, batch, world, shuffle)
    assert sorted(_seen(orders, epoch)) == list(range(sum(sizes)))
    for order in orders:
        batches = list(order.batches(epoch))
        assert len(batches) == order.num_steps()
        assert all(1 <= len(one) <= batch for one in batches)


_WORLDS = st.tuples(st.integers(1, 4), st.integers(1, 4))


@given(_SIZES, st.integers(1, 9), _WORLDS, st.integers(0, 10), st.sampled_from(SHUFFLES))
def test_an_epoch_continues_with_the_examples_not_yet_seen(
    sizes: list[int], batch: int, worlds: tuple[int, int], num_steps: int, shuffle: Shuffle
) -> None:
    before, after = worlds
    first = _orders(sizes, batch, before, shuffle)
    num_seen = min(num_steps * first[0].step_size, sum(sizes))
    seen = [n for order in first for one in list(order.batches(1))[:num_steps] for n in one]
    then = _seen(_orders(sizes, batch, after, shuffle), 1, num_seen)
    assert sorted(seen + then) == list(range(sum(sizes)))


@given(_SIZES, st.integers(4, 16), st.lists(st.floats(0.5, 2), min_size=2, max_size=4))
def test_shares_divide_each_step(sizes: list[int], batch: int, shares: list[float]) -> None:
    orders = _orders(sizes, batch, len(shares), "examples", tuple(shares))
    assert sorted(_seen(orders, 0)) == list(range(sum(sizes)))
    assume(sum(sizes) >= orders[0].step_size)
    for order, share in zip(orders, shares, strict=True):
        fair = share / sum(shares) * order.step_size
        assert abs(len(next(order.batches(0))) - fair) <= 1


def test_orders_differ_by_epoch_and_seed_and_repeat() -> None:
    (order,) = _orders([50, 50], 10, 1, "examples")
    assert list(order.batches(0)) == list(order.batches(0))
    assert list(order.batches(0)) != list(order.batches(1))
    other = EpochOrder(shard_sizes=(50, 50), batch_size=10, seed=4)
    assert list(order.batches(0)) != list(other.batches(0))


def test_shuffled_shards_keep_the_order_within() -> None:
    (order,) = _orders([5, 5, 5, 5], 20, 1, "shards")
    found = np.array(_seen([order], 2)).reshape(4, 5)
    assert (np.diff(found, axis=1) == 1).all()
    assert sorted(found[:, 0]) == [0, 5, 10, 15]


def test_the_last_small_step_can_be_dropped() -> None:
    orders = _orders([11], 2, 2, "none", drop=True)
    assert [list(order.batches(0)) for order in orders] == [[[0, 1], [4, 5]], [[2, 3], [6, 7]]]
    assert [order.num_steps() for order in orders] == [2, 2]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"batch_size": 0}, "batch_size: is 0"),
        ({"rank": 2, "world_size": 2}, "rank: is 2"),
        ({"shard_sizes": (0,)}, "the dataset is empty"),
        ({"shares": (1.0,), "world_size": 2}, "shares: are"),
        ({"shares": (1.0, 1e-9), "world_size": 2}, "rank 1 would get no example"),
        ({"shuffle": "cards"}, "shuffle: is 'cards'"),
    ],
)
def test_wrong_orders_are_refused(changes: dict[str, object], words: str) -> None:
    fields: dict[str, object] = {"shard_sizes": (10,), "batch_size": 4, **changes}
    with pytest.raises(InputError, match=words):
        EpochOrder(**fields)  # type: ignore[arg-type]
