"""Files as no program of ours writes them: hostile values in JSON, damaged bytes, and folders that lead astray.

`fuzz` mutates what people write by hand. Here is what a crash, a disk or an attacker leaves: trees with values that a
parser stumbles over, tables of tensors that lie about their sizes, frames with wrong lengths, logs whose lines are in
disorder, links, pipes and devices in the place of files. All of it is drawn from a `random.Random`, and so repeatable.
"""

from __future__ import annotations

import copy
import json
import os
import random
import struct
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tests.helpers.mutations import value_mutations

MAX_ITEMS = 200_000
"""How many items a list has that is long to make a reader's work long."""

_DEEP = 3000
_LENGTH = struct.Struct("<Q")


class Literal:
    """A piece of JSON as it is to be written, which `json` would not write."""

    def __init__(self, text: str) -> None:
        self.text = text


_NUMBERS = ("1e400", "-1e400", "-0", "-0.0", "1e-400", "NaN", "Infinity", "-Infinity", "9223372036854775808")
_LONG_NUMBERS = ("9" * 400, "-" + "9" * 5000, "1." + "1" * 400, "0.0000000000000001e309", str(2**64), str(2**31))
_NAMES = (
    "../../x",
    "/dev/zero",
    "/proc/self/mem",
    "~/x",
    ".",
    "..",
    "",
    "a/../../b",
    "x" * 5000,
    "nul\0byte",
    "line\nbreak",
    "\x1b[31mred",
    "\u202eleft",
    "\ufeff",
    "\ud800",
    "CON",
    "-rf",
    "$(touch marker)",
    "%s%n",
    "__class__",
    "__proto__",
    "file:///etc/passwd",
    "sqlite:////etc/passwd",
    "journal:/etc/passwd",
)


def hostile_values(value: Any, rng: random.Random) -> Any:
    """Plain values after one to four mutations, one of them of a kind that parsers and readers stumble over."""
    mutant = value_mutations(value, rng) if rng.random() < 0.5 else copy.deepcopy(value)
    places = _places(mutant)
    for _ in range(rng.choice((0, 1, 1, 1, 2))):
        if places:
            parent, key = rng.choice(places)
            parent[key] = _hostile(parent[key], rng)
            places = _places(mutant)
    return mutant


def hostile_json(value: Any, rng: random.Random) -> bytes:
    """The bytes of a JSON document of mutated values; now and then its text is damaged too."""
    text = json_text(hostile_values(value, rng), rng)
    raw = text.encode("utf-8", "surrogatepass")
    return damaged(raw, rng) if rng.random() < 0.1 else raw


def json_text(value: Any, rng: random.Random) -> str:
    """JSON in which `Literal`s stand as they are, and a mapping may name a key twice."""
    if isinstance(value, Literal):
        return value.text
    if isinstance(value, dict):
        items = [f"{json.dumps(str(key))}: {json_text(item, rng)}" for key, item in value.items()]
        if items and rng.random() < 0.01:
            items.insert(rng.randrange(len(items) + 1), rng.choice(items))
        return "{" + ", ".join(items) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join([json_text(item, rng) for item in value]) + "]"
    return json.dumps(value)


def _places(value: Any) -> list[tuple[Any, Any]]:
    found: list[tuple[Any, Any]] = []
    waiting = [value]
    while waiting:
        parent = waiting.pop()
        if isinstance(parent, dict):
            found += [(parent, key) for key in parent]
            waiting += parent.values()
        elif isinstance(parent, list):
            found += [(parent, index) for index in range(len(parent))]
            waiting += parent
    return found


