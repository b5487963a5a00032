"""The sections on using the winner and on repeating the study."""

from __future__ import annotations

import itertools
import shlex
from collections import Counter

from autosync import __version__
from autosync.report.markup import Markup, element, items, joined
from autosync.report.study_report import StudyReport
from autosync.report.tables import table
from autosync.search.measurement_effort import EFFORTS
from autosync.search.study_folder import StudySettings
from autosync.units import format_time


def use_section(report: StudyReport) -> Markup:
    """Return the commands that train with the winner."""
    if not report.summary.winner.beats_stock_ddp:
        return element("p", "Leave the training script as it is.")
    return element("pre", element("code", "\n".join(report.summary.winner.use)))


def repeat_section(report: StudyReport) -> Markup:
    """Return the commands, settings and versions that repeat the study."""
    summary, settings = report.summary, report.settings
    commands = []
    if settings is not None:
        commands.append(tune_command(settings))
    commands += [
        shlex.join(["autosync", "show", report.folder.handle]),
        shlex.join(["autosync", "report", report.folder.handle, "-o", "report.html"]),
    ]
    facts = [("study", summary.study), ("model", summary.model), ("cluster", summary.cluster)]
    if settings is not None:
        facts += [
            ("seed", str(settings.seed)),
            ("simulator", settings.simulator),
            ("effort", _effort(settings) or "settings of its own"),
        ]
    if summary.proposer:
        facts.append(("proposer", summary.proposer))
    if summary.wall_seconds is not None:
        facts.append(("duration", format_time(summary.wall_seconds)))
    if report.bundle is not None:
        facts += [("the winner's strategy id", report.bundle.strategy_id), ("its plan id", report.bundle.plan_id)]
    facts += [*_environment(report), ("this page", f"autosync {__version__}")]
    return joined(
        element("pre", element("code", "\n".join(commands))),
        table("Settings and versions.", ("what", "value"), facts),
        items([f"left out: {problem}" for problem in report.left_out]),
    )


def tune_command(settings: StudySettings) -> str:
    """Return the command that starts a study with these settings."""
    limits: dict[str, int | str | None] = {
        "--trials": settings.num_trials if settings.training_seconds is None else None,
        "--training": None if settings.training_seconds is None else f"{settings.training_seconds:.12g}s",
        "--budget": None if settings.budget_seconds is None else f"{settings.budget_seconds:g}s",
        "--patience": settings.patience,
        "--proposer": settings.proposer,
        "--simulator": settings.simulator,
        "--prior": settings.prior,
        "--seed": settings.seed,
    }
    of_tasks: dict[str, int | str | None] = {
        "--effort": _effort(settings),
        "--replay": settings.replay,
        "--allow": ",".join(settings.allow),
        "--target": settings.target,
        "--trial-timeout": f"{settings.trial_timeout_seconds:g}s",
    }
    options = limits if settings.is_script else {**limits, **of_tasks}
    given = [(name, str(value)) for name, value in options.items() if value not in (None, "")]
    return settings.tune_command(*itertools.chain.from_iterable(given))


def _effort(settings: StudySettings) -> str | None:
    """Return the name of the effort; None if it has none."""
    return next((name for name, effort in EFFORTS.items() if effort == settings.effort), None)


def _environment(report: StudyReport) -> list[tuple[str, str]]:
    """Return the versions of software in the trials, with all values if there were several."""
    found: dict[str, Counter[str]] = {}
    for trial in report.trials:
        record = trial.record
        told = {**record.environment, "compute": record.compute, "network": record.network}
        for name, value in told.items():
            found.setdefault(name, Counter())[value] += 1
    return [(name, ", ".join(value for value, _ in values.most_common(5))) for name, values in found.items()]
