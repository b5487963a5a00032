"""Loads a task from the user's Python file, and names the user's file and line when the user's code fails.

A task file is the only input that runs code. An exception of that code becomes a `TaskError` with the innermost line of
the user's file. The exception is its cause, so `--debug` can show the whole traceback.
"""

from __future__ import annotations

import contextlib
import importlib.util
import itertools
import re
import sys
import traceback
from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

from autosync.errors import InputError, Problem, TaskError, did_you_mean
from autosync.near_files import near_path_hint
from autosync.specs.task import Task

DEFAULT_NAME = "task"

EXAMPLE = """\
A task says what is trained: a model, a batch, a loss and an optimizer, each a function. For example:
    import autosync, torch
    def task():
        net = lambda: torch.nn.Linear(8, 1)
        data = lambda generator: torch.randn(32, 8, generator=generator)
        loss = lambda model, batch: model(batch).square().mean()
        return autosync.Task(model=net, batch=data, loss=loss, optimizer=torch.optim.Adam, batch_size=32)
The docs have more: docs/task.md."""
"""A whole task file, for a user who has none."""

_TARGET = re.compile(r"(?P<file>.*\.py)(?::(?P<name>.*))?", re.DOTALL)
_load_numbers = itertools.count()
# Modules beside a task file that an earlier load imported: another task file must not reuse them.
_neighbours: set[str] = set()


def is_task(target: str) -> bool:
    """Whether a target names a task (`FILE.py[:NAME]`), not a model spec."""
    return _TARGET.fullmatch(target) is not None


def task_path(target: str) -> Path:
    """Return the file of a target that names a task."""
    match = _TARGET.fullmatch(target)
    assert match is not None, "it names a task"
    return Path(match["file"])


def load_task(target: str) -> Task:
    """Load the task that `FILE.py[:NAME]` names: a function of no arguments that returns a `Task`, or a `Task` itself.

    The file's folder is on the import path while the file is loaded and the function runs. The file's prints go to
    stderr.
    """
    match = _TARGET.fullmatch(target)
    if match is None:
        raise TaskError(f"{target!r} names no task", rule="FILE.py or FILE.py:NAME")
    file, name = match["file"], match["name"]
    if name is None:
        name = DEFAULT_NAME
    if not name.isidentifier():
        raise _error(file, f"{name!r} is no name of a function", rule="FILE.py or FILE.py:NAME", line=1)
    check_task_file(Path(file))
    with import_path(Path(file).resolve().parent):
        module = load_module(file)
        task = _take_task(module, file, name)
    default = Path(file).stem if name == DEFAULT_NAME else f"{Path(file).stem}_{name}"
    return replace(task, name=task.name or default, source=f"{file}:{name}")


def check_task_file(path: Path) -> None:
    """Raise TaskError unless there is a file at this path."""
    if not path.is_file():
        what = "is no file" if path.exists() else "no such file"
        hint = "" if path.exists() else near_path_hint(path)
        raise _error(str(path), what, rule="a task is a function in a Python file", line=0, hint=hint)


class _FreshLoader(SourceFileLoader):
    """Compiles a file's present content and leaves no bytecode beside the file."""

    def get_code(self, fullname: str) -> CodeType:
        path = self.get_filename(fullname)
        return self.source_to_code(self.get_data(path), path)


def load_module(file: str, *, kind: str = "task") -> ModuleType:
    """Load a user's file and return its module, even if it was loaded before. `kind` names its content in errors."""
    module_name = f"autosync_task_{next(_load_numbers)}_{re.sub(r'[^0-9A-Za-z]', '_', Path(file).stem)}"
    loader = _FreshLoader(module_name, str(Path(file).resolve()))
    spec = importlib.util.spec_from_loader(module_name, loader)
    assert spec is not None, "a loader that knows its file makes a spec"
    module = importlib.util.module_from_spec(spec)
    sys.modules[module_name] = module
    try:
        with user_code(file, "importing the file", kind=kind):
            loader.exec_module(module)
    except BaseException:
        del sys.modules[module_name]
        raise
    return module


def _take_task(module: ModuleType, file: str, name: str) -> Task:
    if not hasattr(module, name):
        known = _candidates(module)
        what = f"has no {name}" if name == DEFAULT_NAME else f"has no function {name!r}"
        hint = did_you_mean(name, known)
        rule = f"known: {', '.join(known)}" if known else "a task file has a function task() that returns a Task"
        raise _error(file, what, rule=rule, hint=hint, line=1, example=EXAMPLE)
    value = getattr(module, name)
    if isinstance(value, Task):
        return value
    line = _line_of(value)
    if not callable(value):
        raise _error(file, f"{name} is of type {type(value).__name__}", rule=_RULE, line=line)
    with user_code(file, f"{name}()", line=line):
        task = value()
    if not isinstance(task, Task):
        raise _error(file, f"{name}() returned {_describe_type(task)}", rule=_RULE, line=line)
    return task


_RULE = "must be a function of no arguments that returns a Task, or a Task"


def _describe_type(value: object) -> str:
    return "None" if value is None else f"a value of type {type(value).__name__}"


def _candidates(module: ModuleType) -> list[str]:
    """Return the names of tasks in the file, and of functions that might return a task."""
    return sorted(
        name
        for name, value in vars(module).items()
        if not name.startswith("_")
        and (isinstance(value, Task) or (callable(value) and getattr(value, "__module__", "") == module.__name__))
    )


