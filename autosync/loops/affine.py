"""Affine functions of a record's fields: the forms of the row numbers that a loop may use.

`2 * record.user + 1` has the terms `(("user", 2),)` and the constant 1. A fixed element of a vector is a term of its
own, such as `pair[0]`. `words[*]` stands for every element of a vector, so such a form has several values for a record.
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
    """`sum(factor * field) + constant`. The terms are sorted, and no factor is zero."""

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
        """Whether the form has several values for one record."""
        return any(name.endswith(EVERY) for name, _ in self.terms)

    @property
    def fields(self) -> frozenset[str]:
        """The names of the fields in the form."""
        return frozenset(name.partition("[")[0] for name, _ in self.terms)

    def plus(self, other: Affine, *, sign: int = 1) -> Affine | None:
        """Return the sum; None if both have several values, because it is unknown which of them belong together."""
        if self.has_many_values and other.has_many_values:
            return None
        factors = dict(self.terms)
        for name, factor in other.terms:
            factors[name] = factors.get(name, 0) + sign * factor
        return _affine(factors.items(), self.constant + sign * other.constant)

    def times(self, factor: int) -> Affine:
        return _affine(((name, one * factor) for name, one in self.terms), self.constant * factor)

    def multiple_of(self, direction: Affine) -> int:
        """Return the k for which the terms are k times those of `direction`; 0 if there is none."""
        if not self.terms or not direction.terms:
            return 0
        k = self.terms[0][1] // direction.terms[0][1]
        return k if k and direction.times(k).terms == self.terms else 0

    @property
    def direction(self) -> Affine:
        """The terms divided by their common factor, with a positive first factor and without the constant."""
        shared = math.gcd(*(factor for _, factor in self.terms)) if self.terms else 1
        sign = -1 if self.terms and self.terms[0][1] < 0 else 1
        return Affine(tuple((name, sign * factor // shared) for name, factor in self.terms))

    def values(self, records: np.ndarray[Any, Any]) -> Values:
        """Return the value for each record, or a row of values for each if the form has several."""
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
    """Return whether the forms differ for all values of fields, by the test of the greatest common divisor."""
    shared = math.gcd(*(factor for _, factor in (*first.terms, *second.terms)))
    difference = second.constant - first.constant
    return difference % shared != 0 if shared else difference != 0
