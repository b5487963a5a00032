"""How many parts a variable is cut into, and how long they are."""

from __future__ import annotations

import math


def even_sizes(total: int, num_parts: int) -> tuple[int, ...]:
    """A number in parts that differ by one at most, larger ones first."""
    size, rest = divmod(total, num_parts)
    return (size + 1,) * rest + (size,) * (num_parts - rest)


def equal_sizes(total: int, size: int) -> tuple[int, ...]:
    """A number in parts of one size, the last with what is left."""
    count, rest = divmod(total, size)
    return (size,) * count + ((rest,) if rest else ())


def smallest_divisor(number: int) -> int:
    """The smallest divisor above 1: 2 of 8, 7 of 7; 1 of 1."""
    limit = math.isqrt(number) + 1
    return next((divisor for divisor in range(2, limit) if number % divisor == 0), number)


def smallest_non_divisor(number: int) -> int:
    """The smallest number above 1 that does not divide it: 3 of 8, 2 of 7; itself where none is smaller, as of 2."""
    return next((divisor for divisor in range(2, number) if number % divisor), number)
