"""Prose and tables for people fit the width of a page, and words stay whole."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from autosync.strategy.wording import WIDTH, format_wrapped_table, wrapped

words = st.text("abcdefgh-.,:", min_size=1, max_size=30)
sentences = st.lists(words, min_size=1, max_size=40).map(" ".join)


def test_what_goes_on_of_an_indented_line_is_indented_further() -> None:
    first, second = wrapped(["  what it does: " + "word " * 20])
    assert (len(first) <= WIDTH, second.startswith("    word")) == (True, True)


def test_long_words_and_empty_lines_stay() -> None:
    assert wrapped(["x" * 200, ""]) == ["x" * 200, ""]


@given(st.lists(sentences, max_size=5))
def test_prose_keeps_its_words(lines: list[str]) -> None:
    broken = wrapped(lines)
    assert " ".join(broken).split() == " ".join(lines).split()
    assert all(len(line) <= WIDTH for line in broken)


@given(st.lists(st.tuples(words, words, sentences), min_size=1, max_size=5))
def test_a_table_breaks_its_last_column_only(rows: list[tuple[str, str, str]]) -> None:
    lines = format_wrapped_table(rows, header=("what", "how", "why")).split("\n")
    assert all(len(line) <= WIDTH for line in lines)
    start = lines[0].index("why")
    found = ["".join(f" {line[start:]}" for line in part) for part in _parts(lines[1:], start)]
    assert [one.split() for one in found] == [row[2].split() for row in rows]


def _parts(lines: list[str], start: int) -> list[list[str]]:
    """The lines of each row: a continued line has nothing before the last column."""
    parts: list[list[str]] = []
    for line in lines:
        if line[:start].strip():
            parts.append([])
        parts[-1].append(line)
    return parts
