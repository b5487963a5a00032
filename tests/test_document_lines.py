"""The lines and spellings of a document's values, in the document's own form."""

from __future__ import annotations

import pytest

from autosync import syntax
from autosync.document_lines import LineTree, ValueLines, ValueSpellings, below

_TEXT = "a:\n  - 1\n  - {b: 007, c: ~}\nd: 1.50\n"


def test_tables_have_all_paths() -> None:
    parsed = syntax.parse_yaml(_TEXT, file="f.yaml")
    assert parsed.lines == {
        (): 1,
        ("a",): 1,
        ("a", 0): 2,
        ("a", 1): 3,
        ("a", 1, "b"): 3,
        ("a", 1, "c"): 3,
        ("d",): 4,
    }
    assert len(parsed.lines) == 7
    assert parsed.spellings == {("a", 1, "c"): "~", ("d",): "1.50"}
    assert len(parsed.spellings) == 2


def test_what_is_below_a_key_has_its_own_paths() -> None:
    parsed = syntax.parse_yaml(_TEXT, file="f.yaml")
    assert below(parsed.lines, "a") == {(): 1, (0,): 2, (1,): 3, (1, "b"): 3, (1, "c"): 3}
    assert below(parsed.spellings, "a") == {(1, "c"): "~"}
    assert below(parsed.lines, "e") == {}
    assert below({("a", 1): 5, ("b",): 6}, "a") == {(1,): 5}


@pytest.mark.parametrize("path", [("b",), (0,), ("a", "x"), ("a", 5), ("a", 0, "x"), ("d", 0)])
def test_paths_that_are_not_there_have_no_line(path: tuple[str | int, ...]) -> None:
    lines = ValueLines(LineTree(1, {"a": LineTree(2, [3]), "d": (4, "1.50")}))
    assert path not in lines
    assert lines.get(path) is None
    assert path not in ValueSpellings(lines.root)
