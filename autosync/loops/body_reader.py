"""Reads the statements of a loop's function and finds its accesses to tables, or each line that cannot be analysed.

The order of statements is ignored: a name may have the value of any of its assignments. So the statements are read
again until nothing new is found, and an in-place operation counts for every row that its name may refer to.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from types import FunctionType
from typing import Any

import numpy as np

from autosync.errors import InputError, first_problems
from autosync.loops.accesses import NUMERIC, PLAIN, AccessKind, BodyFacts, BodyValue, number_of
from autosync.loops.affine import EVERY, Affine
from autosync.loops.body_values import ValueReader
from autosync.loops.declarations import Table
from autosync.loops.source import function_tree

_REFUSED = {
    ast.Global: ("global state is changed", "what a loop changes is in its tables"),
    ast.Nonlocal: ("state of an outer function is changed", "what a loop changes is in its tables"),
    ast.Import: ("an import runs code", "import at the top of the file"),
    ast.ImportFrom: ("an import runs code", "import at the top of the file"),
    ast.With: ("a context manager runs code", "assignments, if, for and while"),
    ast.Try: ("an exception is caught", "assignments, if, for and while"),
    ast.Raise: ("an exception ends the run", "assignments, if, for and while"),
    ast.Assert: ("an assertion may end the run", "assignments, if, for and while"),
    ast.Delete: ("a name or a row is deleted", "tables keep their rows"),
    ast.FunctionDef: ("a function is defined in the loop", "assignments, if, for and while"),
    ast.ClassDef: ("a class is defined in the loop", "assignments, if, for and while"),
}


def read_body(function: FunctionType, record: np.dtype[Any], tables: Mapping[str, Table]) -> BodyFacts:
    """Return the accesses of a loop's function. Raise InputError with each line that cannot be analysed, and why."""
    tree = function_tree(function)
    reader = StatementReader(function, record, tables)
    before = None
    while before != (now := (dict(reader.local), frozenset(reader.values.written_fields))):
        before = now
        reader.values.problems.clear()
        reader.values.accesses.clear()
        reader.block(tree.body)
    if reader.values.problems:
        problems = sorted(reader.values.problems, key=lambda problem: problem.line)
        raise InputError(first_problems(problems))
    return BodyFacts(
        accesses=tuple(sorted(reader.values.accesses, key=lambda access: access.line)),
        written_fields=frozenset(reader.values.written_fields),
        has_inner_subscripts=reader.values.has_inner_subscripts,
    )


