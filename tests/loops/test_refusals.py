"""Lines that cannot be analysed are refused with file, line and reason."""

from pathlib import Path

import numpy as np
import pytest

from autosync.errors import InputError
from autosync.loops.dependences import LoopAnalysis, analyse
from autosync.loops.load import load_loop
from autosync.loops.schedules import ScheduleChoice

_FILE = """import math
import random
import time

import numpy as np

import autosync

COUNT = 3
RATE = 0.5
KEPT = []
WEIGHTS = np.ones(4)


def helper(x):
    return x


def records():
    found = np.zeros(6, dtype=[("i", "i8"), ("j", "i8"), ("x", "f8"), ("few", "i4", (3,)), ("tiny", "i1"), ("u", "u4")])
    found["i"] = [0, 1, 2, 0, 1, 2]
    found["j"] = [0, 0, 0, 1, 1, 1]
    return found


@autosync.loop(records=records, order={order!r}, tables={{
    "t": autosync.Table(shape=(9, 4), updates={updates!r}), "s": autosync.Table(shape=(9,)),
}})
def step(r, t, s):
    {body}
"""
FIRST_LINE = _FILE.split("{body}", maxsplit=1)[0].count("\n") + 1


@pytest.fixture
def analysed(tmp_path: Path):
    def analyse_body(body: str, *, updates: str = "ordered", order: str = "any") -> LoopAnalysis:
        path = tmp_path / "loop.py"
        text = body.replace("\n", "\n    ")
        path.write_text(_FILE.format(body=text, updates=updates, order=order), encoding="utf-8")
        loop = load_loop(str(path))
        return analyse(loop, loop.load_records())

    return analyse_body


