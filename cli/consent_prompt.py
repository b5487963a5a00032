"""Asks for consent: programs and machines that a received file names are used only if the user agrees.

The option `--trust` agrees in advance.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import TYPE_CHECKING

import click

from autosync.cli.output import note

if TYPE_CHECKING:
    from collections.abc import Sequence

    from autosync.specs.consent import Consent, FileAction

trust_option = click.option(
    "--trust", is_flag=True, help="Run what the file names (programs, images, machines) without a question."
)

TOLD = "would be asked for first, or takes --trust:"
"""The line in a dry run above the actions that a file names."""


def consent_of(*, trust: bool | None) -> Consent:
    """Return the function that asks for consent.

    With `trust` it agrees, at a terminal it asks the user, and elsewhere it refuses. `trust` is None for a command
    without this option.
    """
    from autosync.specs.consent import agree, refuse

    if trust:
        return agree
    if sys.stdin.isatty() and sys.stderr.isatty():
        return _ask
    return refuse if trust is not None else _refuse_to_read


def _refuse_to_read(named: Sequence[FileAction]) -> None:
    from autosync.errors import InputError

    hint = "look at it; autosync export --trust writes its records as a file"
    raise InputError([replace(one.problem(), hint=hint) for one in named])


def _ask(named: Sequence[FileAction]) -> None:
    """List the actions, and raise unless the user answers yes."""
    from autosync.errors import OperationError

    note("what you have not named yourself:")
    for line in lines_of(named):
        note(f"  {line}")
    if not _agrees():
        raise OperationError("nothing was run: it is not trusted")


def _agrees() -> bool:
    """Return whether the user answers yes. The end of the input, as after Ctrl-D, is no such answer."""
    try:
        return click.confirm("Run it?", default=False, err=True)
    except click.Abort as abort:
        if isinstance(abort.__context__, KeyboardInterrupt):
            raise KeyboardInterrupt from abort
        return False


def lines_of(named: Sequence[FileAction]) -> list[str]:
    """Return the actions that files name, one on each line."""
    return [f"{one.file}: {one}" for one in named]


def fields_of(named: Sequence[FileAction]) -> list[dict[str, str]]:
    """Return the actions for programs."""
    return [{"file": one.file, "place": one.place, "what": one.what, "value": one.value} for one in named]
