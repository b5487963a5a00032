"""`autosync tune --cluster C -- train.py`: tune an unchanged script while it trains."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any

import click

from autosync.cli.output import note, print_json, print_text
from autosync.cli.progress import Reporter
from autosync.cli.verdict import describe

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from autosync.script_tuning.tune_script import ScriptTuning

OF_TASKS = (
    "--allow",
    "--target",
    "--effort",
    "--trial-timeout",
    "--storage",
    "--resume",
    "--replay",
    "--dry-run",
)
"""The options that are for tasks and model specs alone."""

OF_SCRIPTS = ("num_trials", "patience", "proposer", "simulator", "prior", "seed")
"""The settings that scripts have too."""


def check_script_options(model: str | None, cluster: str | None, is_given: Callable[[str], bool]) -> str:
    """Return the cluster; raise unless the options fit the tuning of a script."""
    if model is not None:
        raise click.UsageError("name a MODEL, or a script after --: one of them")
    if cluster is None:
        raise click.UsageError("Missing option '--cluster'.")
    if others := [name for name in OF_TASKS if is_given(name)]:
        raise click.UsageError(f"a script is tuned while it trains: leave out {' and '.join(others)}")
    return cluster


def tune_script(
    command: Sequence[str],
    *,
    cluster: str,
    settings: Mapping[str, Any],
    study: str | None,
    output: Path | None,
    keep_training: bool,
    as_json: bool,
) -> None:
    """Tune the script, print the verdict, and end with the script's exit code."""
    from autosync.report.page import write_report
    from autosync.script_tuning.tune_script import tune_script as run_tuning
    from autosync.search.study_folder import StudyFolder
    from autosync.specs.cluster_file import load_cluster

    spec = load_cluster(cluster, is_run=True)
    with Reporter() as progress:

        def told(result: ScriptTuning) -> None:
            _print(result, output, as_json=as_json)

        result = run_tuning(
            command,
            spec,
            settings={**settings, "cluster": cluster},
            keep_training=keep_training,
            environment={key: os.environ[key] for key in ("OMP_NUM_THREADS",) if key in os.environ},
            study=study,
            output=output,
            show=_show_apart if as_json else _show,
            told=told,
            progress=progress,
        )
    # Last, when the script has ended: the ranks may share this machine.
    tuned = result.tuned
    note(f"wrote {write_report(StudyFolder(tuned.folder), [*tuned.records, *tuned.baselines])}")
    if result.code:
        # The script has printed its own messages, and the exit code is the script's.
        raise click.exceptions.Exit(result.code)


def _print(result: ScriptTuning, output: Path | None, *, as_json: bool) -> None:
    """Print the verdict and the cost, as soon as they are known."""
    from autosync.search.shown_summary import shown

    tuned = result.tuned
    if as_json:
        print_json(tuned.summary)
    else:
        print_text(f"{describe(shown(tuned.summary), tuned.folder, bundle=output)}\n\n{result.cost}")


def _show(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def _show_apart(text: str) -> None:
    sys.stderr.write(text + "\n")
    sys.stderr.flush()
