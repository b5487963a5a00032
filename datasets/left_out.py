"""Keeps the unreadable entries of a dataset in a file beside it, with the reasons, so that nothing is lost."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from autosync import jsonio
from autosync.errors import Problem

LEFT_OUT_FILE = "left_out.jsonl"


def write_left_out(problems: Iterable[Problem], folder: Path) -> int:
    """Write the unreadable entries to a new `left_out.jsonl` in a folder; return the number of lines or rows."""
    entries = list(_entries(problems))
    (folder / LEFT_OUT_FILE).unlink(missing_ok=True)
    if entries:
        jsonio.append_json_lines(folder / LEFT_OUT_FILE, entries)
    return len(entries)


def _entries(problems: Iterable[Problem]) -> Iterator[dict[str, Any]]:
    """Yield an entry for each place: file, line, the text of the line in a text file, and all its problems."""
    by_file: dict[str, dict[int, list[str]]] = {}
    for problem in problems:
        by_file.setdefault(problem.file, {}).setdefault(problem.line, []).append(str(problem))
    for file, by_line in by_file.items():
        texts = _lines(Path(file), set(by_line))
        for line, told in by_line.items():
            # A file's name may have bytes that are not text.
            name = file.encode(errors="backslashreplace").decode()
            yield {"file": name, "line": line, "problems": told, "text": texts.get(line)}


def _lines(path: Path, wanted: set[int]) -> dict[int, str]:
    if path.suffix == ".parquet" or not path.is_file() or path.is_symlink():
        return {}
    with path.open("rb") as file:
        lines = enumerate(itertools.islice(file, max(wanted)), start=1)
        return {number: line.decode(errors="backslashreplace") for number, line in lines if number in wanted}
