"""Computes the number and the sizes of the parts that a variable is cut into."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence


@functools.lru_cache(maxsize=4096)
def even_sizes(total: int, num_parts: int) -> tuple[int, ...]:
    """Split a number into parts that differ by at most one, larger parts first."""
    size, rest = divmod(total, num_parts)
    return (size + 1,) * rest + (size,) * (num_parts - rest)


def sizes_by_shares(total: int, shares: Sequence[float]) -> tuple[int, ...]:
    """Split a number in proportion to shares, as nearly as whole numbers can; a part may be 0."""
    exact = [total * share / sum(shares) for share in shares]
    sizes = [math.floor(size) for size in exact]
    order = sorted(range(len(sizes)), key=lambda place: sizes[place] - exact[place])
    for place in order[: total - sum(sizes)]:
        sizes[place] += 1
    return tuple(sizes)


def equal_sizes(total: int, size: int) -> tuple[int, ...]:
    """Split a number into parts of one size; the last part is the rest."""
    count, rest = divmod(total, size)
    return (size,) * count + ((rest,) if rest else ())


def smallest_divisor(number: int) -> int:
    """Return the smallest divisor above 1: 2 for 8, 7 for 7; 1 for 1."""
    limit = math.isqrt(number) + 1
    return next((divisor for divisor in range(2, limit) if number % divisor == 0), number)


def smallest_non_divisor(number: int) -> int:
    """Return the smallest number above 1 that does not divide `number` (3 for 8, 2 for 7), or `number` for 1 and 2."""
    return next((divisor for divisor in range(2, number) if number % divisor), number)
