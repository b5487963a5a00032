"""Messages about processes that ended or could not start."""

from __future__ import annotations

import re
import signal

LEAST_PYTHON = (3, 11)
"""The oldest Python that autosync runs in."""


def signal_name(number: int) -> str:
    """Return the name of a signal."""
    return signal.Signals(number).name if number in set(signal.Signals) else f"signal {number}"


def no_python_message(python: str, said: str) -> str:
    """Return the message for a node that lacks the Python of the cluster file; `said` is the output of the attempt."""
    return f"no Python at {python}: say `python: PATH` in the cluster file ({said[-300:]})"


def is_old_python(version: str) -> bool:
    """Return whether autosync cannot run in a version of Python; no if the version is not known."""
    numbers = re.match(r"(\d+)\.(\d+)", version, re.ASCII)
    return numbers is not None and (int(numbers[1]), int(numbers[2])) < LEAST_PYTHON


def old_python_message(python: str, version: str) -> str:
    """Return the message for a node whose Python is too old."""
    return f"{python} is Python {version}; autosync needs {'.'.join(map(str, LEAST_PYTHON))} or later"


def exit_message(code: int) -> str:
    """Describe an exit code of `subprocess`, which is negative if a signal ended the process."""
    return f"exit code {code}" if code >= 0 else f"killed by {signal_name(-code)}"
