"""Presents a diagnosis to users and to programs."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from autosync.doctor.causes import CAUSES, COMPUTE
from autosync.doctor.diagnosis import LEAST_SHARE, Diagnosis, RankedCause
from autosync.plan.bound_terms import TOO_SHORT
from autosync.specs.task_file import is_task
from autosync.strategy.wording import count, format_wrapped_table, wrapped
from autosync.units import format_time

LISTED_SHARE = 0.01
"""Causes that cost a smaller share of the step are not listed one by one."""
_TASK = "model.py"
"""The stand-in for a task, in commands that need one where the user has named none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Operands:
    """What the user typed: the cluster, a model or a script with its arguments, and the other options."""

    cluster: str
    model: str | None = None
    script: tuple[str, ...] = ()
    options: tuple[str, ...] = ()

    @property
    def again(self) -> str:
        """The command line that runs the doctor again."""
        head = ["autosync", "doctor", *([self.model] if self.model else []), "--cluster", self.cluster, *self.options]
        return shlex.join([*head, *(["--", *self.script] if self.script else [])])

    def fill(self, command: str) -> str:
        """Return a cause's command with the operands filled in."""
        model = shlex.quote(self.model) if self.model else _TASK
        task = model if self.model and is_task(self.model) else _TASK
        cluster = shlex.quote(self.cluster)
        return command.format(model=model, task=task, cluster=cluster, doctor=self.again, tune=self._tune)

    @property
    def _tune(self) -> str:
        """The command line that tunes the model, or the script while it trains."""
        head = ["autosync", "tune", *([self.model] if self.model else []), "--cluster", self.cluster]
        return shlex.join([*head, "-o", "best.yaml", *(["--", *self.script] if self.script else [])])

    def needs_task(self, command: str) -> bool:
        """Whether a command needs a task, and the user has named none."""
        if "{task}" in command:
            return self.model is None or not is_task(self.model)
        return self.model is None and "{model}" in command


def describe(diagnosis: Diagnosis, operands: Operands) -> str:
    """Return the diagnosis for users."""
    primary = diagnosis.primary
    subject = f" ({primary.finding.subject})" if primary.finding.subject else ""
    lines = wrapped(
        [
            f"{primary.cause.title}{subject}: {primary.share:.0%} of the step",
            f"  {primary.finding.told}",
            "",
            f"A step of stock DDP takes {format_time(diagnosis.step_seconds)} ({_median(diagnosis.num_steps)}).",
            gain_in_words(diagnosis),
            f"Next: {primary.cause.advice}",
        ]
    )
    # A command stays whole, so that it can be copied.
    lines.append(f"  {operands.fill(primary.cause.command)}")
    if operands.needs_task(primary.cause.command):
        lines.append("  (model.py: a task with the same model, see docs/task.md)")
    rest = [one for one in diagnosis.others if one.share >= LISTED_SHARE]
    if rest:
        rows = [(one.cause.title, f"{one.share:.0%}", one.finding.subject, one.finding.told) for one in rest]
        header = ("also", "of the step", "where", "evidence")
        lines += ["", format_wrapped_table(rows, header=header, right=("of the step",))]
    small = {one.name for one in diagnosis.others if one.share < LISTED_SHARE}
    absent = [cause.title for name, cause in CAUSES.items() if name in small]
    if absent:
        lines += ["", *wrapped([f"Below {LISTED_SHARE:.0%} of the step: {', '.join(absent)}."])]
    if diagnosis.unknown:
        lines += ["", "Not known:"]
        lines += wrapped(f"  {CAUSES[name].title}: {reason}" for name, reason in diagnosis.unknown.items())
    return "\n".join(lines)


def _median(num_steps: int) -> str:
    return f"median of {count(num_steps, 'step')}"


def gain_in_words(diagnosis: Diagnosis) -> str:
    """Say how much better synchronisation could give."""
    gain = diagnosis.gain
    if gain is None or gain.bound_seconds <= 0:
        return "What better synchronisation could give is not known."
    if not gain.is_known:
        return f"This step is {TOO_SHORT}."
    limit = f"no exact strategy can take less than {format_time(gain.bound_seconds)} ({gain.because})"
    if gain.most < 1 + LISTED_SHARE:
        return f"Better synchronisation gives nothing here: {limit}."
    return f"Better synchronisation makes it at most {gain.most:.2f} times as fast: {limit}."


def fields(diagnosis: Diagnosis, operands: Operands) -> dict[str, Any]:
    """Return the diagnosis for programs."""
    gain = diagnosis.gain
    return {
        "schema": "autosync.diagnosis/1",
        "cluster": operands.cluster,
        "model": operands.model,
        "script": list(operands.script),
        "step_seconds": diagnosis.step_seconds,
        "num_steps": diagnosis.num_steps,
        "primary": _finding_fields(diagnosis.primary),
        "is_healthy": diagnosis.primary.name == COMPUTE,
        "least_share": LEAST_SHARE,
        "most_speedup": gain.most if gain is not None and gain.is_known else None,
        "bound_seconds": None if gain is None else gain.bound_seconds,
        "next": {"advice": diagnosis.primary.cause.advice, "command": operands.fill(diagnosis.primary.cause.command)},
        "others": _all_fields(diagnosis.others),
        "unknown": [{"cause": name, "reason": reason} for name, reason in diagnosis.unknown.items()],
    }


def _all_fields(findings: Sequence[RankedCause]) -> list[dict[str, Any]]:
    return [_finding_fields(one) for one in findings]


def _finding_fields(one: RankedCause) -> dict[str, Any]:
    finding = one.finding
    return {
        "cause": one.name,
        "share": one.share,
        "seconds": finding.seconds,
        "subject": finding.subject,
        "evidence": finding.told,
    }
