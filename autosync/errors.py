"""The errors that autosync raises, and the problems that they carry.

    AutosyncError                 the base class; the command line turns it into an exit code, never a traceback
    ├── InputError                the input is wrong (exit 2); one `Problem` for each mistake
    │   ├── DocumentError         a file that cannot be read, parsed or understood
    │   ├── TaskError             a task file without a usable task, or with code that raised an exception
    │   ├── UnknownNameError      an unknown preset, node, variable …; lists the known ones
    │   └── DoesNotApplyError     a preset or strategy that is not possible for this model on this cluster
    └── OperationError            an operation failed (exit 1)
        └── DeadlockError         a plan in which no operation can continue

A `Problem` gives its place twice: `path` is the place in the document (`messages[2].synchroniser.server`); `file` and
`line` are where the user finds it. Code that checks values knows the path; `documents` adds file and line.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

Path = tuple[str | int, ...]

MAX_PROBLEMS = 50
_LONGEST_NAME = 100

# The beginning of a very long name is enough to find it.
_MAX_STEP = 80
_MAX_WHAT = 400
_MAX_RULE = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One mistake: what is wrong, where, which rule it breaks, and what would be right.

    `example` has lines that show what would be right; the command line prints them below the message.
    """

    what: str
    rule: str
    path: Path = ()
    hint: str = ""
    file: str = ""
    line: int = 0
    example: str = ""

    def __str__(self) -> str:
        """Format the problem as `FILE:LINE: PLACE: WHAT (RULE); HINT`, without unknown parts."""
        line = f"{self.line}:" if self.line else ""
        file_and_line = f"{self.file}:{line} " if self.file else ""
        place = f"{format_path(self.path)}: " if self.path else ""
        hint = f"; {_cut(self.hint, _MAX_WHAT)}" if self.hint else ""
        return _one_line(f"{file_and_line}{place}{_cut(self.what, _MAX_WHAT)} ({_cut(self.rule, _MAX_RULE)}){hint}")


def format_path(path: Sequence[str | int]) -> str:
    """Format a path: `("nodes", 1, "gbps")` becomes `nodes[1].gbps`; long keys are cut."""
    text = ""
    for step in path:
        if isinstance(step, int):
            text += f"[{step}]"
        else:
            text += ("." if text else "") + (_cut(step, _MAX_STEP) or "''")
    return text


def first_problems(problems: Sequence[Problem]) -> list[Problem]:
    """Return the first `MAX_PROBLEMS` problems, and if there are more, one more problem that counts the others."""
    shown = list(problems[:MAX_PROBLEMS])
    num_left_out = len(problems) - len(shown)
    if num_left_out:
        last = shown[-1]
        what = f"and {num_left_out} more mistake{'s' if num_left_out > 1 else ''} in this file"
        shown.append(Problem(what=what, rule=f"the first {len(shown)} are shown", file=last.file, line=last.line))
    return shown


def _cut(text: str, length: int) -> str:
    return text if len(text) <= length else text[: length - 3] + "..."


def _one_line(text: str) -> str:
    """Return the text on one line, without control characters."""
    return printable(" ".join(text.split()))


def printable(text: str) -> str:
    """Return the text with control characters escaped as Python escapes them."""
    return text if text.isprintable() else "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


class AutosyncError(Exception):
    """The base class of all errors that autosync raises on purpose."""


class InputError(AutosyncError):
    """The input is wrong: one or more problems, reported together."""

    def __init__(self, problems: Iterable[Problem] | str, *, rule: str = "", hint: str = "") -> None:
        if isinstance(problems, str):
            problems = [Problem(what=problems, rule=rule or "input must be usable", hint=hint)]
        self.problems: tuple[Problem, ...] = tuple(problems)
        super().__init__("\n".join(str(problem) for problem in self.problems))

    def located(self, file: str, line: int) -> InputError:
        """Return the same error, with file and line added to problems that have none yet."""
        placed = [p if p.file else replace(p, file=file, line=line) for p in self.problems]
        error = type(self).__new__(type(self))
        InputError.__init__(error, placed)
        return error

    def within(self, *path: str | int) -> InputError:
        """Return the same error with `path` before each problem's path, for a value inside another value."""
        error = type(self).__new__(type(self))
        InputError.__init__(error, [replace(p, path=(*path, *p.path)) for p in self.problems])
        return error


class DocumentError(InputError):
    """A file cannot be read, parsed or understood."""


class TaskError(InputError):
    """A task file has no usable task, or its code raised an exception."""


class DoesNotApplyError(InputError):
    """A preset or strategy is not possible for this model on this cluster; the problem says why."""


class UnknownNameError(InputError):
    """An unknown name. The message lists the known names and suggests the nearest one, also of `others` not listed."""

    def __init__(
        self, what: str, name: str, known: Iterable[str], *, path: Path = (), others: Iterable[str] = ()
    ) -> None:
        names = sorted(known)
        super().__init__(
            [
                Problem(
                    what=f"unknown {what} {name!r}",
                    rule=f"known: {', '.join(names) if names else 'none'}",
                    hint=did_you_mean(name, [*names, *others]),
                    path=path,
                )
            ]
        )


class OperationError(AutosyncError):
    """An operation failed, although the input is well-formed (exit code 1)."""


class DeadlockError(OperationError):
    """No operation of a plan can continue although the plan is not finished."""


def nearest(name: str, known: Iterable[str]) -> str:
    """Return the known name that is most similar to a name; empty if none is similar."""
    if len(name) > _LONGEST_NAME:
        return ""
    near = difflib.get_close_matches(name, list(known), n=1, cutoff=0.6)
    return near[0] if near else ""


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return `did you mean 'gbps'?` if a known name is similar, else an empty text."""
    near = nearest(name, known)
    return f"did you mean {near!r}?" if near else ""