class StatementReader:
    """Walks through the statements. `local` holds the possible values of each name so far."""

    def __init__(self, function: FunctionType, record: np.dtype[Any], tables: Mapping[str, Table]) -> None:
        self.values = ValueReader(function, record, tables)
        self.local = self.values.local

    def block(self, statements: list[ast.stmt]) -> None:
        for statement in statements:
            self._statement(statement)

    def _statement(self, node: ast.stmt) -> None:
        match node:
            case ast.Assign(targets=targets, value=value):
                for target in targets:
                    self._assign(target, value)
            case ast.AnnAssign(target=target, value=value):
                if value is not None:
                    self._assign(target, value)
            case ast.AugAssign():
                self._change(node)
            case ast.If(test=test, body=body, orelse=orelse) | ast.While(test=test, body=body, orelse=orelse):
                self.values.read(test)
                self.block(body)
                self.block(orelse)
            case ast.For():
                self._for(node)
            case ast.Expr(value=ast.Constant()) | ast.Pass() | ast.Break() | ast.Continue() | ast.Return(value=None):
                pass
            case ast.Expr(value=value):
                self.values.read(value)
            case ast.Return(value=ast.Constant(value=None)):
                pass
            case ast.Return():
                self.values.refuse(node, "a value is returned", "what a loop finds is in its tables")
            case _:
                words = (f"{type(node).__name__} is not analysed", "assignments, if, for and while")
                self.values.refuse(node, *_REFUSED.get(type(node), words))

    def _assign(self, target: ast.expr, value: ast.expr) -> None:
        if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple) and len(target.elts) == len(value.elts):
            for one, its in zip(target.elts, value.elts, strict=True):
                self._assign(one, its)
            return
        found = self.values.read(value)
        if isinstance(target, ast.Tuple):
            if found.views:
                self.values.refuse(target, "a row is unpacked", "a row has names of its own")
            for one in target.elts:
                self._store(one, NUMERIC if found.is_numeric else PLAIN)
            return
        self._store(target, found)

    def _store(self, target: ast.expr, found: BodyValue) -> None:
        """Note an assignment to a target: a name, a row, a part of a row, or a field of the record."""
        values = self.values
        match target:
            case ast.Name(id=name) if name == values.record_name or name in values.tables:
                values.refuse(target, f"{name} gets another value", "the record and the tables keep their names")
            case ast.Name(id=name):
                self.local[name] = found if name not in self.local else self.local[name].joined(found)
            case ast.Subscript():
                self._store_part(target)
            case ast.Attribute(value=ast.Name(id=name), attr=field) if name == values.record_name:
                self._store_field(target, field)
            case _:
                values.refuse(target, f"an assignment to {ast.unparse(target)}", "names, rows and fields of the record")

    def _store_part(self, target: ast.Subscript) -> None:
        row = self.values.row_of(target)
        if row is not None:
            table, form, _ = row
            if form is not None:
                self.values.touch(target, table, form, "write")
            return
        if isinstance(target.value, ast.Name) and target.value.id == self.values.record_name:
            self.values.refuse(target, "a field of the record is assigned by subscript", "write record.field = value")
            return
        self._change_views(target, self._base_of(target), "write")

    def _base_of(self, target: ast.Subscript) -> BodyValue:
        """Return the possible value that is subscripted, and read the subscripts."""
        self.values.inner(list(target.slice.elts) if isinstance(target.slice, ast.Tuple) else [target.slice])
        return self.values.read(target.value)

    def _store_field(self, target: ast.expr, field: str) -> None:
        self.values.field(target, field)
        if self.values.record.names and field in self.values.record.names and self.values.record[field].shape:
            self.values.refuse(target, f"the vector {field} of the record is assigned", "fields with one number change")
        self.values.written_fields.add(field)

    def _change(self, node: ast.AugAssign) -> None:
        """Note an in-place operation such as `target += value`."""
        values, target = self.values, node.target
        is_numeric = values.read(node.value).is_numeric
        kind: AccessKind = "add" if isinstance(node.op, ast.Add | ast.Sub) else "write"
        match target:
            case ast.Name(id=name):
                if name == values.record_name or name in values.tables:
                    values.refuse(target, f"{name} is changed as a whole", "a table is changed by rows")
                    return
                held = self.local.get(name, PLAIN)
                self._change_views(node, held, kind)
                self.local[name] = held.joined(NUMERIC if is_numeric else PLAIN)
            case ast.Attribute(value=ast.Name(id=name), attr=field) if name == values.record_name:
                self._store_field(target, field)
            case ast.Subscript():
                self._change_part(node, target, kind)
            case _:
                values.refuse(target, f"a change of {ast.unparse(target)}", "names, rows and fields of the record")

    def _change_part(self, node: ast.AugAssign, target: ast.Subscript, kind: AccessKind) -> None:
        row = self.values.row_of(target)
        if row is None:
            self._change_views(node, self._base_of(target), kind)
            return
        table, form, _ = row
        if form is not None:
            if kind == "write":
                self.values.touch(node, table, form, "read")
            self.values.touch(node, table, form, kind)

    def _change_views(self, node: ast.expr | ast.stmt, held: BodyValue, kind: AccessKind) -> None:
        for vector in held.part_of:
            self.values.refuse(node, f"the vector {vector} of the record is changed", "vectors of records stay")
        for view in held.views:
            self.values.touch(node, view.table, view.row, kind)

    def _for(self, node: ast.For) -> None:
        targets = node.target.elts if isinstance(node.target, ast.Tuple) else [node.target]
        elements = self._elements(node.iter)
        if len(elements) != len(targets):
            rule = "range(...), a row, a vector of the record; enumerate and zip of them"
            self.values.refuse(node.iter, f"a loop over {ast.unparse(node.iter)}", rule)
            elements = [PLAIN] * len(targets)
        for target, found in zip(targets, elements, strict=True):
            self._store(target, found)
        self.block(node.body)
        self.block(node.orelse)

    def _elements(self, node: ast.expr) -> list[BodyValue]:
        """Return the possible value of each name of a `for`; empty if the form of its head is unknown."""
        match node:
            case ast.Call(func=ast.Name(id=name)) if self.values.is_hidden(name):
                return []
            case ast.Call(func=ast.Name(id="range"), args=arguments, keywords=[]):
                for argument in arguments:
                    self.values.read(argument)
                return [NUMERIC]
            case ast.Call(func=ast.Name(id="enumerate"), args=[only], keywords=[]):
                elements = self._elements(only)
                return [NUMERIC, *elements] if elements else []
            case ast.Call(func=ast.Name(id="zip"), args=[_, _, *_] as several, keywords=[]):
                # With one argument, a name of the loop would be a tuple.
                parts = [self._elements(one) for one in several]
                return [element for part in parts for element in part] if all(parts) else []
            case ast.Name() | ast.Attribute() | ast.Subscript():
                found = self.values.read(node)
                if found.vector is not None:
                    is_whole = self.values.record[found.vector].base.kind in "iu"
                    return [number_of(Affine.field(f"{found.vector}{EVERY}") if is_whole else None)]
                return [BodyValue(views=found.within(), is_numeric=found.is_numeric)]
        return []
