"""`autosync tune LOOP.py --cluster C`: find the schedule that reaches a loss in the shortest time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from autosync.cli.output import note, print_json, print_text

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

OF_LOOPS = ("--goal", "--epochs")
"""The options that are for loops alone."""

_SHARED = ("--cluster", "--trials", "--budget", "--seed", "--output", "--force", "--json", *OF_LOOPS)
"""The options that loops have too."""

_DEFAULT_EPOCHS = 10
_DEFAULT_FINALISTS = 4


def names_loop(target: str) -> bool:
    """Return whether MODEL on the command line is a loop. No code of its file runs."""
    from autosync.loops.recognise import is_loop

    return is_loop(target)


def check_loop_options(cluster: str | None, is_given: Callable[[str], bool]) -> str:
    """Return the cluster; raise unless the options fit the tuning of a loop."""
    if cluster is None:
        raise click.UsageError("Missing option '--cluster'.")
    names = [name for one in click.get_current_context().command.params for name in one.opts[-1:] if name[:2] == "--"]
    if others := [name for name in names if name not in _SHARED and is_given(name)]:
        raise click.UsageError(f"a loop is tuned by the time to a loss: leave out {' and '.join(others)}")
    return cluster


def tune_loop(target: str, cluster: str, settings: Mapping[str, Any], *, output: Path | None, as_json: bool) -> None:
    """Tune a loop, and print the verdict."""
    from autosync.loops.rank_run import LoopSettings
    from autosync.loops.tuning.tune import tune_loop as run_tuning
    from autosync.loops.tuning.tune import tuning_fields
    from autosync.loops.tuning.verdict import describe_tuning
    from autosync.specs.cluster_file import load_cluster

    if settings["num_trials"] == 0:
        raise click.UsageError("--trials 0 leaves no schedule to run")
    spec = load_cluster(cluster, is_run=True)
    tuned = run_tuning(
        target,
        spec,
        LoopSettings(num_epochs=settings["num_epochs"] or _DEFAULT_EPOCHS, seed=settings["seed"]),
        goal=settings["goal"],
        num_finalists=settings["num_trials"] or _DEFAULT_FINALISTS,
        budget_seconds=settings["budget_seconds"],
        output=output,
        show=note,
    )
    if as_json:
        print_json(tuning_fields(tuned))
    else:
        print_text(describe_tuning(tuned))
    if output is not None:
        note(f"wrote {output}")
