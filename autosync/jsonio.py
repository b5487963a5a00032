"""JSON as autosync writes it: canonical for hashes, whole files replaced at once, logs appended line by line."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from autosync.errors import DocumentError, Problem


def canonical_json(value: Any) -> str:
    """One text per value: keys sorted, no spaces, NaN refused."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False, ensure_ascii=False)


def content_hash(value: Any, *, length: int = 16) -> str:
    """The first `length` hex digits of the SHA-256 of the canonical JSON."""
    return hashlib.sha256(canonical_json(value).encode()).hexdigest()[:length]


def write_text(path: Path, text: str) -> None:
    """Replace a file as a whole: a reader, or a crash, sees the old text or the new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        Path(temporary).chmod(0o644)
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def write_json(path: Path, value: Any) -> None:
    """Write one JSON document, indented for people."""
    write_text(path, json.dumps(value, indent=2, allow_nan=False, ensure_ascii=False) + "\n")


def append_json_line(path: Path, value: Any) -> None:
    """Append one line and wait until the disk has it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as file:
        file.write(canonical_json(value) + "\n")
        file.flush()
        os.fsync(file.fileno())


def read_json_lines(path: Path) -> Iterator[Any]:
    """The values of a file of JSON lines. A torn last line (a crash while appending) is left out; any other is an error."""
    lines = path.read_text(encoding="utf-8").split("\n")
    for number, line in enumerate(lines, start=1):
        if not line:
            continue
        try:
            yield json.loads(line)
        except json.JSONDecodeError as error:
            if number == len(lines):
                return
            raise DocumentError(
                [
                    Problem(
                        what=f"no JSON: {error.msg}",
                        rule="one JSON value a line",
                        file=str(path),
                        line=number,
                    )
                ]
            ) from error
