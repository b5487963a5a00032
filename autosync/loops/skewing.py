"""Finds two new dimensions for a loop over a grid, by a unimodular transformation of its two fields.

A record of such a loop touches rows of its neighbours, such as `t[W * i + j]` and `t[W * (i - 1) + j + 1]`. The
distances between conflicting records are then vectors such as (1, -1). In the given order of the records, a later
record is never at a negative distance along two directions u and v. So blocks along u and v can run as a wavefront:
blocks with the same sum of positions do not conflict.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np

from autosync.loops.affine import EVERY, Affine
from autosync.loops.declarations import Records
from autosync.loops.dependences import Dependence, LoopAnalysis

_MAX_FACTOR = 2
_MAX_RANGE = 10**7

Vectors = np.ndarray[Any, np.dtype[np.int64]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Skewing:
    """Two directions along which no dependence has a negative distance. Their factors have the determinant 1 or -1."""

    first: Affine
    second: Affine


def find_skewings(analysis: LoopAnalysis, records: Records) -> list[Skewing]:
    """Return the transformations that a loop's dependences allow, those with small factors first; none if it has none.

    The records must be in the lexicographic order of two whole-number fields, which choose all conflicting rows.
    """
    if analysis.loop.order != "given" or not len(records):
        return []
    names = sorted({name for one in analysis.dependences for name, _ in (*one.first.row.terms, *one.second.row.terms)})
    if len(names) != 2 or any(name.endswith(EVERY) for name in names):
        return []
    for outer, inner in (names, names[::-1]):
        fields = [Affine.field(outer), Affine.field(inner)]
        columns = [field.values(records) for field in fields]
        if _is_lexicographic(*columns):
            spans = [int(column.max() - column.min()) for column in columns]
            vectors = _vectors(analysis, [outer, inner], spans)
            return [] if vectors is None else list(_transformations(vectors, fields))
    return []


def _is_lexicographic(outer: Vectors, inner: Vectors) -> bool:
    steps, inner_steps = np.diff(outer), np.diff(inner)
    return bool(np.all((steps > 0) | ((steps == 0) & (inner_steps >= 0))))


def _vectors(analysis: LoopAnalysis, names: list[str], spans: list[int]) -> Vectors | None:
    """Return all distances from a record to a later one that conflicts with it; None if there are too many forms."""
    found = []
    for dependence in analysis.dependences:
        vectors = _vectors_of(dependence, names, spans)
        if vectors is None:
            return None
        found.append(vectors)
    distinct: Vectors = np.unique(np.concatenate(found), axis=0)
    forward: Vectors = distinct[(distinct != 0).any(axis=1)]
    return forward


def _vectors_of(dependence: Dependence, names: list[str], spans: list[int]) -> Vectors | None:
    """Return the solutions of `a * x + b * y = c` within the records' ranges, each turned so that it leads forward."""
    first, second = dependence.first.row, dependence.second.row
    if first.terms != second.terms or max(spans) > _MAX_RANGE:
        return None
    factors = dict(first.terms)
    a, b = (factors.get(name, 0) for name in names)
    difference = first.constant - second.constant
    xs = np.arange(-spans[0], spans[0] + 1)
    if b == 0:
        # The inner distance is free: its least and its greatest value stand for all, and 1 for records beside it.
        xs = xs[a * xs == difference]
        pairs = [(x, y) for x in xs for y in {-spans[1], -1, 0, 1, spans[1]} if abs(y) <= spans[1]]
        vectors = np.array(pairs, dtype=np.int64).reshape(-1, 2)
    else:
        rest = difference - a * xs
        fits = (rest % b == 0) & (np.abs(rest // b) <= spans[1])
        vectors = np.stack([xs[fits], rest[fits] // b], axis=1).astype(np.int64)
    is_backward = (vectors[:, 0] < 0) | ((vectors[:, 0] == 0) & (vectors[:, 1] < 0))
    vectors[is_backward] *= -1
    return vectors


def _transformations(vectors: Vectors, fields: list[Affine]) -> Iterator[Skewing]:
    factors = range(-_MAX_FACTOR, _MAX_FACTOR + 1)
    rows = [row for row in product(factors, factors) if any(row) and bool(np.all(vectors @ np.array(row) >= 0))]
    pairs = [(u, v) for u, v in product(rows, rows) if abs(u[0] * v[1] - u[1] * v[0]) == 1]
    for u, v in sorted(pairs, key=lambda pair: (sum(map(abs, (*pair[0], *pair[1]))), pair)):
        yield Skewing(first=_direction(u, fields), second=_direction(v, fields))


def _direction(factors: tuple[int, ...], fields: list[Affine]) -> Affine:
    total = Affine()
    for factor, field in zip(factors, fields, strict=True):
        total = total.plus(field.times(factor)) or Affine()
    return total
