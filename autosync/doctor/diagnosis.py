"""Ranks the findings: one primary diagnosis, and the rest by their cost. Pure functions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from autosync.doctor.causes import CAUSES, COMPUTE, Cause
from autosync.doctor.evidence import Evidence
from autosync.doctor.findings import Abstention, CauseFinding, WatchedCase
from autosync.doctor.gain import Gain
from autosync.doctor.timing import timing_of

LEAST_SHARE = 0.1
"""A cause that costs a smaller share of the step is listed, but is no primary diagnosis, unless it explains one."""

EXPLAINED = 0.3
"""A specific cause replaces the general cause that it explains if it accounts for this share of the general cost."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankedCause:
    """A cause with its finding, and the finding's share of the step."""

    name: str
    finding: CauseFinding
    share: float

    @property
    def cause(self) -> Cause:
        return CAUSES[self.name]


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """The primary cause, the other findings by their share, and the causes that could not be judged, with reasons."""

    step_seconds: float
    num_steps: int
    primary: RankedCause
    others: tuple[RankedCause, ...]
    unknown: Mapping[str, str]
    gain: Gain | None = None


def diagnose(evidence: Evidence, *, gain: Gain | None = None) -> Diagnosis:
    """Return the diagnosis of the evidence."""
    case = WatchedCase(evidence=evidence, timing=timing_of(evidence))
    verdicts = {name: cause.judge(case) for name, cause in CAUSES.items()}
    step = case.timing.step_seconds
    judged = [
        RankedCause(name=name, finding=verdict, share=min(verdict.seconds / step, 1.0) if step else 0.0)
        for name, verdict in verdicts.items()
        if isinstance(verdict, CauseFinding)
    ]
    primary = primary_of(judged)
    rest = sorted((one for one in judged if one is not primary), key=lambda one: -one.share)
    unknown = {name: verdict.reason for name, verdict in verdicts.items() if isinstance(verdict, Abstention)}
    return Diagnosis(
        step_seconds=step,
        num_steps=len(evidence.ranks[0].steps),
        primary=primary,
        others=tuple(rest),
        unknown=unknown,
        gain=gain,
    )


def primary_of(judged: list[RankedCause]) -> RankedCause:
    """Return the primary cause: the largest loss, or the most specific cause that explains it; else computation."""
    losses = [one for one in judged if one.name != COMPUTE and one.share >= LEAST_SHARE]
    if not losses:
        return next(one for one in judged if one.name == COMPUTE)
    largest = max(losses, key=lambda one: one.share)
    while True:
        special = [
            one
            for one in judged
            if largest.name in one.cause.explains and one.finding.seconds >= EXPLAINED * largest.finding.seconds
        ]
        if not special:
            return largest
        largest = max(special, key=lambda one: one.share)
