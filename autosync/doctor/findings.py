"""The findings of a diagnosis: the cost of each cause in a step, or the reason why it cannot be judged."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from autosync.doctor.evidence import Evidence
from autosync.doctor.timing import Timing


@dataclass(frozen=True, slots=True, kw_only=True)
class CauseFinding:
    """The cost of a cause: `seconds` of a step. `subject` is the node or rack at fault, and `told` the evidence."""

    seconds: float
    told: str
    subject: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Abstention:
    """The reason why the evidence does not allow a judgement of a cause."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchedCase:
    """The evidence with the times derived from it."""

    evidence: Evidence
    timing: Timing


Judge: TypeAlias = Callable[[WatchedCase], CauseFinding | Abstention]
