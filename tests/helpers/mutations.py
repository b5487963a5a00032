"""Files as no user means to write them: random mutations of a YAML or JSON text.

Whatever becomes of a text, reading it must end in a value or in a `DocumentError` whose problems name file and line.
Tests of every kind of file we read draw their mutants from here: `mutations` of the text, or `value_mutations` of what
it holds, which are always well-formed and so get further. A mutant may hold half a surrogate pair: the bytes of
its file are `mutations(text, rng).encode("utf-8", "surrogatepass")`.
"""

from __future__ import annotations

import copy
import random
import re
from collections.abc import Callable
from typing import Any

MAX_LENGTH = 200_000
"""Mutants stay shorter than this (or than their original), so that a run of thousands ends."""

_CHARACTERS: list[str] = [
    *"\t\n\r\"'#%&*,-.:;<=>?@[]\\`{|}~! 0aé∞",
    *"\0\x01\x07\x1b\x7f\x85\xa0\u2028\u200b\ufeff\ufffe\ud800😀",
    "\r\n",
    "---\n",
    "...\n",
    "<<: ",
    "%YAML 1.2\n",
    "!!python/object:os.system ",
]
_VALUES = [
    *(
        "",
        "~",
        "null",
        "true",
        "yes",
        "0",
        "-1",
        "1",
        "00",
        "0x1F",
        "1_000",
        "12:30",
        "2026-11-21",
        "2.5",
        "1e3",
        "-0.0",
    ),
    *(".inf", "NaN", "1e400", "1e-400", "9" * 25, "9" * 400, "1." + "1" * 400, "9223372036854775808"),
    *(
        "[]",
        "{}",
        "[1, 2]",
        "{a: 1}",
        "{kind: 1}",
        "'1'",
        '"x"',
        "word",
        "two words",
        "4 MB",
        "-5 Mbit/s",
        "1e999999999 B",
    ),
    *(
        "&a x",
        "*a",
        "!x y",
        "!!int 1",
        "|\n  block",
        ">\n  folded",
        '"\\ud800"',
        '"\\0"',
        '"\\e[31m"',
        "(x) (y",
        "a (b",
        "x" * 5000,
    ),
]
_SCALAR = re.compile(r"(?<=[:,\[\-] )[^\s,\]\}\[\{]+")
_WORD = re.compile(r"[A-Za-z_]{2,}")

_Mutation = Callable[[str, random.Random], str]


def mutations(text: str, rng: random.Random) -> str:
    """The text after one to four random mutations."""
    limit = max(MAX_LENGTH, len(text))
    for _ in range(rng.choice((1, 1, 1, 2, 3, 4))):
        text = rng.choice(_MUTATIONS)(text, rng)[:limit]
    return text


def value_mutations(value: Any, rng: random.Random) -> Any:
    """Plain values after one to three random mutations; at its outside a mapping or a list, as the original."""
    mutant = copy.deepcopy(value)
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        places = _places(mutant)
        if places:
            parent, key = rng.choice(places)
            rng.choice(_VALUE_MUTATIONS)(parent, key, places, rng)
    return mutant


_Place = tuple[Any, Any]
"""A mapping or a list, and a key or an index of it."""


def _places(value: Any) -> list[_Place]:
    """Every place in the value that something stands at."""
    found: list[_Place] = []
    waiting = [value]
    while waiting:
        parent = waiting.pop()
        if isinstance(parent, dict | list):
            keys: Any = list(parent) if isinstance(parent, dict) else range(len(parent))
            found += [(parent, key) for key in keys]
            waiting += [parent[key] for key in keys]
    return found


def _take_out(parent: Any, key: Any, _places: list[_Place], _rng: random.Random) -> None:
    del parent[key]


def _put_odd(parent: Any, key: Any, _places: list[_Place], rng: random.Random) -> None:
    parent[key] = copy.deepcopy(rng.choice(_ODD))


def _put_another(parent: Any, key: Any, places: list[_Place], rng: random.Random) -> None:
    """What stands elsewhere, here too: a known thing where it does not belong."""
    other, there = rng.choice(places)
    parent[key] = copy.deepcopy(other[there])


def _exchange(parent: Any, key: Any, places: list[_Place], rng: random.Random) -> None:
    other, there = rng.choice(places)
    # Copies, for one may hold the other.
    mine, theirs = copy.deepcopy(parent[key]), copy.deepcopy(other[there])
    parent[key], other[there] = theirs, mine


def _rename_or_repeat(parent: Any, key: Any, places: list[_Place], rng: random.Random) -> None:
    if isinstance(parent, list):
        parent.insert(rng.randint(0, len(parent)), copy.deepcopy(parent[key]))
    else:
        parent[str(rng.choice(places)[1])] = parent.pop(key)


def _change_number(parent: Any, key: Any, _places: list[_Place], rng: random.Random) -> None:
    number = parent[key]
    if isinstance(number, int | float) and not isinstance(number, bool):
        parent[key] = rng.choice((number + 1, number - 1, number * 2, -number, number * 10**9))


