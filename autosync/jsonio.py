"""JSON as autosync writes it: canonical for hashes, whole files replaced at once, logs appended line by line."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import secrets
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, BinaryIO, NoReturn

from autosync.errors import DocumentError, Problem

# Legal in JSON, but YAML readers refuse these raw, or take them for the end of a line.
_ESCAPED = re.compile(r"[\x7f-\x9f\u2028\u2029\ufeff\ufffe\uffff\ud800-\udfff]")
_TAIL_BYTES = 2**16


def canonical_json(value: Any) -> str:
    """One text per value: keys sorted, no spaces, NaN refused."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False, ensure_ascii=False)


def indented_json(value: Any) -> str:
    """One JSON document for people, which a YAML reader can read too."""
    text = json.dumps(value, indent=2, allow_nan=False, ensure_ascii=False)
    return _ESCAPED.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def content_hash(value: Any, *, length: int = 16) -> str:
    """The first `length` hex digits of the SHA-256 of the canonical JSON."""
    return hashlib.sha256(canonical_json(value).encode()).hexdigest()[:length]


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """A file to write to that takes its name when all is written: a reader, or a crash, sees the old or the new one.

    Something else than a file (a pipe, /dev/stdout) is written to: replacing it would take it away from who listens.
    """
    if path.exists() and not path.is_file():
        with path.open("wb") as file:
            yield file
        return
    # Through a link to the file itself: the link stays.
    target = path.resolve()
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = target.parent / f".autosync-{secrets.token_hex(8)}"
    try:
        with temporary.open("xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(target)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def write_text(path: Path, text: str) -> None:
    """Replace a file as a whole; see `replacing`."""
    with replacing(path) as file:
        file.write(text.encode())


def write_json(path: Path, value: Any) -> None:
    """Write one JSON document, indented for people."""
    write_text(path, indented_json(value) + "\n")


def append_json_line(path: Path, value: Any) -> None:
    """Append one line and wait until the disk has it. What a crash left of a line before it is taken away."""
    append_json_lines(path, [value])


def append_json_lines(path: Path, values: Iterable[Any]) -> None:
    """Append lines and wait once until the disk has them all; a crash before that leaves the first of them."""
    lines = [canonical_json(value).encode() + b"\n" for value in values]
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a+b") as file:
        # Two processes that append at once must not see each other's half line as one that a crash left.
        fcntl.flock(file, fcntl.LOCK_EX)
        _mend(file)
        file.writelines(lines)
        file.flush()
        os.fsync(file.fileno())


def _mend(file: IO[bytes]) -> None:
    """End the last line of a file if it is whole, cut it off if it is torn."""
    end = file.seek(0, os.SEEK_END)
    tail, start = b"", end
    while start > 0 and b"\n" not in tail:
        start = max(0, start - _TAIL_BYTES)
        file.seek(start)
        tail = file.read(end - start)
    last = tail[tail.rfind(b"\n") + 1 :]
    if not last:
        return
    try:
        _parse(last)
    except ValueError:
        file.truncate(end - len(last))
    else:
        file.write(b"\n")


def read_json_lines(path: Path) -> Iterator[Any]:
    """The values of a file of JSON lines. A torn last line (a crash while appending) is left out; no other may be."""
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file, start=1):
                if not line.strip():
                    continue
                try:
                    value = _parse(line)
                except ValueError as error:
                    if not line.endswith(b"\n"):
                        return
                    raise _unreadable(f"no JSON: {error}", "one JSON value a line", path, number) from error
                yield value
    except OSError as error:
        raise _unreadable(f"cannot be read: {error.strerror}", "must be a readable file", path, 1) from error


def _parse(line: bytes) -> Any:
    """The value of one line; ValueError, in words for the user, for whatever it is instead."""
    try:
        return json.loads(line.decode(), parse_constant=_no_constant)
    except json.JSONDecodeError as error:
        raise ValueError(error.msg) from error
    except UnicodeDecodeError as error:
        raise ValueError("not UTF-8 text") from error
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


def _no_constant(word: str) -> NoReturn:
    raise ValueError(f"{word} is no finite number")


def _unreadable(what: str, rule: str, path: Path, line: int) -> DocumentError:
    return DocumentError([Problem(what=what, rule=rule, file=str(path), line=line)])
