"""Loads a dataset from the user's Python file. Errors name the file as the user did."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from autosync.errors import InputError, Problem, did_you_mean
from autosync.near_files import near_path_hint
from autosync.specs.task_file import import_path, load_module, user_code

_TARGET = re.compile(r"(?P<file>.*\.py):(?P<name>.+)", re.DOTALL)
_RULE = "a dataset with __len__ and __getitem__, or a function of no arguments that returns one"


def load_dataset(target: str) -> Any:
    """Return the dataset that `FILE.py:NAME` names. The file is run; its prints go to stderr."""
    match = _TARGET.fullmatch(target)
    if match is None:
        raise InputError(f"{target!r} names no dataset", rule="FILE.py:NAME")
    file, name = match["file"], match["name"]
    if not Path(file).is_file():
        what = "is no file" if Path(file).exists() else "no such file"
        raise _error(file, what, rule="a dataset is made in a Python file", hint=near_path_hint(file))
    with import_path(Path(file).resolve().parent):
        module = load_module(file, kind="dataset")
        if not hasattr(module, name):
            known = [one for one in vars(module) if not one.startswith("_")]
            raise _error(file, f"has no {name!r}", rule=_RULE, hint=did_you_mean(name, known))
        value = getattr(module, name)
        if callable(value) and not hasattr(value, "__getitem__"):
            with user_code(file, f"{name}()", kind="dataset"):
                value = value()
    if not hasattr(value, "__len__") or not hasattr(value, "__getitem__"):
        raise _error(file, f"{name} gives a value of type {type(value).__name__}", rule=_RULE)
    return value


def _error(file: str, what: str, *, rule: str, hint: str = "") -> InputError:
    return InputError([Problem(what=what, rule=rule, hint=hint, file=file, line=1)])