_ValueMutation = Callable[[Any, Any, list[_Place], random.Random], None]
_VALUE_MUTATIONS: tuple[_ValueMutation, ...] = (
    _take_out,
    _put_odd,
    _put_another,
    _exchange,
    _rename_or_repeat,
    _change_number,
)
_ODD: list[Any] = [
    *(None, True, False, "", "x", "0", "1 B", "1e300 B", "1e3 Gbit/s"),
    *(0, 1, -1, 2, 3, 7, 64, 4096, 10**6, 2**31, 2**63 - 1, 2**63, 10**30, 0.0, -0.0, 0.5, 1.5, 1e-300, 1e300),
    *([], {}, [[]], ["x"], [0], {"a": 1}),
]


def _delete_characters(text: str, rng: random.Random) -> str:
    start = rng.randint(0, len(text))
    return text[:start] + text[start + rng.choice((1, 1, 2, 5, 40)) :]


def _insert_character(text: str, rng: random.Random) -> str:
    position = rng.choice((0, len(text), rng.randint(0, len(text))))
    return text[:position] + rng.choice(_CHARACTERS) * rng.choice((1, 1, 1, 3)) + text[position:]


def _swap_character(text: str, rng: random.Random) -> str:
    position = rng.randint(0, len(text))
    return text[:position] + rng.choice(_CHARACTERS) + text[position + 1 :]


def _duplicate_characters(text: str, rng: random.Random) -> str:
    start = rng.randint(0, len(text))
    end = start + rng.choice((1, 2, 10))
    return text[:end] + text[start:end] + text[end:]


def _cut(text: str, rng: random.Random) -> str:
    """What a full disk or a lost connection leaves."""
    return text[: rng.randint(0, len(text))]


def _on_lines(change: Callable[[list[str], int, random.Random], None]) -> _Mutation:
    def mutate(text: str, rng: random.Random) -> str:
        lines = text.splitlines(keepends=True) or [""]
        change(lines, rng.randrange(len(lines)), rng)
        return "".join(lines)

    return mutate


def _delete_lines(lines: list[str], at: int, rng: random.Random) -> None:
    del lines[at : at + rng.choice((1, 1, 1, 2, 5))]


def _duplicate_lines(lines: list[str], at: int, rng: random.Random) -> None:
    count = rng.choice((1, 1, 2, 5))
    lines[at:at] = lines[at : at + count] * rng.choice((1, 1, 20))


def _move_line(lines: list[str], at: int, rng: random.Random) -> None:
    lines.insert(rng.randrange(len(lines)), lines.pop(at))


def _indent_line(lines: list[str], at: int, rng: random.Random) -> None:
    lines[at] = rng.choice((" ", "  ", "\t", "    ")) + lines[at]


def _outdent_line(lines: list[str], at: int, rng: random.Random) -> None:
    lines[at] = lines[at].removeprefix(rng.choice((" ", "  ", "- ", "    ")))


def _deepen_line(lines: list[str], at: int, rng: random.Random) -> None:
    depth = rng.choice((10, 50, 2000))
    opening, closing = rng.choice((("[", "]"), ("{a: ", "}"), ("- ", ""), ("? ", ""), ('{"a": ', "}")))
    lines[at] = opening * depth + lines[at].strip() + closing * rng.choice((0, depth)) + "\n"


def _swap_value(text: str, rng: random.Random) -> str:
    return _replace_one(_SCALAR, text, rng, rng.choice(_VALUES))


def _swap_word(text: str, rng: random.Random) -> str:
    """A word of the text in the place of another: a known name where it does not belong."""
    return _replace_one(_WORD, text, rng, rng.choice(_WORD.findall(text) or ["word"]))


def _misspell(text: str, rng: random.Random) -> str:
    found = list(_WORD.finditer(text))
    if not found:
        return text
    match = rng.choice(found)
    letters = list(match[0])
    at = rng.randrange(len(letters))
    letters[at] = rng.choice(("", letters[at] * 2, letters[at].swapcase(), "x", "_"))
    return text[: match.start()] + "".join(letters) + text[match.end() :]


def _lengthen_word(text: str, rng: random.Random) -> str:
    return _replace_one(_WORD, text, rng, rng.choice(("k", "é", "a b ")) * rng.choice((100, 1025, 20_000)))


def _replace_one(pattern: re.Pattern[str], text: str, rng: random.Random, new: str) -> str:
    found = list(pattern.finditer(text))
    if not found:
        return text + new
    match = rng.choice(found)
    return text[: match.start()] + new + text[match.end() :]


def _crlf(text: str, rng: random.Random) -> str:
    return text.replace("\n", rng.choice(("\r\n", "\r", "\n\n", "\u2028")))


def _tabs(text: str, rng: random.Random) -> str:
    return text.replace(rng.choice(("  ", "    ")), "\t")


def _byte_order_mark(text: str, rng: random.Random) -> str:
    return "\ufeff" * rng.choice((1, 2)) + text


def _again(text: str, rng: random.Random) -> str:
    return text + rng.choice(("", "\n", "---\n", "...\n")) + text


_MUTATIONS: tuple[_Mutation, ...] = (
    _delete_characters,
    _insert_character,
    _swap_character,
    _duplicate_characters,
    _cut,
    _on_lines(_delete_lines),
    _on_lines(_duplicate_lines),
    _on_lines(_move_line),
    _on_lines(_indent_line),
    _on_lines(_outdent_line),
    _on_lines(_deepen_line),
    # Most mistakes are values and names: these weigh more.
    *(_swap_value, _swap_word, _misspell) * 3,
    _lengthen_word,
    _crlf,
    _tabs,
    _byte_order_mark,
    _again,
)
