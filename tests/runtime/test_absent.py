"""A sum of which no rank has anything is told from a sum of zeros."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from autosync.runtime.memory.unused_variables import NOTHING, absent_among, is_absent

FLOATS = (torch.float64, torch.float32, torch.bfloat16, torch.float16)


@pytest.mark.parametrize("dtype", FLOATS)
@given(used=st.lists(st.booleans(), min_size=1, max_size=5), value=st.sampled_from((0.0, -0.0, 1.5, -2.0)))
def test_a_sum_says_whether_a_rank_has_used_it(dtype: torch.dtype, used: list[bool], value: float) -> None:
    total = torch.full((3,), NOTHING, dtype=dtype)
    for one in used:
        # A rank that has used it adds +0.0 to the first element: see `Firsts.mark`.
        mine = torch.full((3,), value if one else NOTHING, dtype=dtype)
        if one:
            mine[:1] += 0.0
        total += mine
    total.div_(len(used))
    assert is_absent(total) == (not any(used))
    if not any(value for value in used):
        assert total.eq(0).all()


def test_pieces_are_told_apart() -> None:
    flat = torch.tensor([-0.0, -0.0, 0.0, -0.0, -0.0, 3.0])
    assert absent_among(flat, [slice(0, 2), slice(2, 4), slice(4, 6)]) == [True, False, False]


def test_a_tiny_number_that_was_rounded_to_nothing_is_no_absence() -> None:
    tiny = torch.tensor([-5e-324, 1.0], dtype=torch.float64).div_(2)
    assert tiny[0] == 0
    assert torch.signbit(tiny[0])
    assert not is_absent(tiny)
