"""The sizes of the parts that a variable is cut into."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autosync.strategy.cuts import even_sizes, sizes_by_shares


@pytest.mark.parametrize(
    ("size", "num_parts", "sizes"),
    [(10, 2, (5, 5)), (10, 3, (4, 3, 3)), (10, 4, (3, 3, 2, 2)), (3, 3, (1, 1, 1))],
)
def test_even_sizes(size: int, num_parts: int, sizes: tuple[int, ...]) -> None:
    assert even_sizes(size, num_parts) == sizes


@given(
    st.integers(0, 500), st.lists(st.floats(0.0, 10.0), min_size=1, max_size=8).filter(lambda shares: sum(shares) > 0.1)
)
def test_sizes_by_shares_are_within_one_of_their_share(total: int, shares: list[float]) -> None:
    sizes = sizes_by_shares(total, shares)
    assert sum(sizes) == total
    assert all(abs(size - total * share / sum(shares)) < 1 for size, share in zip(sizes, shares, strict=True))
