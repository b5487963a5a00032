"""Affine functions of a record's fields: the form of every row that a loop may touch.

`2 * record.user + 1` has the terms `(("user", 2),)` and the constant 1. A fixed element of a vector is a term of its
own (`pair[0]`); `words[*]` stands for every element of a vector, so such a form has several values for one record.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

Values = np.ndarray[Any, np.dtype[np.int64]]
Terms = tuple[tuple[str, int], ...]

EVERY = "[*]"


@dataclass(frozen=True, slots=True)
class Affine:
    """`sum(factor * field) + constant`; terms are sorted, without zeros."""

    terms: Terms = ()
    constant: int = 0

    @classmethod
    def field(cls, name: str) -> Affine:
        return cls(((name, 1),))

    def __str__(self) -> str:
        parts = [_product(factor, name) for name, factor in self.terms]
        if self.constant or not parts:
            parts.append(str(self.constant))
        return " + ".join(parts).replace("+ -", "- ")

    @property
    def has_many_values(self) -> bool:
        """Whether one record has several values."""
        return any(name.endswith(EVERY) for name, _ in self.terms)

    @property
    def fields(self) -> frozenset[str]:
        """The names of the record's fields."""
        return frozenset(name.partition("[")[0] for name, _ in self.terms)

    def plus(self, other: Affine, *, sign: int = 1) -> Affine | None:
        """The sum; None where both have several values, which need not belong together."""
        if self.has_many_values and other.has_many_values:
            return None
        factors = dict(self.terms)
        for name, factor in other.terms:
            factors[name] = factors.get(name, 0) + sign * factor
        return _affine(factors.items(), self.constant + sign * other.constant)

    def times(self, factor: int) -> Affine:
        return _affine(((name, one * factor) for name, one in self.terms), self.constant * factor)

    def multiple_of(self, direction: Affine) -> int:
        """The k for which the terms are k times those of `direction`; 0 where there is none."""
        if not self.terms or not direction.terms:
            return 0
        k = self.terms[0][1] // direction.terms[0][1]
        return k if k and direction.times(k).terms == self.terms else 0

    @property
    def direction(self) -> Affine:
        """The terms divided by what they share, the first one positive."""
        shared = math.gcd(*(factor for _, factor in self.terms)) if self.terms else 1
        sign = -1 if self.terms and self.terms[0][1] < 0 else 1
        return Affine(tuple((name, sign * factor // shared) for name, factor in self.terms))

    def values(self, records: np.ndarray[Any, Any]) -> Values:
        """The value for each record; a row of values each where there are several."""
        total: Any = np.full(len(records), self.constant, dtype=np.int64)
        for name, factor in self.terms:
            field, bracket, element = name.partition("[")
            column = records[field].astype(np.int64)
            if bracket and not name.endswith(EVERY):
                column = column[:, int(element[:-1])]
            total = (total[:, None] if column.ndim > total.ndim else total) + factor * _as_wide(column, total)
        found: Values = total
        return found


def _as_wide(column: Any, total: Any) -> Any:
    return column[:, None] if column.ndim < total.ndim else column


def _affine(terms: Iterable[tuple[str, int]], constant: int) -> Affine:
    return Affine(tuple(sorted((name, factor) for name, factor in terms if factor)), constant)


def _product(factor: int, name: str) -> str:
    return {1: name, -1: f"-{name}"}.get(factor, f"{factor} * {name}")


def never_equal(first: Affine, second: Affine) -> bool:
    """Whether no two records can make the forms equal, whatever their fields hold (the greatest common divisor)."""
    shared = math.gcd(*(factor for _, factor in (*first.terms, *second.terms)))
    difference = second.constant - first.constant
    return difference % shared != 0 if shared else difference != 0
