"""What commands share: common options, one JSON document on stdout, and files that are not overwritten."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from autosync import documents
from autosync.datasets import files
from autosync.errors import printable

json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON document on stdout.")
force_option = click.option("--force", is_flag=True, help="Replace a file that is there already.")


def print_json(value: Any) -> None:
    """The one JSON document of a command."""
    print(documents.format_json(documents.to_plain(value)))


def print_text(text: str, *, end: str = "\n") -> None:
    """The result of a command for people, in lines: what a terminal would obey in a name of a file's is escaped."""
    print("\n".join(map(printable, text.split("\n"))), end=end)


def note(text: str) -> None:
    """A line for the user that is no part of the result."""
    print(printable(text), file=sys.stderr)


def refuse_overwrite(path: Path | None, *, force: bool) -> None:
    """Stop before any work whose result could not be written. A folder is refused even with `--force`."""
    if path is not None:
        files.refuse_overwrite(path, force=force)
