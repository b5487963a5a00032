"""`--trust`, and the question in its place: what a received file names runs only where the user says so."""

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
"""What a dry run says above what a file names."""


def consent_of(*, trust: bool | None) -> Consent:
    """Who is asked: nobody with `--trust`, the user at a terminal; elsewhere what a file names is refused.

    None stands for a command without such an option.
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
    """List what would be run or reached, and go on with a yes alone."""
    from autosync.errors import OperationError

    note("what you have not named yourself:")
    for line in lines_of(named):
        note(f"  {line}")
    if not click.confirm("Run it?", default=False, err=True):
        raise OperationError("nothing was run: it is not trusted")


def lines_of(named: Sequence[FileAction]) -> list[str]:
    """What files name, a line each."""
    return [f"{one.file}: {one}" for one in named]


def fields_of(named: Sequence[FileAction]) -> list[dict[str, str]]:
    """The same for programs."""
    return [{"file": one.file, "place": one.place, "what": one.what, "value": one.value} for one in named]
