"""The shipped calibration: standardised errors of predictions on records of models that the simulator had not seen.

`tools/measure_spread.py` replays searches over the shipped records and writes the errors of the strategies that were
picked. Each model's errors come from a simulator that had learned from the records of all other models. Errors before
any trial of the target (`first`) are apart from those after trials (`later`), of which only those of strategies count
that were predicted to be about as fast as the fastest so far. The rounds after the first picks tell how far the fastest
strategy was still away (`reach.py`). All this is valid only for the
simulators that made the predictions, so the file also has their figures for two small cases
(`simulators.learned.rehearsal`).
"""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Literal

from autosync import documents
from autosync.documents import STRICT
from autosync.search.trust.error_belief import ErrorBelief, fitted

SCHEMA_KIND = "measured-spread"
SCHEMA_VERSION = 1

Situation = Literal["first", "later"]
"""Whether a prediction was made before the first trial of a target, or after some."""

NEAR = 0.05
"""The errors after trials count of strategies that were predicted to be at most this share slower than the fastest so
far. Whether trials are worth it depends on these, and errors of slower strategies are larger."""

UNMEASURED = ErrorBelief(bias=0.5, bias_weight=2.0, scale=1.0, scale_weight=4.0)
"""The belief about a simulator whose errors were never measured: almost nothing, and that picks disappoint a little."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorsOfTarget:
    """The standardised errors of one simulator on one model and cluster, in the order of the trials."""

    __pydantic_config__ = STRICT

    simulator: str
    situation: Situation
    model: str
    cluster: str
    errors: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundsOfTarget:
    """The rounds of a replayed search on one model and cluster, after its first picks.

    A trial is told by three logarithms, relative to the fastest of the first picks: its predicted time, the spread of
    this, and its measured time.
    """

    __pydantic_config__ = STRICT

    simulator: str
    model: str
    cluster: str
    rounds: tuple[tuple[tuple[float, float, float], ...], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredSpread:
    """All measured errors and rounds, and the beliefs that were fitted to them, by `SIMULATOR/SITUATION`."""

    __pydantic_config__ = STRICT

    rehearsed: tuple[float, ...]
    beliefs: dict[str, ErrorBelief]
    targets: tuple[ErrorsOfTarget, ...]
    rounds: tuple[RoundsOfTarget, ...] = ()

    def belief(self, simulator: str, situation: Situation) -> ErrorBelief:
        """Return the belief about a simulator in a situation."""
        return self.beliefs.get(key_of(simulator, situation), UNMEASURED)


def key_of(simulator: str, situation: Situation) -> str:
    """Return the key of a belief."""
    return f"{simulator}/{situation}"


def by_key(targets: Iterable[ErrorsOfTarget], *, without: str | None = None) -> dict[str, list[tuple[float, ...]]]:
    """Return the errors of targets by the keys of beliefs, without those of a model."""
    found: dict[str, list[tuple[float, ...]]] = defaultdict(list)
    for one in targets:
        if one.model != without:
            found[key_of(one.simulator, one.situation)].append(one.errors)
    return found


def beliefs_without_each(targets: Sequence[ErrorsOfTarget], key: str) -> dict[str, ErrorBelief]:
    """Return for each model the belief that is fitted to the errors of all other models."""
    models = sorted({one.model for one in targets})
    return {model: fitted(by_key(targets, without=model)[key]) for model in models}


@functools.cache
def belief_about(simulator: str, situation: Situation) -> ErrorBelief:
    """Return what is believed of the errors of a simulator as it is today."""
    # Imported here, because the check loads the simulators to predict two small cases.
    from autosync.errors import InputError
    from autosync.simulators.learned.rehearsal import check_rehearsal

    found = shipped_spread()
    try:
        check_rehearsal(found.rehearsed)
    except InputError:
        return UNMEASURED
    return found.belief(simulator, situation)


@functools.cache
def shipped_spread() -> MeasuredSpread:
    """Return the shipped errors and beliefs."""
    return documents.load(shipped_spread_file(), kind=SCHEMA_KIND, version=SCHEMA_VERSION, into=MeasuredSpread)[0]


def shipped_spread_file() -> Path:
    """Return the file of the shipped errors, beside the shipped records."""
    return Path(str(resources.files("autosync.datasets"))) / "measured_spread.json"


def write_spread(path: Path, spread: MeasuredSpread) -> None:
    """Write errors and beliefs to a file."""
    documents.write(path, documents.dump(spread, kind=SCHEMA_KIND, version=SCHEMA_VERSION))
