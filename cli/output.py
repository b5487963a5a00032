"""The shared output of commands: common options, one JSON document on stdout, and files that are not overwritten."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from autosync import documents
from autosync.datasets import files
from autosync.errors import printable

json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON document on stdout.")
page_option = click.option(
    "-o", "--report", type=click.Path(path_type=Path), metavar="PAGE.html", help="Write a page with the result."
)
force_option = click.option("--force", is_flag=True, help="Replace an existing file.")


def print_json(value: Any) -> None:
    """Print the one JSON document of a command."""
    print(documents.format_json(documents.to_plain(value)))


def print_text(text: str, *, end: str = "\n") -> None:
    """Print the result of a command for users. Control characters are escaped, because names come from files."""
    print("\n".join(map(printable, text.split("\n"))), end=end)


def note(text: str) -> None:
    """Print a line for the user that is not part of the result."""
    print(printable(text), file=sys.stderr)


def refuse_overwrite(path: Path | None, *, force: bool) -> None:
    """Raise if a result could not be written, before any work is done. A folder is refused even with `--force`."""
    if path is not None:
        files.refuse_overwrite(path, force=force)
