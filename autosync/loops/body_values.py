"""Reads the expressions of a loop's function: the rows that they read, and the values that may be parts of rows."""

from __future__ import annotations

import ast
import builtins
from collections.abc import Mapping
from types import FunctionType, ModuleType
from typing import Any

import numpy as np

from autosync.errors import Problem, did_you_mean
from autosync.loops import pure_calls
from autosync.loops.accesses import NUMERIC, PLAIN, Access, AccessKind, BodyValue, RowView, number_of
from autosync.loops.affine import EVERY, Affine
from autosync.loops.declarations import Table
from autosync.loops.outer_values import NUMBERS, outer_values


class ValueReader:
    """Walks through expressions and notes the rows that they read. Mistakes are collected with their lines."""

    def __init__(self, function: FunctionType, record: np.dtype[Any], tables: Mapping[str, Table]) -> None:
        self.file = function.__code__.co_filename
        self.record_name = function.__code__.co_varnames[0]
        self.record = record
        self.tables = tables
        self.local: dict[str, BodyValue] = {}
        self.accesses: dict[Access, None] = {}
        self.problems: dict[Problem, None] = {}
        self.written_fields: set[str] = set()
        self.has_inner_subscripts = False
        code = function.__code__
        self._own_names = {*code.co_varnames, *code.co_cellvars}
        self._outer = outer_values(function)

    def refuse(self, node: ast.AST, what: str, rule: str, hint: str = "") -> BodyValue:
        """Note a mistake at the line of a node."""
        line = getattr(node, "lineno", 1)
        self.problems[Problem(what=what, rule=rule, hint=hint, file=self.file, line=line)] = None
        return PLAIN

    def touch(self, node: ast.expr | ast.stmt, table: str, row: Affine, kind: AccessKind) -> None:
        """Note an access."""
        self.accesses[Access(table=table, row=row, kind=kind, line=node.lineno)] = None

    def read(self, node: ast.expr) -> BodyValue:
        """Return the possible value of an expression, and note the rows that it reads."""
        match node:
            case ast.Constant(value=value):
                return self._constant(node, value)
            case ast.Name(id=name):
                return self._name(node, name)
            case ast.Attribute():
                return self._attribute(node)
            case ast.Subscript():
                return self._subscript(node)
            case ast.Call():
                return self._call(node)
            case ast.Tuple(elts=elements) | ast.List(elts=elements):
                return self._collection(node, elements)
        return self._operation(node)

    def _operation(self, node: ast.expr) -> BodyValue:
        """Return the possible value of an operator or a conditional expression."""
        match node:
            case ast.BinOp():
                return self._arithmetic(node)
            case ast.UnaryOp(operand=operand, op=op):
                form = self.read(operand).form
                return number_of(form.times(-1) if form and isinstance(op, ast.USub) else None)
            case ast.Compare(left=left, comparators=others):
                self._read_all(left, *others)
                return NUMERIC
            case ast.BoolOp(values=values):
                return _joined([self.read(value) for value in values])
            case ast.IfExp(test=test, body=body, orelse=orelse):
                self.read(test)
                return self.read(body).joined(self.read(orelse))
        return self.refuse(node, f"{type(node).__name__} is not analysed", "names, subscripts, arithmetic and calls")

    def row_of(self, node: ast.Subscript) -> tuple[str, Affine | None, int] | None:
        """Return table, form of the row and number of remaining axes; None if the expression subscripts no table."""
        if not (isinstance(node.value, ast.Name) and node.value.id in self.tables):
            return None
        name = node.value.id
        first, *inner = node.slice.elts if isinstance(node.slice, ast.Tuple) and node.slice.elts else [node.slice]
        num_axes = len(self.tables[name].shape) - 1 - self.inner(inner)
        return name, self._row(first, name), num_axes

    def inner(self, indices: list[ast.expr]) -> int:
        """Read subscripts within a row, and return the number of axes that they take."""
        taken = 0
        for index in indices:
            self.has_inner_subscripts = True
            if isinstance(index, ast.Slice):
                for part in (index.lower, index.upper, index.step):
                    if part is not None:
                        self.read(part)
            else:
                self.read(index)
                taken += 1
        return taken

    def _row(self, node: ast.expr, table: str) -> Affine | None:
        rule = f"a row of {table} is an affine function of the record's fields, such as {self._example()}"
        if isinstance(node, ast.Slice) or (isinstance(node, ast.Constant) and node.value in (None, ...)):
            self.refuse(node, f"{table} is subscripted by a slice: many rows at once", rule)
            return None
        before = len(self.problems)
        found = self.read(node)
        if found.form is None and len(self.problems) == before:
            words = f"the row of {table} is {ast.unparse(node)}"
            hint = "make the number a whole-number field of the record"
            self.refuse(node, f"{words}: it depends on data or is not affine", rule, hint)
        return found.form

    def _example(self) -> str:
        names = [name for name in self.record.names or () if self.record[name].kind in "iu"]
        return f"{self.record_name}.{names[0] if names else 'row'}"

    def _constant(self, node: ast.expr, value: object) -> BodyValue:
        if isinstance(value, int) and not isinstance(value, bool):
            return number_of(Affine(constant=value))
        if isinstance(value, int | float):
            return NUMERIC
        return self.refuse(node, f"{value!r} is no number", "a loop works on numbers and arrays of numbers")

    def _name(self, node: ast.expr, name: str) -> BodyValue:
        if name == self.record_name:
            return self.refuse(node, "the record as a whole gets another name", f"write {self._example()}")
        if name in self.tables:
            what = f"the table {name} as a whole gets another name or is passed on"
            return self.refuse(node, what, "a table is used by rows: an alias could not be followed")
        if name in self._own_names:
            return self.local.get(name, PLAIN)
        if name not in self._outer:
            what = f"{name} is no value" if hasattr(builtins, name) else f"the name {name} is unknown"
            return self.refuse(node, what, "parameters, local names and constants of the file")
        value = self._outer[name]
        if not isinstance(value, NUMBERS):
            what = f"{name} is global state (of type {type(value).__name__})"
            return self.refuse(node, what, "a loop knows its record, its tables and numbers of the file")
        is_whole = isinstance(value, int | np.integer) and not isinstance(value, bool)
        return number_of(Affine(constant=int(value)) if is_whole else None)

    def _attribute(self, node: ast.Attribute) -> BodyValue:
        if isinstance(node.value, ast.Name) and node.value.id == self.record_name:
            return self.field(node, node.attr)
        if node.attr in {"shape", "size", "ndim", "dtype"}:
            if not (isinstance(node.value, ast.Name) and node.value.id in self.tables):
                self.read(node.value)
            return PLAIN if node.attr == "shape" else NUMERIC
        dotted = self.module_path(node)
        if dotted is not None:
            if pure_calls.constant_of_module(*dotted):
                return PLAIN
            what = f"{dotted[0].__name__}.{dotted[1]} is no number"
            return self.refuse(node, what, "numbers of numpy and math, such as math.pi")
        found = self.read(node.value)
        if node.attr == "T":
            return BodyValue(views=found.views, part_of=found.part_of, is_numeric=found.is_numeric)
        return self.refuse(node, f".{node.attr} is not analysed", "fields of the record, .T, .shape and .size")

    def field(self, node: ast.AST, name: str) -> BodyValue:
        """Return the value of a field of the record."""
        names = self.record.names or ()
        if name not in names:
            known = f"known: {', '.join(names)}"
            return self.refuse(node, f"records have no field {name}", known, did_you_mean(name, names))
        if self.record[name].shape:
            return BodyValue(vector=name, part_of=frozenset({name}), is_numeric=True)
        return number_of(Affine.field(name) if self.record[name].kind in "iu" else None)

    def _subscript(self, node: ast.Subscript) -> BodyValue:
        found = self.row_of(node)
        if found is not None:
            table, row, num_axes = found
            if row is None:
                return PLAIN
            self.touch(node, table, row, "read")
            views = frozenset({RowView(table, row, num_axes)}) if num_axes > 0 else frozenset()
            return BodyValue(views=views, is_numeric=True)
        if isinstance(node.value, ast.Name) and node.value.id == self.record_name:
            key = node.slice
            if isinstance(key, ast.Constant) and isinstance(key.value, str):
                return self.field(node, key.value)
            return self.refuse(node, "the record is subscripted by position", f"write {self._example()}")
        base = self.read(node.value)
        if base.vector is not None:
            return self._element(base, base.vector, node.slice)
        views = base.within(self._axes_taken(node.slice))
        return BodyValue(views=views, part_of=base.part_of, is_numeric=base.is_numeric)

    def _axes_taken(self, index: ast.expr) -> int:
        """Read the subscript of a value, and return the number of axes that it takes at least."""
        if isinstance(index, ast.Tuple):
            return self.inner(index.elts)
        taken = self.inner([index])
        # A name may stand for an empty tuple, which takes no axis. Within a tuple it would be an empty array.
        return taken if taken and self.read(index).is_numeric else 0

    def _element(self, base: BodyValue, vector: str, index: ast.expr) -> BodyValue:
        """Return the value of an element of a record's vector, either a fixed element or any."""
        if isinstance(index, ast.Slice):
            self.inner([index])
            return BodyValue(vector=vector, is_cut=True, part_of=base.part_of, is_numeric=True)
        found = self.read(index)
        position = found.form
        is_whole = self.record[vector].base.kind in "iu"
        length = self.record[vector].shape[0]
        if position is not None and not position.terms and not base.is_cut:
            if not 0 <= position.constant < length:
                rule = f"{vector} has elements 0 to {length - 1}"
                return self.refuse(index, f"element {position.constant} of {vector}", rule)
            return number_of(Affine.field(f"{vector}[{position.constant}]") if is_whole else None)
        self.has_inner_subscripts = True
        form = Affine.field(f"{vector}{EVERY}") if is_whole else None
        # If the index is an empty tuple, the value is the whole vector.
        return BodyValue(form=form, part_of=frozenset() if found.is_numeric else base.part_of, is_numeric=True)

    def _arithmetic(self, node: ast.BinOp) -> BodyValue:
        first, second = self.read(node.left), self.read(node.right)
        left, right = first.form, second.form
        if left is None or right is None:
            return BodyValue(is_numeric=first.is_numeric and second.is_numeric)
        if isinstance(node.op, ast.Add | ast.Sub):
            return number_of(self._sum(left, right, sign=1 if isinstance(node.op, ast.Add) else -1))
        if isinstance(node.op, ast.Mult) and not (left.terms and right.terms):
            return number_of(left.times(right.constant) if left.terms else right.times(left.constant))
        return NUMERIC

    def _sum(self, left: Affine, right: Affine, *, sign: int) -> Affine | None:
        total = left.plus(right, sign=sign)
        if total is not None and left.fields & right.fields & (self.written_fields - total.fields):
            # The field cancels out, but may have been assigned between the two readings.
            return None
        return total

    def _read_all(self, *nodes: ast.expr) -> None:
        for node in nodes:
            self.read(node)

    def _collection(self, node: ast.expr, elements: list[ast.expr]) -> BodyValue:
        found = [self.read(element) for element in elements]
        if any(one.views for one in found):
            return self.refuse(node, "a row is put into a tuple or list", "a row has names of its own, or is copied")
        if vectors := sorted(name for one in found for name in one.part_of):
            what = f"the vector {vectors[0]} of the record is put into a tuple or list"
            return self.refuse(node, what, "a vector has names of its own, or is copied")
        return PLAIN

    def _call(self, node: ast.Call) -> BodyValue:
        keywords = [keyword.arg or "**" for keyword in node.keywords]
        if any(isinstance(argument, ast.Starred) for argument in node.args) or "**" in keywords:
            return self.refuse(node, "a call with * or **", "arguments are written out")
        if isinstance(node.func, ast.Name):
            return self._builtin_call(node, node.func.id)
        if isinstance(node.func, ast.Attribute):
            dotted = self.module_path(node.func)
            if dotted is not None:
                return self._module_call(node, *dotted)
            return self._method_call(node, node.func, keywords)
        return self.refuse(node, "a call of a computed function", "functions are called by name")

    def is_hidden(self, name: str) -> bool:
        """Return whether the name of a builtin has another meaning in the user's file."""
        return name in self._own_names or name in self._outer

    def _module_call(self, node: ast.Call, module: ModuleType, path: str) -> BodyValue:
        keywords = [keyword.arg or "**" for keyword in node.keywords]
        what, rule = pure_calls.refusal_of_module_call(module, path, len(node.args), keywords)
        if what:
            return self.refuse(node, what, rule)
        found = [self.read(argument) for argument in (*node.args, *(keyword.value for keyword in node.keywords))]
        if found and pure_calls.may_return_its_argument(module, path):
            return BodyValue(views=found[0].views, part_of=found[0].part_of, is_numeric=True)
        return PLAIN

    def _builtin_call(self, node: ast.Call, name: str) -> BodyValue:
        if name in pure_calls.FILES_AND_SCREENS:
            return self.refuse(
                node, f"{name}() reads or writes outside of the tables", "a loop has no input and output"
            )
        known = None if name in self._own_names else pure_calls.module_of(self._outer.get(name))
        if known is not None:
            return self._module_call(node, *known)
        if self.is_hidden(name) or name not in pure_calls.BUILTINS or node.keywords:
            rule = f"a loop calls numpy, math and {', '.join(sorted(pure_calls.BUILTINS))}"
            return self.refuse(
                node, f"calls {name}(), of which nothing is known", rule, "write its lines into the loop"
            )
        if name == "len" and len(node.args) == 1 and isinstance(node.args[0], ast.Name):
            held = node.args[0].id
            if held in self.tables:
                return number_of(Affine(constant=self.tables[held].shape[0]))
        found = [self.read(argument) for argument in node.args]
        if name in {"max", "min"}:
            joined = _joined(found)
            return BodyValue(views=joined.views, part_of=joined.part_of, is_numeric=joined.is_numeric)
        return number_of(found[0].form if name == "int" and len(found) == 1 else None)

    def _method_call(self, node: ast.Call, function: ast.Attribute, keywords: list[str]) -> BodyValue:
        method = function.attr
        if isinstance(function.value, ast.Name) and function.value.id in self.tables:
            what = f"{function.value.id}.{method}() works on the table as a whole, or resizes it"
            return self.refuse(node, what, "a table keeps its shape and is used by rows")
        held = self.read(function.value)
        limit = pure_calls.METHODS.get(method)
        if limit is None or len(node.args) > limit or set(keywords) - {"axis"}:
            rule = f"methods that change nothing: {', '.join(pure_calls.METHODS)}"
            return self.refuse(node, f".{method}() may change or share what it is called on", rule)
        self._read_all(*node.args, *(keyword.value for keyword in node.keywords))
        return BodyValue(is_numeric=held.is_numeric)

    def module_path(self, node: ast.Attribute) -> tuple[ModuleType, str] | None:
        """Return the module and the dotted name in it; None if this is not an attribute of a module."""
        names = []
        value: ast.expr = node
        while isinstance(value, ast.Attribute):
            names.append(value.attr)
            value = value.value
        if not isinstance(value, ast.Name) or value.id in self._own_names:
            return None
        module = self._outer.get(value.id)
        return (module, ".".join(reversed(names))) if isinstance(module, ModuleType) else None


def _joined(found: list[BodyValue]) -> BodyValue:
    joined = found[0] if found else PLAIN
    for other in found[1:]:
        joined = joined.joined(other)
    return joined
