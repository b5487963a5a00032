"""Random loops as source files: some have a schedule by construction, in others a dependence is planted."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace

import numpy as np

from autosync.loops.declarations import SerialLoop
from autosync.loops.load import load_loop

FIELDS = ("a", "b", "c")
FAMILIES = ("independent", "one", "two")
PLANTED = ("one row", "two fields", "third table", "neighbour", "unsorted")

_HEADER = '''"""A random loop."""

from pathlib import Path

import numpy as np

import autosync
from autosync import Table

SHIFT = {shift}
RECORDS = Path(__file__).with_name("{records}")


@autosync.loop(records=RECORDS, order="{order}", tables={{
{tables}
}})
def step(r, {names}):
    x = r.x
'''


@dataclass
class Draft:
    """A loop in the making: tables with their rows and columns, and lines of the function."""

    chance: random.Random
    records: np.ndarray
    tables: dict[str, str] = field(default_factory=dict)
    lines: list[str] = field(default_factory=list)
    values: list[str] = field(default_factory=list)

    def table(self, num_rows: int, **options: str) -> tuple[str, int]:
        """The name and the number of columns of a new table; 0 columns make a row a number."""
        name = f"t{len(self.tables)}"
        width = self.chance.choice((0, 1, 3))
        shape = f"({num_rows}, {width})" if width else f"({num_rows},)"
        initial = f"lambda generator: generator.normal(size={shape})"
        told = {"shape": shape, "initial": initial, "dtype": repr(self.chance.choice(("float64", "float32")))} | options
        self.tables[name] = f"Table({', '.join(f'{key}={value}' for key, value in told.items())})"
        return name, width

    def span(self, row: str) -> int:
        """One more than the largest row."""
        columns = SimpleNamespace(**{name: self.records[name].astype(int) for name in FIELDS})
        return int(np.max(eval(row, {"r": columns, "SHIFT": 1}))) + 1


def random_loop(chance: random.Random, folder: Path, family: str, planted: str = "") -> SerialLoop:
    """A loop of a family with a schedule; with a planted dependence it has none."""
    records = _records(chance)
    order = "given" if planted == "unsorted" or (not planted and chance.random() < 0.4) else "any"
    if order == "given" and planted != "unsorted":
        records = records[np.lexsort((records["b"], records["a"]))]
    if planted:
        records = _with_conflicts(records, planted)
    draft = Draft(chance, records)
    first, second = ("r.a", "r.b")
    forms = {"independent": [], "one": [first], "two": [first, second]}["two" if planted == "unsorted" else family]
    if forms and len(forms) == 1 and chance.random() < 0.3:
        forms = ["r.a + r.b"]
    for form in forms:
        for _ in range(chance.randint(1, 2)):
            _change(draft, _scaled(chance, form, draft))
    if len(forms) == 2 and chance.random() < 0.3:
        _both_in_one(draft)
    if chance.random() < 0.3:
        draft.lines.append("r.x = 0.5 * r.x + 0.25")
    if not forms:
        name, width = draft.table(draft.span("r.c"), dtype="'int64'", initial="3", updates="'commutative'")
        draft.lines.append(f"{name}[r.c{', 0' if width else ''}] += {chance.randint(1, 5)}")
    if chance.random() < 0.5:
        _read_only(draft)
    _plant(draft, planted)
    chance.shuffle(draft.lines)
    return _write(draft, folder, order)


def _records(chance: random.Random) -> np.ndarray:
    """Records whose fields are even or skewed, of any number."""
    generator = np.random.default_rng(chance.getrandbits(32))
    size = chance.choice((1, 7, 40, 90))
    kinds = [(name, chance.choice(("i4", "i8"))) for name in FIELDS]
    found = np.zeros(size, dtype=[*kinds, ("x", chance.choice(("f4", "f8")))])
    for name in FIELDS:
        num_values = chance.choice((1, 3, 12, 40))
        skew = chance.choice((1, 4))
        found[name] = (generator.random(size) ** skew * num_values).astype(int)
    found["x"] = generator.normal(size=size)
    return found


def _scaled(chance: random.Random, form: str, draft: Draft) -> str:
    """The same direction, scaled and shifted."""
    factor = chance.choice(("", "2 * ", "3 * "))
    text = f"{factor}({form})" if factor else form
    shift = chance.choice(("", " + 1", " + 5", " + SHIFT"))
    if chance.random() < 0.15:
        return f"{draft.span(text) - 1} - {text if ' + ' not in text else f'({text})'}"
    return text + shift


def _change(draft: Draft, row: str) -> None:
    """Lines that change a row, so that the order of changes matters."""
    name, width = draft.table(draft.span(row) + 1)
    other = f" + 0.1 * {draft.chance.choice(draft.values)}" if draft.values and draft.chance.random() < 0.6 else ""
    if width == 0:
        choices = [
            [f"{name}[{row}] = 0.5 * {name}[{row}] + x{other}"],
            [f"{name}[{row}] *= 0.75", f"{name}[{row}] += x"],
            [f"if x > 0:\n        {name}[{row}] = x - {name}[{row}]"],
        ]
    else:
        choices = [
            [f"{name}[{row}] = 0.5 * {name}[{row}] + x{other}"],
            [f"w{name} = {name}[{row}]\n    w{name} *= 0.75\n    w{name}[0] = w{name}[0] + x"],
            [f"w{name} = {name}[{row}][:]\n    w{name} -= 0.25 * w{name} * x"],
            [f"for k in range({width}):\n        {name}[{row}, k] = {name}[{row}, k] * 0.5 + x * k + 1"],
            [f"{name}[{row}, :] = np.tanh({name}[{row}]) + x", f"{name}[{row}][0] -= float(np.sum({name}[{row}]))"],
        ]
    draft.lines += draft.chance.choice(choices)
    draft.values.append(f"{name}[{row}{', 0' if width else ''}]")


def _both_in_one(draft: Draft) -> None:
    """One table with the rows of two fields, the second one's behind the first one's."""
    begin = draft.span("r.a")
    name, _ = draft.table(begin + draft.span("r.b"))
    draft.lines.append(f"{name}[r.a] = 0.5 * {name}[{begin} + r.b] + x")
    draft.lines.append(f"{name}[{begin} + r.b] -= 0.25 * {name}[r.a] * x")


def _read_only(draft: Draft) -> None:
    """A table that only gives values: any row may be read."""
    name, width = draft.table(draft.span("r.c") + 3)
    draft.lines.append(
        f"if {name}[r.c + 2{', 0' if width else ''}] > 0:\n        x = x + {name}[r.c{', 0' if width else ''}]"
    )


def _plant(draft: Draft, planted: str) -> None:
    """A dependence that forbids every schedule on one and two dimensions, with records in which it happens."""
    if planted == "one row":
        name, _ = draft.table(4)
        draft.lines.append(f"{name}[3] = {name}[3] * 0.5 + x")
    elif planted == "two fields":
        name, _ = draft.table(60)
        draft.lines.append(f"{name}[r.a] = {name}[r.b] * 0.5 + x")
    elif planted == "third table":
        for form in ("r.a", "r.b", "r.c"):
            name, _ = draft.table(60)
            draft.lines.append(f"{name}[{form}] = {name}[{form}] * 0.5 + x")
    elif planted == "neighbour":
        name, _ = draft.table(60)
        draft.lines.append(f"{name}[r.a] = {name}[r.a + 1] * 0.5 + x")


def _with_conflicts(records: np.ndarray, planted: str) -> np.ndarray:
    """Records whose values overlap, so that their ranges alone excuse no dependence."""
    if len(records) < 7:
        records = np.concatenate([records] * 7)
    for position, name in enumerate(FIELDS):
        records[name][:4] = [(position + step) % 3 for step in (0, 1, 2, 0)]
    if planted == "unsorted":
        records["a"][:4], records["b"][:4] = (0, 0, 1, 1), (1, 0, 1, 0)
    return records


def _write(draft: Draft, folder: Path, order: str) -> SerialLoop:
    number = len(list(folder.glob("*.py")))
    np.save(folder / f"records_{number}.npy", draft.records)
    tables = "\n".join(f'    "{name}": {text},' for name, text in draft.tables.items())
    text = _HEADER.format(
        shift=draft.chance.choice((0, 1)),
        records=f"records_{number}.npy",
        order=order,
        tables=tables,
        names=", ".join(draft.tables),
    )
    path = folder / f"loop_{number}.py"
    path.write_text(text + "".join(f"    {line}\n" for line in draft.lines), encoding="utf-8")
    return load_loop(str(path))
