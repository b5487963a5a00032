"""Random functions of one record that try to hide which rows they touch: aliases, parts, branches, loops, vectors."""

from __future__ import annotations

import random

HEADER = """import math

import numpy as np

import autosync
from autosync import Table

COUNT = 2


def records():
    chance = np.random.default_rng(1)
    found = np.zeros(12, dtype=[("i", "i8"), ("j", "i4"), ("x", "f8"), ("few", "i4", (3,))])
    found["i"], found["j"] = chance.integers(0, 4, size=12), chance.integers(0, 4, size=12)
    found["x"] = chance.normal(size=12)
    found["few"] = chance.integers(0, 9, size=(12, 3))
    return found


@autosync.loop(records=records, tables={
    "s": Table(shape=(20,), initial=lambda generator: generator.normal(size=20)),
    "t": Table(shape=(20, 3), initial=lambda generator: generator.normal(size=(20, 3))),
    "m": Table(shape=(20, 2, 3), initial=lambda generator: generator.normal(size=(20, 2, 3))),
})
def step(r, s, t, m):
    u = r.x
    v = r.x
    f = 0
    few = r.few
    e = ()
"""

_ROWS = (
    "r.i",
    "r.j",
    "r.i + 1",
    "2 * r.j + 1",
    "r.i + r.j",
    "COUNT * r.i",
    "7 - r.i",
    "f",
    "f + 1",
    "r.few[1]",
    "few[0]",
)
_SIMPLE = (
    "{a} = t[{row}]",
    "{a} = m[{row}]",
    "{a} = m[{row}, 1]",
    "{a} = m[{row}][0]",
    "{a} = t[{row}, 0:2]",
    "{a} = t[{row}][e]",
    "{a} = {b}",
    "{a} = {b}[1:]",
    "{a} = {b}[0]",
    "{a} = {b}[e]",
    "e = 0",
    "{a} = {b}.T",
    "{a} = {b} * 0.5",
    "{a} = {b}.copy()",
    "{a} = np.float64({b})",
    "{a} = np.exp(-np.abs({b}))",
    "{a} = max(m[{row}, 0:1])",
    "{a} = t[{row}] if r.x > 0 else {b}",
    "{a} = t[{row}] if r.x > 0 else t[{other}]",
    "{a}, {b} = {b}, {a}",
    "{a} = s[{row}]",
    "{a} += 1.0",
    "{a} -= {b}",
    "{a} *= 0.5",
    "{a}[0] = 2.0",
    "{a}[0] += r.x",
    "{a}[:] = 0.25",
    "t[{row}] += {b}",
    "t[{row}] = t[{other}] * 0.5 + r.x",
    "t[{row}, 1] = s[{other}]",
    "t[{row}][2] = 1.5",
    "m[{row}, 0][1] -= r.x",
    "s[{row}] *= 0.5",
    "s[{row}] = math.cos(s[{other}])",
    "f = {row}",
    "f = f + 1",
    "f += 1",
    "f = int(r.few[2])",
    "f = int(s[{row}])",
    "few = r.few[1:]",
    "few = few[1:]",
    "few = r.few",
    "r.x = 0.5 * r.x + {number}",
)
_BLOCKS = (
    "if r.x > {number}:",
    "for k in range(2):",
    "for {a} in m[{row}]:",
    "for {a} in zip(m[{row}]):",
    "for f in r.few:",
    "for f in few:",
    "for k, f in enumerate(few):",
    "for {a}, f in zip(t[{row}], r.few):",
    "if s[{row}] > 0:",
)


def random_body(chance: random.Random) -> str:
    """The text of a file with a loop."""
    return HEADER + "".join(_statements(chance, 1, chance.randint(2, 8)))


def _statements(chance: random.Random, depth: int, number: int) -> list[str]:
    lines = []
    for _ in range(number):
        is_block = depth < 3 and chance.random() < 0.25
        text = chance.choice(_BLOCKS if is_block else _SIMPLE)
        a, b = chance.sample(("u", "v"), 2)
        row, other = chance.choice(_ROWS), chance.choice(_ROWS)
        text = text.format(a=a, b=b, row=row, other=other, number=chance.choice((0, 0.5)))
        lines.append("    " * depth + text + "\n")
        if is_block:
            lines += _statements(chance, depth + 1, chance.randint(1, 3))
    return lines
