"""Runs command lines in this process and judges how they end; used by the kinds of `kinds.py`."""

from __future__ import annotations

import contextlib
import io
import json
import re
from collections.abc import Sequence
from pathlib import Path

from autosync.cli.main import run
from benchmarks.fuzz.kinds import Failure

_LINE = re.compile(r"error: (?P<file>\S+?):(?P<line>\d+): (?P<what>.+?) ?\((?P<rule>.+)\)(; .+)?")


def command(arguments: Sequence[str], *, handed_in: Sequence[str] = ()) -> str:
    """Run a command line; return how it ended. With files `handed_in`, each mistake must name a line of one of them."""
    return judge(arguments, *captured(arguments), handed_in=handed_in)


def judge(arguments: Sequence[str], code: int, out: str, err: str, *, handed_in: Sequence[str] = ()) -> str:
    """Return how a command line ended, by its exit code and output; raise `Failure` if it may not end like this."""
    asked = " ".join(arguments)[:300]
    lines = err.removesuffix("\n").split("\n") if err else []
    if code not in {0, 1, 2}:
        raise Failure(f"{asked}: exit {code}, stderr {err[-500:]!r}")
    for line in lines:
        if not line.isprintable():
            raise Failure(f"{asked}: what a terminal would obey: {line[:500]!r}")
    if "this is a bug in autosync" in err or "Traceback" in err:
        raise Failure(f"{asked}: {err[-700:]!r}")
    if code == 0:
        if "--json" in arguments:
            _one_document(arguments, out)
        if handed_in and err:
            raise Failure(f"{asked}: exit 0, stderr {err[:500]!r}")
        return "taken"
    if not any(line.startswith("error: ") for line in lines):
        raise Failure(f"{asked}: exit {code} without an error: {err[:500]!r}")
    if handed_in:
        if code != 2 or out:
            raise Failure(f"{asked}: exit {code}, stdout {out[:200]!r}, stderr {err[:500]!r}")
        for line in lines:
            _check_place(line, handed_in)
    return "refused"


def _one_document(arguments: Sequence[str], out: str) -> None:
    try:
        json.loads(out)
    except ValueError as error:
        raise Failure(f"{list(arguments)}: stdout is no JSON document: {out[:200]!r}") from error


def _check_place(line: str, handed_in: Sequence[str]) -> None:
    match = _LINE.fullmatch(line)
    if match is None:
        raise Failure(f"no line of the right form: {line[:500]!r}")
    if match["file"] not in handed_in:
        raise Failure(f"another file than was handed in: {line[:500]!r}")
    # The parsers count more kinds of line ends than \n.
    num_lines = len(Path(match["file"]).read_bytes().decode("utf-8", "replace").splitlines()) + 1
    if not 1 <= int(match["line"]) <= num_lines:
        raise Failure(f"a line that the file of {num_lines} lines does not have: {line[:500]!r}")


def captured(arguments: Sequence[str]) -> tuple[int, str, str]:
    """Run a command; return its exit code and output, through streams like those of a terminal."""
    out, err = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8", errors="backslashreplace") for _ in range(2))
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = run(list(arguments))
    texts = []
    for stream in (out, err):
        stream.flush()
        buffer = stream.buffer
        assert isinstance(buffer, io.BytesIO), "made above"
        texts.append(buffer.getvalue().decode("utf-8"))
    return code, texts[0], texts[1]