REFUSED = {
    "data-dependent row": ("k = int(s[r.i])\nt[k] = 1.0", 2, "the row of t is k: it depends on data"),
    "row from a float field": ("t[int(r.x)] += 1", 1, "depends on data"),
    "product of fields": ("t[r.i * r.j] += 1", 1, "not affine"),
    "remainder": ("t[r.i % 2] += 1", 1, "not affine"),
    "loop variable": ("for k in range(3):\n    t[r.i + k] += 1", 2, "depends on data or is not affine"),
    "changed variable": ("k = r.i\nk += 1\nt[k] += 1", 3, "depends on data or is not affine"),
    "slice of rows": ("t[r.i:] = 0", 1, "a slice: many rows at once"),
    "whole table": ("t[:] = 0", 1, "a slice"),
    "alias": ("other = t\nother[r.i] += 1", 1, "the table t as a whole gets another name"),
    "table passed on": ("x = np.sum(t)", 1, "the table t as a whole"),
    "table assigned": ("t = s", 1, "t"),
    "table augmented": ("t += 1", 1, "t is changed as a whole"),
    "resized": ("t.resize((3, 3))", 1, "t.resize() works on the table as a whole, or resizes it"),
    "row in a list": ("rows = [t[r.i], t[r.j]]\nrows[0][0] = 1", 1, "a row is put into a tuple or list"),
    "row reshaped": ("flat = t[r.i].reshape(2, 2)\nflat[0, 0] = 1", 1, ".reshape() may change or share"),
    "row given away": ("flat = np.ravel(t[r.i])\nflat[0] = 1", 1, "numpy.ravel, which may change or share"),
    "output by keyword": ("np.add(r.x, 1.0, out=t[r.i])", 1, "gets an output"),
    "output by position": ("np.exp(s[r.i], t[r.i])", 1, "gets an output"),
    "print": ("print(r.x)", 1, "print() reads or writes outside of the tables"),
    "file": ("open('x')", 1, "open() reads or writes outside"),
    "unknown function": ("x = helper(r.x)", 1, "calls helper(), of which nothing is known"),
    "unknown module": ("x = time.time()", 1, "calls time.time, of which nothing is known"),
    "random": ("x = random.random()", 1, "state that all records share"),
    "numpy's random": ("x = np.random.normal()", 1, "state that all records share"),
    "global list": ("KEPT.append(r.x)", 1, "KEPT is global state"),
    "global array": ("x = WEIGHTS[0]", 1, "WEIGHTS is global state"),
    "global statement": ("global COUNT\nCOUNT = 1", 1, "global state is changed"),
    "import": ("import os", 1, "an import runs code"),
    "with": ("with r.x:\n    pass", 1, "a context manager"),
    "try": ("try:\n    pass\nexcept ValueError:\n    pass", 1, "an exception is caught"),
    "lambda": ("f = lambda: 0", 1, "Lambda is not analysed"),
    "comprehension": ("x = [k for k in range(3)]", 1, "ListComp is not analysed"),
    "returned value": ("return r.x", 1, "a value is returned"),
    "record passed on": ("q = r", 1, "the record as a whole"),
    "unknown field": ("x = r.y", 1, "records have no field y"),
    "vector changed": ("r.few[0] = 1", 1, "the vector few of the record is changed"),
    "vector alias changed": ("v = r.few\nv += 1", 2, "the vector few of the record is changed"),
    "assigned row field": ("r.i = 2\nt[r.i] += 1", 2, "the field i is assigned and chooses a row"),
    "assigned field that cancels out": ("before = r.i\nr.i = r.i + 1\nt[r.i - before] += 1", 3, "not affine"),
    "field that is assigned later": (
        "for k in range(2):\n    t[r.i - before] += 1\n    before = r.i\n    r.i += 1",
        2,
        "not affine",
    ),
    "sum that cancels out": ("b = r.i + r.j\nr.j = 1\nt[b - r.j - r.i] += 1", 3, "not affine"),
    "loop over one-element tuples": ("for a in zip(t[r.i]):\n    a[0][0] = 1", 1, "a loop over zip(t[r.i])"),
    "loop over unknown pairs": ("for a in zip([1, 2], t[r.i]):\n    a[1][0] = 1", 1, "a loop over zip([1, 2], t[r.i])"),
    "loop over an unknown list": ("for a in enumerate([t[r.i]]):\n    a[1][0] = 1", 1, "a loop over enumerate("),
    "vector in a tuple": ("q = (r.few, 1)\nq[0][0] = 1", 1, "the vector few of the record is put into a tuple"),
    "whole vector by an empty index": ("k = ()\nv = r.few[k]\nv[0] = 1", 3, "the vector few of the record is changed"),
    "row out of range": ("t[r.i + 7] += 1", 1, "reaches from 7 to 9"),
    "negative row": ("t[-1] += 1", 1, "reaches from -1 to -1"),
    "small integers in arithmetic": ("t[2 * r.tiny] += 1", 1, "tiny is int8"),
    "unsigned in arithmetic": ("t[r.u + 1] += 1", 1, "u is uint32"),
    "overflow": ("t[r.i + 3000000000 - 3000000000 + 2147483648 - 2147483648 * r.i] += 1", 1, "reach"),
    "row beyond all integers": (f"t[r.i + {10**30}] += 1", 1, "below 2^31"),
    "factor beyond all integers": (f"t[{10**30} * r.i] += 1", 1, "below 2^31"),
    "hidden builtin": ("range = 3\nfor k in range(3):\n    pass", 2, "a loop over range(3)"),
    "element of a vector": ("s[r.few[3]] += 1", 1, "element 3 of few"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_line_that_cannot_be_analysed_is_named(name: str, analysed) -> None:
    body, line, words = REFUSED[name]
    with pytest.raises(InputError) as caught:
        analysed(body)
    problem = caught.value.problems[0]
    assert words in str(problem), str(problem)
    assert problem.line == FIRST_LINE + line - 1, str(problem)
    assert problem.file.endswith("loop.py")


def test_a_field_of_no_elements_reaches_no_row(tmp_path: Path) -> None:
    path = tmp_path / "loop.py"
    text = _FILE.format(body="for k in r.few:\n        t[k] += 1", updates="ordered", order="any")
    path.write_text(text.replace('("few", "i4", (3,))', '("few", "i4", (0,))'), encoding="utf-8")
    loop = load_loop(str(path))
    assert analyse(loop, loop.load_records()).body.accesses


def test_a_schedule_asks_for_no_more_than_fits() -> None:
    for field, number in (("blocks_per_rank", 10**8), ("staleness", 10**6), ("merge_every", 0)):
        with pytest.raises(InputError, match=f"{field}: is {number}"):
            ScheduleChoice(**{field: number})
    assert ScheduleChoice(merge_every=10**9).merge_every == 10**9


def test_every_mistake_is_told_at_once(analysed) -> None:
    with pytest.raises(InputError) as caught:
        analysed("print(1)\nt[:] = 0\nx = helper(2)")
    assert [problem.line - FIRST_LINE for problem in caught.value.problems] == [0, 1, 2]


@pytest.mark.parametrize(
    ("body", "updates", "words"),
    [
        ("x = t[r.i]\nt[r.i] += 1.0", "commutative", "t is commutative and is read"),
        ("t[r.i] = 1.0", "commutative", "t is commutative and is written"),
        ("t[r.i] *= 2.0", "commutative", "t is commutative and is read"),
        ("t[r.i] = t[r.i] + 1.0", "buffered", "t is buffered and is written"),
    ],
)
def test_uses_against_a_declaration_are_named(body: str, updates: str, words: str, analysed) -> None:
    with pytest.raises(InputError, match=words):
        analysed(body, updates=updates)


def test_buffering_needs_any_order(analysed) -> None:
    with pytest.raises(InputError, match="order is given"):
        analysed("t[r.few[r.j]] += t[r.i, 0]", updates="buffered", order="given")


READ = {
    "row by a name": ("i = r.i\nj = i + 1\nt[j] += r.x", {("t", "i + 1", "add")}),
    "constants of the file": ("t[COUNT * r.i] = RATE", {("t", "3 * i", "write")}),
    "fields by subscript": ("t[r['i']] = 1.0", {("t", "i", "write")}),
    "difference": ("t[2 + r.j - r.i] = 1.0", {("t", "-i + j + 2", "write")}),
    "view": ("row = t[r.i]\nrow[1:] += 1.0", {("t", "i", "read"), ("t", "i", "add")}),
    "view of a view": ("row = t[r.i]\npart = row[:2].T\npart[:] = 1.0", {("t", "i", "read"), ("t", "i", "write")}),
    "copy": ("row = t[r.i].copy()\nrow += 1.0", {("t", "i", "read")}),
    "new value": ("row = t[r.i] + 0.0\nrow += 1.0", {("t", "i", "read")}),
    "one of two": (
        "row = t[r.i] if r.x > 0 else t[r.j]\nrow[:] = 0",
        {("t", "i", "read"), ("t", "j", "read"), ("t", "i", "write"), ("t", "j", "write")},
    ),
    "later alias": (
        "for k in range(2):\n    if k:\n        row[:] = 0\n    row = t[r.i]",
        {("t", "i", "read"), ("t", "i", "write")},
    ),
    "numbers are no views": ("x = s[r.i]\nx += 1", {("s", "i", "read")}),
    "numbers of a row are no views": (
        "row = t[r.i]\nk = 0\nwhile k < 4:\n    x = row[k]\n    x += 1\n    k += 1",
        {("t", "i", "read")},
    ),
    "an empty index leaves the row": (
        "k = ()\nrow = t[r.i][k]\nrow[:] = 0",
        {("t", "i", "read"), ("t", "i", "write")},
    ),
    "an index may be empty": (
        "k = t.shape[2:]\nrow = t[r.i]\npart = row[k]\npart += 1",
        {("t", "i", "read"), ("t", "i", "add")},
    ),
    "a field that is not assigned cancels out": ("k = r.i + 1\nt[k - r.i] = 1.0", {("t", "1", "write")}),
    "elements of a vector": ("for f in r.few:\n    s[f] += 1.0", {("s", "few[*]", "add")}),
    "elements by position": ("s[r.few[1]] += s[r.few[r.i]]", {("s", "few[1]", "add"), ("s", "few[*]", "read")}),
    "vectors side by side": (
        "for k, (f) in enumerate(r.few):\n    s[f] += k",
        {("s", "few[*]", "add")},
    ),
    "swap": ("a, b = t[r.i], t[r.j]\na[0] = b[1]", {("t", "i", "read"), ("t", "j", "read"), ("t", "i", "write")}),
    "early end": (
        "if r.x > 0:\n    return\nwhile s[r.i] > 1:\n    s[r.i] *= 0.5",
        {("s", "i", "read"), ("s", "i", "write")},
    ),
    "known functions": ("s[r.i] = math.exp(np.dot(t[r.i], t[r.i]))", {("t", "i", "read"), ("s", "i", "write")}),
}


@pytest.mark.parametrize("name", READ)
def test_rows_are_read_off_the_source(name: str, analysed) -> None:
    body, expected = READ[name]
    accesses = analysed(body).body.accesses
    assert {(one.table, str(one.row), one.kind) for one in accesses} == expected


def test_a_changed_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "loop.py"
    path.write_text(_FILE.format(body="t[r.i] = 1.0", updates="ordered", order="any"), encoding="utf-8")
    loop = load_loop(str(path))
    path.write_text(_FILE.format(body="t[r.j] = 1.0", updates="ordered", order="any"), encoding="utf-8")
    with pytest.raises(InputError, match="has changed since"):
        analyse(loop, loop.load_records())


def test_tables_keep_their_numbers_for_a_seed(tmp_path: Path) -> None:
    path = tmp_path / "loop.py"
    path.write_text(_FILE.format(body="t[r.i] = 1.0", updates="ordered", order="any"), encoding="utf-8")
    loop = load_loop(str(path))
    assert np.array_equal(loop.initial_tables(3)["t"], loop.initial_tables(3)["t"])