def _hostile(old: Any, rng: random.Random) -> Any:
    what = rng.randrange(8)
    if what <= 1:
        return Literal(rng.choice(_NUMBERS))
    if what == 2:
        return Literal(rng.choice(_LONG_NUMBERS))
    if what <= 4:
        return rng.choice(_NAMES)
    if what == 5:
        depth = rng.choice((30, 200, _DEEP))
        opening, closing = rng.choice((("[", "]"), ('{"a": ', "}")))
        return Literal(opening * depth + "0" + closing * depth)
    if what == 6:
        item = json.dumps(old) if isinstance(old, int | float | str) and len(str(old)) < 20 else "0"
        return Literal("[" + ",".join([item] * rng.choice((0, 1000, MAX_ITEMS))) + "]")
    number = rng.choice((1000, MAX_ITEMS // 4))
    return Literal("{" + ",".join(f'"k{index}": 0' for index in range(number)) + "}")


# Bytes.


def damaged(raw: bytes, rng: random.Random) -> bytes:
    """Bytes that were cut, turned over, overwritten, left out or repeated."""
    found = bytearray(raw)
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        rng.choice(_DAMAGES)(found, rng)
    return bytes(found)


def _cut(raw: bytearray, rng: random.Random) -> None:
    del raw[rng.randint(0, len(raw)) :]


def _flip(raw: bytearray, rng: random.Random) -> None:
    if raw:
        raw[rng.randrange(len(raw))] ^= 1 << rng.randrange(8)


def _flip_near_an_end(raw: bytearray, rng: random.Random) -> None:
    """Where headers and tables of contents are."""
    if raw:
        near = rng.randrange(min(len(raw), 64))
        raw[rng.choice((near, len(raw) - 1 - near))] ^= 1 << rng.randrange(8)


def _overwrite(raw: bytearray, rng: random.Random) -> None:
    start = rng.randint(0, len(raw))
    end = min(len(raw), start + rng.choice((1, 4, 8, 100)))
    raw[start:end] = rng.choice((b"\0", b"\xff", b"[", b'"', b"\n")) * (end - start)


def _leave_out(raw: bytearray, rng: random.Random) -> None:
    start = rng.randint(0, len(raw))
    del raw[start : start + rng.choice((1, 10, 500))]


def _repeat(raw: bytearray, rng: random.Random) -> None:
    start = rng.randint(0, len(raw))
    raw[start:start] = raw[start : start + rng.choice((1, 8, 200))] * rng.choice((1, 3))


def _insert(raw: bytearray, rng: random.Random) -> None:
    start = rng.randint(0, len(raw))
    raw[start:start] = rng.choice((b"\0", b"\xff\xfe", b"\x80", b"\x80\x04.", b"{}", b"PAR1", b"\r\n", b"\x1f\x8b"))


_DAMAGES: tuple[Callable[[bytearray, random.Random], None], ...] = (
    _cut,
    _flip,
    _flip,
    _flip_near_an_end,
    _overwrite,
    _leave_out,
    _repeat,
    _insert,
)


# Lines.


def damaged_lines(raw: bytes, rng: random.Random, *, others: Sequence[bytes] = ()) -> bytes:
    """A log of JSON lines with lines lost, doubled, in another order, of another log, mutated, or cut off."""
    lines = raw.splitlines(keepends=True)
    for _ in range(rng.choice((1, 1, 2, 3))):
        at = rng.randrange(len(lines)) if lines else 0
        match rng.randrange(8):
            case 0 if lines:
                del lines[at]
            case 1 if lines:
                lines.insert(rng.randint(0, len(lines)), lines[at])
            case 2 if lines:
                lines.insert(rng.randrange(len(lines)), lines.pop(at))
            case 3 if others:
                lines.insert(at, rng.choice(others))
            case 4 if lines:
                lines[at] = damaged(lines[at], rng)
            case _ if lines:
                lines[at] = _mutated_line(lines[at], rng)
    whole = b"".join(lines)
    return whole[: rng.randint(0, len(whole))] if rng.random() < 0.1 else whole


def _mutated_line(line: bytes, rng: random.Random) -> bytes:
    try:
        value = json.loads(line)
    except ValueError:
        return damaged(line, rng)
    return hostile_json(value, rng) + b"\n"


# Tensors.


def damaged_tensors(raw: bytes, rng: random.Random) -> bytes:
    """A safetensors file whose table of tensors says other names, types, shapes and places than are there."""
    (length,) = _LENGTH.unpack_from(raw)
    table, values = json.loads(raw[8 : 8 + length]), raw[8 + length :]
    names = [name for name in table if name != "__metadata__"]
    for _ in range(rng.choice((1, 1, 2))):
        name = rng.choice(names)
        entry = table.get(name)
        match rng.randrange(7):
            case 0 if isinstance(entry, dict):
                entry["dtype"] = rng.choice(("F64", "I8", "BF16", "BOOL", "U64", "F8_E4M3", "X", ""))
            case 1 if isinstance(entry, dict):
                entry["shape"] = rng.choice(([2**40], [2**63], [-1], [0], [], [1] * 100, [2**32, 2**32, 1], ["1"]))
            case 2 if isinstance(entry, dict):
                other = table.get(rng.choice(names))
                entry["data_offsets"] = (other or entry).get("data_offsets", [0, 0])
            case 3 if isinstance(entry, dict):
                entry["data_offsets"] = rng.choice(([0, 2**63], [8, 0], [-8, 0], [0], [0, len(values) + 1]))
            case 4:
                table[rng.choice(_NAMES)] = table.pop(name, entry)
            case 5:
                table = hostile_values(table, rng)
            case _:
                table.pop(name, None)
    head = json_text(table, rng).encode("utf-8", "surrogatepass")
    told = len(head) if rng.random() < 0.8 else rng.choice((0, 1, len(head) - 1, len(raw), 2**31, 2**63, 2**64 - 1))
    found = _LENGTH.pack(told) + head + values
    return damaged(found, rng) if rng.random() < 0.1 else found


# Folders.


def lead_astray(file: Path, outside: Path, rng: random.Random) -> str:
    """Put something else in the place of a file; what it is, in a word. `outside` is a file elsewhere."""
    what = rng.choice(("missing", "folder", "pipe", "device", "zeros", "link", "dangling", "loop", "empty", "hole"))
    file.unlink()
    match what:
        case "folder":
            file.mkdir()
        case "pipe":
            os.mkfifo(file)
        case "device":
            file.symlink_to("/dev/zero")
        case "zeros":
            file.symlink_to(rng.choice(("/dev/null", "/dev/full", "/proc/self/environ", "/proc/self/mem")))
        case "link":
            file.symlink_to(outside)
        case "dangling":
            file.symlink_to(outside.with_name("nothing"))
        case "loop":
            file.symlink_to(file.name)
        case "empty":
            file.touch()
        case "hole":
            # As large as it says, and nothing on the disk.
            with file.open("wb") as stream:
                stream.truncate(rng.choice((2**20, 2**30, 2**40)))
        case _:
            pass
    return what
