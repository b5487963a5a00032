"""The mark by which ranks notice that they were given different batches."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from autosync.runtime.same_batch import batch_mark

BATCHES = {
    "numbers": lambda: torch.arange(12.0).reshape(4, 3),
    "words": lambda: {"ids": torch.arange(20).reshape(4, 5), "mask": torch.ones(4, 5, dtype=torch.bool)},
    "pair": lambda: (torch.arange(8, dtype=torch.bfloat16).reshape(4, 2), torch.arange(4)),
    "large": lambda: torch.arange(100_000).reshape(100, 1000),
    "strided": lambda: torch.arange(12.0).reshape(3, 4).T,
}


@pytest.mark.parametrize("name", sorted(BATCHES))
def test_equal_batches_have_equal_marks(name: str) -> None:
    assert batch_mark(BATCHES[name]()) == batch_mark(BATCHES[name]())


@given(st.permutations(range(6)))
def test_another_order_of_examples_has_another_mark(order: list[int]) -> None:
    batch = torch.arange(18.0).reshape(6, 3)
    assert (batch_mark(batch[order]) == batch_mark(batch)) == (order == list(range(6)))


def test_all_of_a_batch_counts() -> None:
    marks = {batch_mark(make()) for make in BATCHES.values()}
    pair = torch.zeros(4, 2), torch.zeros(4)
    marks |= {batch_mark(pair), batch_mark(pair[:1]), batch_mark(pair[1:]), batch_mark(torch.zeros(2, 4))}
    assert len(marks) == len(BATCHES) + 4
