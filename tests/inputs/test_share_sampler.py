"""Batches by shares: every epoch sees each example once, and every rank has a batch in each step."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autosync.errors import InputError, OperationError
from autosync.inputs.share_sampler import ShareSampler

shares = st.lists(st.integers(1, 9), min_size=1, max_size=5).map(tuple)


@given(shares=shares, num_examples=st.integers(5, 200), seed=st.integers(0, 3), epoch=st.integers(0, 2))
def test_an_epoch_sees_each_example_once(shares: tuple[int, ...], num_examples: int, seed: int, epoch: int) -> None:
    samplers = [ShareSampler(num_examples, shares, rank=rank, seed=seed) for rank in range(len(shares))]
    for one in samplers:
        one.set_epoch(epoch)
    batches = [list(one) for one in samplers]
    assert {len(one) for one in batches} == {len(samplers[0])}
    assert all(batch for one in batches for batch in one)
    seen = [number for one in batches for batch in one for number in batch]
    assert sorted(seen) == list(range(num_examples))
    for step in range(num_examples // sum(shares) - 1):
        assert tuple(len(one[step]) for one in batches) == shares


def test_epochs_differ_and_ranks_agree_on_them() -> None:
    first, again = ShareSampler(30, (3, 2), rank=0), ShareSampler(30, (3, 2), rank=0)
    before = list(first)
    first.set_epoch(1)
    assert list(first) != before
    again.set_epoch(1)
    assert list(first) == list(again)
    assert list(ShareSampler(10, (3, 2), rank=1, shuffle=False)) == [[3, 4], [8, 9]]


def test_batches_of_several_sizes_are_not_promised() -> None:
    assert ShareSampler(30, (3, 2), rank=0).batch_size == 3
    assert ShareSampler(32, (3, 2), rank=1, drop_last=True).batch_size == 2
    with pytest.raises(OperationError, match="the last step of an epoch has 2 examples and the others 5"):
        _ = ShareSampler(32, (3, 2), rank=0).batch_size
    with pytest.raises(OperationError, match="has 6 examples"):
        _ = ShareSampler(31, (3, 2), rank=0).batch_size


def test_too_few_examples_are_refused() -> None:
    with pytest.raises(InputError, match="one for each of 2 ranks"):
        ShareSampler(1, (3, 2), rank=0)
    with pytest.raises(InputError, match="a step of 5"):
        ShareSampler(4, (3, 2), rank=0, drop_last=True)
