"""`autosync show`: the verdict of an earlier tuning run, printed again."""

from __future__ import annotations

import click

from autosync.cli.output import json_option, print_json, print_text


@click.command(
    epilog="""\b
Examples:
  autosync show resnet50-4-hosts-20260131-120000
  autosync show received/study --json"""
)
@click.argument("study")
@json_option
def show(*, study: str, as_json: bool) -> None:
    """Print the verdict of STUDY again.

    STUDY is a name that `autosync studies` lists, or a study's folder. Its files are read; nothing is run and no
    cluster is contacted. With --json the whole summary is printed.
    """
    from autosync import documents
    from autosync.cli.verdict import describe
    from autosync.datasets.studies import find_study
    from autosync.search.shown_summary import load_shown, study_folder

    folder = study_folder(study, find_study(study))
    found = load_shown(folder)
    if as_json:
        print_json(documents.read_document(folder.summary).value)
    else:
        print_text(describe(found, folder.path))
