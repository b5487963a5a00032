"""Loads a loop from the user's Python file. Errors name the file as the user did."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from autosync.errors import InputError, Problem, did_you_mean
from autosync.loops.declarations import Records, SerialLoop
from autosync.specs.task_file import import_path, load_module, user_code

_TARGET = re.compile(r"(?P<file>.*\.py)(?::(?P<name>.*))?", re.DOTALL)


def file_of(target: str) -> str:
    """Return the file of a target `FILE.py` or `FILE.py:NAME`."""
    match = _TARGET.fullmatch(target)
    if match is None:
        raise InputError(f"{target!r} names no loop", rule="FILE.py or FILE.py:NAME")
    return match["file"]


def load_loop(target: str) -> SerialLoop:
    """Return the loop of a target `FILE.py[:NAME]`: the one with this name, or the only one in the file."""
    file = file_of(target)
    if not Path(file).is_file():
        what = "is no file" if Path(file).exists() else "no such file"
        raise _error(file, what, rule="a loop is a function in a Python file")
    with naming(target), import_path(Path(file).resolve().parent):
        module = load_module(file, kind="loop")
    found = {name: value for name, value in vars(module).items() if isinstance(value, SerialLoop)}
    name = target[len(file) + 1 :]
    if name in found:
        return found[name]
    known = f"known: {', '.join(sorted(found))}" if found else "a loop is a function under @autosync.loop(...)"
    if name:
        raise _error(file, f"has no loop {name!r}", rule=known, hint=did_you_mean(name, found))
    if len(found) != 1:
        raise _error(file, f"has {len(found)} loops", rule=known, hint=f"name one: {file}:NAME" if found else "")
    return next(iter(found.values()))


@contextlib.contextmanager
def loop_code(loop: SerialLoop, doing: str) -> Iterator[None]:
    """Run a block of the user's code, so that its errors have the user's line. `doing` names the call."""
    with user_code(loop.file, doing, line=loop.line, kind="loop"):
        yield


def records_of(loop: SerialLoop, target: str) -> Records:
    """Return the records of a loop. Errors of the user's code have the user's line."""
    with naming(target), loop_code(loop, "records()"):
        return loop.load_records()


@contextlib.contextmanager
def naming(target: str) -> Iterator[None]:
    """Run a block whose errors name the file as the target does."""
    file = file_of(target)
    whole = str(Path(file).resolve())
    try:
        yield
    except InputError as error:
        if all(problem.file != whole for problem in error.problems):
            raise
        raise type(error)([replace(p, file=file) if p.file == whole else p for p in error.problems]) from error


def _error(file: str, what: str, *, rule: str, hint: str = "") -> InputError:
    return InputError([Problem(what=what, rule=rule, hint=hint, file=file, line=1)])
