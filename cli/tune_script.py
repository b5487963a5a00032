"""`autosync tune --cluster C -- train.py`: tune an unchanged script while it trains."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click

from autosync.cli.output import note, print_json, print_text
from autosync.cli.tune_loop import OF_LOOPS
from autosync.cli.tuning_view import TuningView
from autosync.cli.verdict import describe

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from autosync.script_tuning.drift import Drift
    from autosync.script_tuning.tune_script import Then
    from autosync.script_tuning.tuner import ScriptTuning

OF_TASKS = (
    "--allow",
    "--target",
    "--effort",
    "--trial-timeout",
    "--jobs",
    "--storage",
    "--resume",
    "--replay",
    "--dry-run",
)
"""The options that are for tasks and model specs alone."""

OF_SCRIPTS = ("num_trials", "training_seconds", "patience", "proposer", "simulator", "prior", "seed")
"""The settings that scripts have too."""


def check_script_options(model: str | None, cluster: str | None, is_given: Callable[[str], bool]) -> str:
    """Return the cluster; raise unless the options fit the tuning of a script."""
    if model is not None:
        raise click.UsageError("name a MODEL, or a script after --: one of them")
    if cluster is None:
        raise click.UsageError("Missing option '--cluster'.")
    if others := [name for name in (*OF_TASKS, *OF_LOOPS) if is_given(name)]:
        raise click.UsageError(f"a script is tuned while it trains: leave out {' and '.join(others)}")
    return cluster


def tune_script(
    command: Sequence[str],
    *,
    cluster: str,
    settings: Mapping[str, Any],
    study: str | None,
    output: Path | None,
    then: Then,
    as_json: bool,
) -> None:
    """Tune the script, print the verdict, and end with the script's exit code."""
    from autosync.script_tuning.tune_script import tune_script as run_tuning
    from autosync.specs.cluster_file import load_cluster

    spec = load_cluster(cluster, is_run=True)
    with TuningView() as progress:
        result = run_tuning(
            command,
            spec,
            settings={**settings, "cluster": cluster},
            then=then,
            study=study,
            output=output,
            listener=ShownTuning(output, progress, as_json=as_json),
            progress=progress,
        )
    # Loaded and written last, when the script has ended: the ranks may share this machine.
    from autosync.report.page import write_report
    from autosync.search.study_folder import StudyFolder

    for tuned in (one.tuned for one in result.tunings):
        note(f"wrote {write_report(StudyFolder(tuned.folder), [*tuned.records, *tuned.baselines])}")
    if result.code:
        # The script has printed its own messages, and the exit code is the script's.
        raise click.exceptions.Exit(result.code)


class ShownTuning:
    """Prints what is heard of a script's tuning, at once. With `as_json`, stdout gets the first summary alone."""

    def __init__(self, output: Path | None, progress: TuningView, *, as_json: bool) -> None:
        self._output = output
        self._progress = progress
        self._as_json = as_json
        self._is_first = True

    def tuned(self, result: ScriptTuning) -> None:
        from autosync.search.shown_summary import shown

        tuned, is_first = result.tuned, self._is_first
        self._is_first = False
        self._progress.close()
        if not self._as_json:
            parts = [describe(shown(tuned.summary), tuned.folder, bundle=self._output), str(result.cost)]
            if result.waits is not None and result.waits.is_worth_telling:
                parts.append(str(result.waits))
            print_text("\n\n".join(parts))
        elif is_first:
            print_json(tuned.summary)
        else:
            self._progress.note(f"tuned again: {tuned.folder}")

    def drifted(self, drift: Drift) -> None:
        self._progress.note(str(drift))

    def wrote(self, line: str) -> None:
        # The script may go on untuned, and its lines would tear the table.
        self._progress.close()
        stream = sys.stderr if self._as_json else sys.stdout
        stream.write(f"{line}\n")
        stream.flush()
