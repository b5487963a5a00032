"""How a process ended, or why it could not begin, in words."""

from __future__ import annotations

import signal


def name_of(number: int) -> str:
    """A signal's name."""
    return signal.Signals(number).name if number in set(signal.Signals) else f"signal {number}"


def no_python(python: str, said: str) -> str:
    """What to do where a machine has no such Python, and what was said there."""
    return f"no Python at {python}: say `python: PATH` in the cluster file ({said[-300:]})"


def how_it_ended(code: int) -> str:
    """An exit code as `subprocess` has it: below zero where a signal ended the process."""
    return f"exit code {code}" if code >= 0 else f"killed by {name_of(-code)}"
