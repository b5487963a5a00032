"""Reads and writes JSON: canonical text for hashes, files that are replaced as a whole, logs of JSON lines."""

from __future__ import annotations

import contextlib
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

from autosync import disk_errors
from autosync.errors import DocumentError, Problem

# Characters that are legal in JSON, but that YAML readers refuse or take for line ends.
_ESCAPED = re.compile(r"[\x7f-\x9f\u2028\u2029\ufeff\ufffe\uffff\ud800-\udfff]")
_TAIL_BYTES = 2**16
MAX_LINE_BYTES = 8 * 2**20
"""The longest line of JSON. The record of a strategy with thousands of messages is a tenth as long."""
MAX_LINE_VALUES = 500_000
"""The most values and keys of a line. Records of strategies with thousands of messages have over 100,000."""
MAX_EMPTY_LINES = 10_000
LINE_RULE = f"at most {MAX_LINE_BYTES} bytes a line, {MAX_EMPTY_LINES} empty lines"

# An unclosed quote makes one string up to the end: it is scanned once, and the parser refuses it.
_QUOTED = re.compile(r'"(?:[^"\\]++|\\.)*+"?', re.DOTALL)


def canonical_json(value: Any) -> str:
    """Format a value as JSON in which equal values give equal text: sorted keys, no spaces, no NaN."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False, ensure_ascii=False)


def indented_json(value: Any) -> str:
    """Format a value as an indented JSON document for people; the text is also YAML."""
    text = json.dumps(value, indent=2, allow_nan=False, ensure_ascii=False)
    return _ESCAPED.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def content_hash(value: Any, *, length: int = 16) -> str:
    """Return the first `length` hex digits of the SHA-256 of the canonical JSON."""
    return hashlib.sha256(canonical_json(value).encode()).hexdigest()[:length]


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """Open a new file for writing that replaces `path` at the end of the block.

    So readers find the old or the new file, even after a crash, and never a part. A target that is no file (a pipe,
    /dev/stdout) is written directly: replacing it would cut its reader off.
    """
    if path.exists() and not path.is_file():
        with disk_errors.naming_file(path), path.open("wb") as file:
            yield file
        return
    # A link stays; the file that it leads to is replaced.
    target = path.resolve()
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = target.parent / f".autosync-{secrets.token_hex(8)}"
    try:
        with disk_errors.naming_file(path), temporary.open("xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(target)
    except BaseException as error:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        if isinstance(error, OSError) and error.filename == str(temporary):
            # Errors must name the final file, not the temporary one.
            raise OSError(error.errno, error.strerror, str(path)) from error
        raise


def write_text(path: Path, text: str) -> None:
    """Replace a file as a whole; see `replacing`."""
    with replacing(path) as file:
        file.write(text.encode())


def write_json(path: Path, value: Any) -> None:
    """Write one JSON document, indented for people."""
    write_text(path, indented_json(value) + "\n")


def append_json_line(path: Path, value: Any) -> None:
    """Append one line and wait until it is on disk. If a crash left a torn last line, that line is removed first."""
    append_json_lines(path, [value])


def append_json_lines(path: Path, values: Iterable[Any]) -> None:
    """Append lines and wait once until all are on disk; after a crash, only the first lines may be there."""
    lines = [canonical_json(value).encode() + b"\n" for value in values]
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a+b") as file:
        # Lock: a process must not take another's half-written line for a torn one.
        fcntl.flock(file, fcntl.LOCK_EX)
        _mend(file)
        file.writelines(lines)
        file.flush()
        os.fsync(file.fileno())


def _mend(file: IO[bytes]) -> None:
    """Repair the last line if its line end is missing: add the line end if the line is whole, else remove the line."""
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
        parse(last)
    except ValueError:
        file.truncate(end - len(last))
    else:
        file.write(b"\n")


def lines_of(file: BinaryIO) -> Iterator[bytes]:
    """Yield the lines of a file with their line ends; raise ValueError if a line is too long or too many are empty."""
    num_empty = 0
    while line := file.readline(MAX_LINE_BYTES + 1):
        if len(line) > MAX_LINE_BYTES:
            raise ValueError(f"a line of more than {MAX_LINE_BYTES} bytes")
        num_empty += line.isspace()
        if num_empty > MAX_EMPTY_LINES:
            raise ValueError(f"more than {MAX_EMPTY_LINES} empty lines")
        yield line


def read_json_lines(path: Path) -> Iterator[Any]:
    """Yield the values of a file of JSON lines. A torn last line is left out; a torn line before it is an error."""
    number = 0
    try:
        with disk_errors.open_input(path) as file:
            for number, line in enumerate(lines_of(file), start=1):
                if not line.strip():
                    continue
                try:
                    value = parse(line)
                except ValueError as error:
                    if not line.endswith(b"\n"):
                        return
                    raise _unreadable(f"no JSON: {error}", "one JSON value a line", path, number) from error
                yield value
    except OSError as error:
        raise _unreadable(f"cannot be read: {error.strerror}", "must be a readable file", path, 0) from error
    except ValueError as error:
        raise _unreadable(str(error), LINE_RULE, path, number + 1) from error


def num_values(text: str) -> int:
    """Return an upper limit on the number of values and keys in a text.

    Each of them except the first follows one of the counted characters.
    """
    return 1 + text.count(",") + text.count(":") + text.count("[") + text.count("{")


def parse(text: bytes | str, *, most: int = MAX_LINE_VALUES) -> Any:
    """Parse a JSON text; raise ValueError with a message for the user if it is not JSON.

    A text with more than `most` values and keys is refused before it is parsed.
    """
    try:
        text = text if isinstance(text, str) else text.decode()
        if num_values(text) > most and num_values(_QUOTED.sub("", text)) > most:
            raise ValueError(f"more than {most:,} values and keys")
        return json.loads(text, parse_constant=_no_constant)
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
