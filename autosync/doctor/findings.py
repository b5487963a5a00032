"""The findings of a diagnosis: what each cause costs in a step, or the reason why that cannot be told."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from autosync.doctor.evidence import Evidence
from autosync.doctor.timing import Timing


@dataclass(frozen=True, slots=True, kw_only=True)
class CauseFinding:
    """What a cause costs: `seconds` of a step; `subject` is the node or rack at fault; `told` is the evidence."""

    seconds: float
    told: str
    subject: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Abstention:
    """A cause of which the evidence does not tell, with the reason."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchedCase:
    """The evidence with the times derived from it."""

    evidence: Evidence
    timing: Timing


Judge: TypeAlias = Callable[[WatchedCase], CauseFinding | Abstention]
