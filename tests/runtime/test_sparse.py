"""Rows of gradients against dense arithmetic."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from autosync.errors import OperationError
from autosync.runtime.local.sparse_rows import (
    Rows,
    cut_rows,
    join_rows,
    merge_rows,
    pack_rows,
    refuse_rows,
    rows_of,
    sparse_tensor,
    unpack_rows,
)
from autosync.specs.model import Variable
from autosync.strategy.parts import Part, Partition, parts_of

NUM_ROWS, WIDTH = 9, 5
DTYPES = {"float32": torch.float32, "float64": torch.float64, "bfloat16": torch.bfloat16}


def variable(dtype: str = "float64") -> Variable:
    return Variable(
        name="words",
        shape=(NUM_ROWS, WIDTH),
        dtype=dtype,
        kind="embedding",
        use=0,
        ready=0,
        touched_rows=2.0,
        max_touched_rows=NUM_ROWS,
        sparse=True,
    )


@st.composite
def gradients(draw: st.DrawFn, dtype: str = "float64") -> torch.Tensor:
    """Sparse gradients as backward makes them: rows in any order, some twice, perhaps none."""
    indices = draw(st.lists(st.integers(0, NUM_ROWS - 1), max_size=12))
    numbers = st.integers(-8, 8).map(float)
    values = draw(st.lists(st.lists(numbers, min_size=WIDTH, max_size=WIDTH), min_size=12, max_size=12))
    return torch.sparse_coo_tensor(
        torch.tensor([indices], dtype=torch.int64),
        torch.tensor(values, dtype=DTYPES[dtype])[: len(indices)],
        (NUM_ROWS, WIDTH),
        check_invariants=True,
    )


@st.composite
def partitions(draw: st.DrawFn) -> tuple[Part, ...]:
    axis = draw(st.sampled_from([None, 0, 1]))
    if axis is None:
        return parts_of(variable(), None)
    size = (NUM_ROWS, WIDTH)[axis]
    cuts = sorted(draw(st.sets(st.integers(1, size - 1), min_size=1, max_size=3)))
    sizes = tuple(int(one) for one in np.diff([0, *cuts, size]))
    return parts_of(variable(), Partition(axis=axis, sizes=sizes))


def dense_part(part: Part, gradient: torch.Tensor) -> torch.Tensor:
    return gradient if part.name.whole else gradient.narrow(part.axis, part.begin, part.end - part.begin)


def dense(rows: Rows, part: Part) -> torch.Tensor:
    out = torch.zeros(part.shape, dtype=rows.values.dtype)
    out[rows.indices] = rows.values
    return out


@given(st.lists(gradients(), min_size=1, max_size=4), partitions())
def test_cut_sent_merged_and_joined_is_the_dense_average(each: list[torch.Tensor], parts: tuple[Part, ...]) -> None:
    expected = sum(gradient.to_dense() for gradient in each) / len(each)
    merged = []
    for part in parts:
        sent = [unpack_rows(pack_rows(cut_rows(rows_of(one), part)), part, torch.float64) for one in each]
        rows = merge_rows(sent, len(each))
        assert torch.equal(rows.indices, torch.unique(torch.cat([one.indices for one in sent])))
        torch.testing.assert_close(dense(rows, part), dense_part(part, expected))
        merged.append((part, rows))
    back = sparse_tensor(join_rows(merged), (NUM_ROWS, WIDTH))
    assert back.is_coalesced()
    torch.testing.assert_close(back.to_dense(), expected)
    assert torch.equal(back.indices(), torch.unique(torch.cat([one.coalesce().indices()[0] for one in each]))[None])


def test_rows_of_float16_are_averaged_where_their_sum_would_overflow() -> None:
    large = Rows(torch.tensor([1, 4]), torch.full((2, WIDTH), 60_000.0).half())
    found = merge_rows([large, large, Rows(large.indices[:1], large.values[:1])], 3)
    assert found.values.dtype == torch.float16
    assert found.values[:, 0].tolist() == [60_000, 40_000]


@given(st.sampled_from(sorted(DTYPES)).flatmap(lambda dtype: st.tuples(st.just(dtype), gradients(dtype=dtype))))
def test_packed_rows_come_back_bit_by_bit(case: tuple[str, torch.Tensor]) -> None:
    dtype, gradient = case
    (part,) = parts_of(variable(dtype), None)
    rows = rows_of(gradient)
    packed = pack_rows(rows)
    assert packed.dtype == torch.uint8
    assert len(packed) == len(rows.indices) * part.row_bytes
    # Where the buffer lies in another, at whatever place.
    for offset in (0, 3):
        inside = torch.cat([packed.new_zeros(offset), packed])[offset:]
        back = unpack_rows(inside, part, DTYPES[dtype])
        assert torch.equal(back.indices, rows.indices)
        assert torch.equal(back.values, rows.values)


def test_bytes_that_are_no_whole_rows_are_refused() -> None:
    (part,) = parts_of(variable(), None)
    with pytest.raises(OperationError, match="47 bytes of rows of words"):
        unpack_rows(torch.zeros(47, dtype=torch.uint8), part, torch.float64)


@given(gradients())
def test_rows_of_a_dense_gradient_are_those_that_are_not_zero(gradient: torch.Tensor) -> None:
    full = gradient.to_dense()
    rows = rows_of(full)
    assert torch.equal(rows.indices, (full != 0).any(1).nonzero().view(-1))
    assert torch.equal(rows.values, full[rows.indices])


def test_rows_are_found_in_every_block_and_whatever_their_numbers() -> None:
    full = torch.zeros(10_000, 64)
    expected = {0: 1e-45, 4095: -1.0, 4096: float("nan"), 9999: float("inf")}
    for row, value in expected.items():
        full[row, 63] = value
    full[17, 3] = -0.0
    assert rows_of(full).indices.tolist() == list(expected)


def test_rows_that_differ_between_columns_are_refused() -> None:
    first, second = parts_of(variable(), Partition(axis=1, sizes=(2, 3)))
    one = Rows(torch.tensor([1]), torch.ones(1, 2))
    other = Rows(torch.tensor([2]), torch.ones(1, 3))
    with pytest.raises(OperationError, match="different touched rows"):
        join_rows([(first, one), (second, other)])


@pytest.mark.parametrize(
    ("name", "options", "refused"),
    [
        ("SparseAdam", {}, False),
        ("SGD", {"momentum": 0, "weight_decay": 0}, False),
        ("SGD", {"momentum": 0.9, "weight_decay": 0}, True),
        ("SGD", {"momentum": 0, "weight_decay": 0.1}, True),
        ("Adagrad", {"weight_decay": 0, "lr_decay": 0.1}, False),
        ("Adagrad", {"weight_decay": 0.1}, True),
        ("Adam", {}, True),
        ("Mine", {}, True),
    ],
)
def test_optimizers_that_move_untouched_rows_are_refused(name: str, options: dict[str, float], refused: bool) -> None:
    if refused:
        with pytest.raises(OperationError, match=f"{name} with .* moves rows that no batch touched"):
            refuse_rows(name, options)
    else:
        refuse_rows(name, options)
