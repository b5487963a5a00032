"""`autosync report`: write an HTML page about studies."""

from __future__ import annotations

from pathlib import Path

import click

from autosync.cli.consent_prompt import consent_of, trust_option
from autosync.cli.output import force_option, json_option, note, print_json, refuse_overwrite


@click.command(
    epilog="""\b
Examples:
  autosync report resnet50-4-hosts-20260131-120000 -o report.html
  autosync report monday tuesday -o both.html"""
)
@click.argument("names", metavar="STUDY ...", nargs=-1, required=True)
@click.option(
    "-o", "--output", required=True, type=click.Path(path_type=Path), metavar="PAGE.html", help="Write the page here."
)
@force_option
@trust_option
@json_option
def report(*, names: tuple[str, ...], output: Path, force: bool, trust: bool, as_json: bool) -> None:
    """Write one HTML page about each STUDY: its verdict, trials, proof, and the winner's strategy.

    STUDY is a name that `autosync studies` lists, or a study's folder. The page is one file that needs no network.
    `autosync tune` writes this page too, as report.html in the study's folder.
    """
    from autosync import jsonio
    from autosync.datasets.studies import find_study, storage_named
    from autosync.report.page import report_page
    from autosync.report.study_report import read_study_report
    from autosync.search.shown_summary import study_folder
    from autosync.simulators.compile_notice import compiling_is_told
    from autosync.specs.consent import require

    refuse_overwrite(output, force=force)
    # A study that is named twice is shown once.
    folders = [study_folder(name, find_study(name)) for name in dict.fromkeys(names)]
    require([one for folder in folders for one in storage_named(folder.path)], consent_of(trust=trust))
    with compiling_is_told(note, meanwhile=True):
        reports = [read_study_report(folder) for folder in folders]
        page = report_page(reports)
    for problem in (problem for one in reports for problem in one.left_out):
        note(f"left out: {problem}")
    jsonio.write_text(output, page)
    note(f"wrote {output}")
    if as_json:
        print_json(
            {"schema": "autosync.report/1", "output": str(output), "studies": [one.summary.study for one in reports]}
        )
