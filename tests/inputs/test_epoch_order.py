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
    assume(sum(sizes) >= world)
    orders = _orders(sizes, batch, world, shuffle)
    assert sorted(_seen(orders, epoch)) == list(range(sum(sizes)))
    for order in orders:
        batches = list(order.batches(epoch))
        assert len(batches) == orders[0].num_steps()
        assert all(1 <= len(one) <= batch for one in batches[:-1])
        assert 1 <= len(batches[-1]) <= batch + 1


_WORLDS = st.tuples(st.integers(1, 4), st.integers(1, 4))


@given(_SIZES, st.integers(1, 9), _WORLDS, st.integers(0, 10), st.sampled_from(SHUFFLES))
def test_an_epoch_continues_with_the_examples_not_yet_seen(
    sizes: list[int], batch: int, worlds: tuple[int, int], num_steps: int, shuffle: Shuffle
) -> None:
    before, after = worlds
    assume(sum(sizes) >= max(worlds))
    first = _orders(sizes, batch, before, shuffle)
    num_seen = sum(first[0].step_sizes()[:num_steps])
    assume(not 0 < sum(sizes) - num_seen < after)
    seen = [n for order in first for one in list(order.batches(1))[:num_steps] for n in one]
    then = _seen(_orders(sizes, batch, after, shuffle), 1, num_seen)
    assert sorted(seen + then) == list(range(sum(sizes)))


@given(_SIZES, st.integers(4, 16), st.lists(st.floats(0.5, 2), min_size=2, max_size=4))
def test_shares_divide_each_step(sizes: list[int], batch: int, shares: list[float]) -> None:
    assume(sum(sizes) >= len(shares))
    orders = _orders(sizes, batch, len(shares), "examples", tuple(shares))
    assert len({order.num_steps() for order in orders}) == 1
    assert min(len(one) for order in orders for one in order.batches(0)) >= 1
    assert sorted(_seen(orders, 0)) == list(range(sum(sizes)))
    assume(orders[0].step_sizes()[0] == orders[0].step_size)
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


def test_the_last_examples_come_with_the_step_before_if_they_are_too_few_for_all_ranks() -> None:
    orders = _orders([9], 2, 4, "none")
    assert [list(order.batches(0)) for order in orders] == [[[0, 1]], [[2, 3]], [[4, 5, 6]], [[7, 8]]]


def test_too_few_examples_to_go_on_with_so_many_ranks_are_refused() -> None:
    (order, *_) = _orders([10], 1, 4, "none")
    with pytest.raises(InputError, match="2 examples of the epoch are left for 4 ranks"):
        next(order.batches(0, num_seen=8))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"batch_size": 0}, "batch_size: is 0"),
        ({"rank": 2, "world_size": 2}, "rank: is 2"),
        ({"shard_sizes": (0,)}, "the dataset is empty"),
        ({"shares": (1.0,), "world_size": 2}, "shares: are"),
        ({"shares": (1.0, 1e-9), "world_size": 2}, "rank 1 would get no example"),
        ({"shard_sizes": (3,), "world_size": 4}, "an epoch has enough for one for each of 4 ranks"),
        ({"drop_last": True, "batch_size": 20}, "an epoch has enough for a step of 20"),
        ({"shuffle": "cards"}, "shuffle: is 'cards'"),
    ],
)
def test_wrong_orders_are_refused(changes: dict[str, object], words: str) -> None:
    fields: dict[str, object] = {"shard_sizes": (10,), "batch_size": 4, **changes}
    with pytest.raises(InputError, match=words):
        EpochOrder(**fields)  # type: ignore[arg-type]
