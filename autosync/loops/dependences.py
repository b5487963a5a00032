"""Dependences between records that must keep their order, as distances along dimensions of the records.

A dimension is a direction of the rows' forms: a field, or a sum of fields. Two records conflict if one of them changes
a row that the other touches. If only records with the same value along a dimension can conflict, the distance of the
dependence along this dimension is 0. Then a schedule may cut along it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations_with_replacement

from autosync.errors import InputError, Problem
from autosync.loops.accesses import Access, BodyFacts
from autosync.loops.affine import Affine, never_equal
from autosync.loops.body_reader import read_body
from autosync.loops.declarations import Records, SerialLoop
from autosync.loops.record_facts import Bounds, bounds_of

Distance = int | None
"""The distance along one dimension; None stands for any."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Dependence:
    """Two accesses that may meet in a row of a table, and the distances of their records along all dimensions."""

    table: str
    first: Access
    second: Access
    distances: tuple[Distance, ...]

    @property
    def vector(self) -> str:
        """The distances as text, such as `(0, *)`; words if there is no dimension."""
        if not self.distances:
            return "any two records"
        return f"({', '.join('*' if one is None else str(one) for one in self.distances)})"


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopAnalysis:
    """The facts about a loop before it runs."""

    loop: SerialLoop
    body: BodyFacts
    bounds: Bounds
    num_records: int
    dimensions: tuple[Affine, ...]
    dependences: tuple[Dependence, ...]

    def accesses_of(self, *updates: str) -> list[Access]:
        """Return the accesses to tables with these kinds of updates."""
        return [access for access in self.body.accesses if self.loop.tables[access.table].updates in updates]

    @property
    def changed(self) -> frozenset[str]:
        """The tables that the loop changes."""
        return frozenset(access.table for access in self.body.accesses if access.changes)

    @property
    def merged(self) -> tuple[str, ...]:
        """The tables with a merged copy on each rank: the commutative and buffered ones that the loop changes."""
        return tuple(
            name for name, table in self.loop.tables.items() if table.updates != "ordered" and name in self.changed
        )

    @property
    def buffered(self) -> tuple[str, ...]:
        """The buffered tables that the loop changes."""
        return tuple(name for name in self.merged if self.loop.tables[name].updates == "buffered")


def analyse(loop: SerialLoop, records: Records) -> LoopAnalysis:
    """Return the dependences of a loop. Raise InputError with each line that cannot be analysed and the reason."""
    body = read_body(loop.function, records.dtype, loop.tables)
    problems = list(_broken_declarations(loop, body))
    if problems:
        raise InputError(problems)
    bounds = bounds_of(loop, body.accesses, records)
    ordered = [access for access in body.accesses if loop.tables[access.table].updates == "ordered"]
    pairs = list(_conflicts(ordered, bounds))
    dimensions = _dimensions(pairs)
    dependences = tuple(
        Dependence(
            table=first.table,
            first=first,
            second=second,
            distances=tuple(distance(first.row, second.row, dimension) for dimension in dimensions),
        )
        for first, second in pairs
    )
    return LoopAnalysis(
        loop=loop,
        body=body,
        bounds=bounds,
        num_records=len(records),
        dimensions=dimensions,
        dependences=dependences,
    )


def _broken_declarations(loop: SerialLoop, body: BodyFacts) -> Iterator[Problem]:
    """Yield the uses of tables that contradict their declarations, and changes of fields that choose rows."""
    for access in body.accesses:
        updates = loop.tables[access.table].updates
        what = rule = ""
        if updates == "commutative" and access.kind != "add":
            what, rule = f"{access.table} is commutative and is {_PAST[access.kind]} here", "only += and -= on its rows"
        elif updates == "buffered" and access.kind == "write":
            what, rule = (
                f"{access.table} is buffered and is written here",
                "its rows are read, and changed by += and -=",
            )
        elif body.written_fields & access.row.fields:
            field = min(body.written_fields & access.row.fields)
            what, rule = f"the field {field} is assigned and chooses a row here", "fields that choose rows stay"
        if what:
            yield Problem(what=what, rule=rule, file=loop.file, line=access.line)
    is_buffered = any(loop.tables[access.table].updates == "buffered" and access.changes for access in body.accesses)
    if is_buffered and loop.order == "given":
        what = "buffered tables in a loop whose order is given"
        yield Problem(what=what, rule="buffering changes the order of updates", file=loop.file, line=loop.line)


_PAST = {"read": "read", "write": "written", "add": "added to"}


def _conflicts(accesses: Sequence[Access], bounds: Bounds) -> Iterator[tuple[Access, Access]]:
    """Yield the pairs of accesses, at least one of them a change, that can meet in a row: one pair for two forms."""
    seen = set()
    # Changes come first, so that the pair yielded for two forms is one with a change.
    for first, second in combinations_with_replacement(sorted(accesses, key=lambda one: not one.changes), 2):
        key = (first.table, frozenset((first.row, second.row)))
        if first.table != second.table or key in seen or not (first.changes or second.changes):
            continue
        if never_equal(first.row, second.row) or _are_apart(bounds[first.row], bounds[second.row]):
            continue
        seen.add(key)
        yield first, second


def _are_apart(first: tuple[int, int], second: tuple[int, int]) -> bool:
    return first[1] < second[0] or second[1] < first[0]


def _dimensions(pairs: Sequence[tuple[Access, Access]]) -> tuple[Affine, ...]:
    """Return the directions of all conflicting forms, in the order of the source."""
    accesses = sorted({access for pair in pairs for access in pair}, key=lambda one: (one.line, str(one.row)))
    forms = [access.row for access in accesses if access.row.terms and not access.row.has_many_values]
    return tuple(dict.fromkeys(form.direction for form in forms))


def distance(first: Affine, second: Affine, dimension: Affine) -> Distance:
    """Return the distance of two records along a dimension if the forms meet in a row; None if it can be any."""
    k = first.multiple_of(dimension)
    if k == 0 or first.has_many_values or second.terms != first.terms:
        return None
    return (first.constant - second.constant) // k
