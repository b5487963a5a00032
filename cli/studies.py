"""`autosync studies`: list the tuning runs in a folder with their results."""

from __future__ import annotations

import datetime as dt
from pathlib import Path

import click

from autosync.cli.output import json_option, note, print_json, print_text


@click.command(
    epilog="""\b
Examples:
  autosync studies
  autosync studies /home/me/project/autosync-studies --json"""
)
@click.argument("folder", required=False, type=click.Path(path_type=Path))
@json_option
def studies(*, folder: Path | None, as_json: bool) -> None:
    """List the studies in FOLDER, the latest last.

    A study is one tuning run. Without FOLDER, the studies in autosync-studies are listed. `autosync show STUDY` prints
    the verdict of a study.
    """
    from dataclasses import asdict

    from autosync.datasets.studies import STUDIES_FOLDER
    from autosync.errors import InputError
    from autosync.near_files import near_path_hint
    from autosync.search.past_studies import past_studies
    from autosync.strategy.wording import format_table

    if folder is not None and not folder.is_dir():
        raise InputError(f"{folder} is no folder", rule="studies are in a folder", hint=near_path_hint(folder))
    found = past_studies(STUDIES_FOLDER if folder is None else folder)
    if as_json:
        print_json([asdict(one) for one in found])
        return
    if not found:
        note(f"no studies in {folder or STUDIES_FOLDER}; autosync tune MODEL --cluster CLUSTER begins one")
        return
    rows = [
        (
            one.name,
            one.model,
            one.cluster,
            "" if one.num_trials is None else str(one.num_trials),
            dt.datetime.fromisoformat(one.changed).astimezone().strftime("%Y-%m-%d %H:%M"),
            one.result,
        )
        for one in found
    ]
    header = ("study", "model", "cluster", "trials", "changed", "result")
    print_text(format_table(rows, header=header, right=("trials",)))