@contextlib.contextmanager
def import_path(folder: Path) -> Iterator[None]:
    """Put the folder first on the import path during the block, and unload the modules beside earlier tasks."""
    for name in _neighbours:
        sys.modules.pop(name, None)
    _neighbours.clear()
    before = set(sys.modules)
    sys.path.insert(0, str(folder))
    importlib.invalidate_caches()
    try:
        yield
    finally:
        with contextlib.suppress(ValueError):
            sys.path.remove(str(folder))
        for name in set(sys.modules) - before:
            file = getattr(sys.modules[name], "__file__", None)
            if file and Path(file).is_relative_to(folder) and "site-packages" not in Path(file).parts:
                _neighbours.add(name)


@contextlib.contextmanager
def user_code(file: str, doing: str, *, line: int = 1, kind: str = "task") -> Iterator[None]:
    """Turn exceptions of the user's code in this block into TaskErrors with the innermost line of the user's file.

    `doing` names the call in messages. `line` is used if no line of the user's file is on the stack. `kind` is what
    the file holds.
    """
    try:
        # Only autosync writes to stdout, because its output may be one JSON document.
        with contextlib.redirect_stdout(sys.stderr):
            yield
    except InputError as error:
        raise error.located(file, _user_line(error, file) or line) from error
    except SyntaxError as error:
        # Source that the user's code made itself (`eval`) has no file; then the line that ran it is reported.
        has_file = error.filename is not None and Path(error.filename).is_file()
        where = _shown(error.filename or file, file) if has_file else file
        at = error.lineno if has_file and error.lineno else _user_line(error, file) or line
        raise _error(where, f"no Python: {error.msg}", rule=f"a {kind} file is Python", line=at) from error
    except (Exception, SystemExit) as error:
        at = _user_line(error, file)
        hint = _elsewhere(error, file) or _field_hint(error) or _package_hint(error)
        what = f"{doing} raised {type(error).__name__}"
        message = " ".join(_without_pythons_hint(str(error)).split())
        what += f": {message if len(message) <= 400 else message[:397] + '...'}" if message else ""
        raise _error(file, what, rule=f"a {kind}'s code must run", hint=hint, line=at or line) from error


@contextlib.contextmanager
def task_code(task: Task, doing: str, function: Callable[..., Any]) -> Iterator[None]:
    """Do the same as `user_code` for a function of a task, also for a task that the running program made.

    The file is looked up only when an error is raised, because this block is part of every measured step.
    """
    try:
        with contextlib.redirect_stdout(sys.stderr):
            yield
    except (Exception, SystemExit):
        file, line = _place(task, function)
        with user_code(file, doing, line=line):
            raise


def wrong_result(task: Task, function: Callable[..., Any], what: str, *, rule: str, hint: str = "") -> TaskError:
    """Return the error for a function of a task that returned an unusable value."""
    file, line = _place(task, function)
    return _error(file, what, rule=rule, hint=hint, line=line)


def _error(file: str, what: str, *, rule: str, line: int, hint: str = "", example: str = "") -> TaskError:
    return TaskError([Problem(what=what, rule=rule, hint=hint, file=file, line=line, example=example)])


def _user_line(error: BaseException, file: str) -> int:
    """Return the innermost line of the user's file on the error's traceback; 0 if there is none."""
    lines = [frame.lineno or 0 for frame in _frames(error) if _same_file(frame.filename, file)]
    return lines[-1] if lines else 0


def _elsewhere(error: BaseException, file: str) -> str:
    """Return `raised at net.py:12` if a file beside the user's raised the error: the mistake is often there."""
    folder = Path(file).resolve().parent
    for frame in reversed(_frames(error)):
        path = Path(frame.filename)
        if _same_file(frame.filename, file):
            return ""
        if path.is_file() and path.resolve().is_relative_to(folder) and "site-packages" not in path.parts:
            return f"raised at {_shown(frame.filename, file)}:{frame.lineno}"
    return ""


def _field_hint(error: BaseException) -> str:
    """Suggest the nearest field name if `Task(…)` got an unknown field."""
    match = re.search(r"Task\.__init__\(\) got an unexpected keyword argument '(\w+)'", str(error))
    return did_you_mean(match[1], [field.name for field in fields(Task)]) if match else ""


def _without_pythons_hint(message: str) -> str:
    """Cut off the field name that Python 3.13 suggests itself."""
    return re.sub(r"(got an unexpected keyword argument '\w+')\. Did you mean '\w+'\?$", r"\1", message)


def _package_hint(error: BaseException) -> str:
    """Say which Python lacks the package that the user's code imports."""
    is_missing = isinstance(error, ModuleNotFoundError) and error.name is not None
    return f"install it for {sys.executable}" if is_missing else ""


def _frames(error: BaseException) -> list[traceback.FrameSummary]:
    return list(traceback.extract_tb(error.__traceback__))


def _same_file(first: str, second: str) -> bool:
    return Path(first).resolve() == Path(second).resolve()


def _shown(found: str, file: str) -> str:
    """Return the path of a file beside the user's, written in the way the user wrote the path."""
    path = Path(found).resolve()
    folder = Path(file).resolve().parent
    return str(Path(file).parent / path.relative_to(folder)) if path.is_relative_to(folder) else found


def _place(task: Task, function: object) -> tuple[str, int]:
    """Return the file and the line of a function of the task."""
    file = task.source.rpartition(":")[0] or _file_of(function)
    return file, _line_of(function) if _same_file(_file_of(function), file) else 1


def _code_of(function: object) -> Any:
    while hasattr(function, "func"):
        function = function.func
    return getattr(getattr(function, "__func__", function), "__code__", None)


def _file_of(function: object) -> str:
    code = _code_of(function)
    return code.co_filename if code is not None else "<task>"


def _line_of(function: object) -> int:
    code = _code_of(function)
    return code.co_firstlineno if code is not None else 1
