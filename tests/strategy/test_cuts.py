"""The sizes of the parts that a variable is cut into."""

import pytest

from autosync.strategy.cuts import even_sizes


@pytest.mark.parametrize(
    ("size", "num_parts", "sizes"),
    [(10, 2, (5, 5)), (10, 3, (4, 3, 3)), (10, 4, (3, 3, 2, 2)), (3, 3, (1, 1, 1))],
)
def test_even_sizes(size: int, num_parts: int, sizes: tuple[int, ...]) -> None:
    assert even_sizes(size, num_parts) == sizes
