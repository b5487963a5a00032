"""What the input settings bring, for the results of a study of a task with a dataset."""

from __future__ import annotations

from autosync.datasets.schema import Measurement
from autosync.search.guarantee import ProofResult
from autosync.specs.input_settings import InputSettings
from autosync.specs.model import ModelSpec
from autosync.strategy.input_settings import input_in_words
from autosync.units import format_time


def input_findings(winner: ProofResult, default: ProofResult, model: ModelSpec) -> dict[str, object] | None:
    """Return the facts and a sentence; None if the task has no dataset.

    Waits are those that were measured in the proof, of the rank that waited longest in a mean step.
    """
    usual = None if model.input is None else model.input.usual
    if usual is None:
        return None
    strategy = winner.candidate.strategy
    chosen = (strategy.input if strategy is not None else None) or usual
    before, after = _wait(default.measurement), _wait(winner.measurement)
    return {
        "settings": input_in_words(chosen),
        "default_settings": input_in_words(usual),
        "wait_seconds": after,
        "default_wait_seconds": before,
        "in_words": _words(chosen, usual, before, after),
    }


def _words(chosen: InputSettings, usual: InputSettings, before: float | None, after: float | None) -> str:
    told, waits = input_in_words(chosen), "a step waits {} for its batch, on the rank that waits longest"
    if after is None or before is None:
        return told
    here = waits.format(format_time(after))
    if chosen == usual:
        return f"{told}, as without tuning; {here}"
    return f"{told} in place of {input_in_words(usual)}; {here}, and {format_time(before)} with stock DDP"


def _wait(measured: Measurement) -> float | None:
    return None if measured.input is None else max(measured.input.wait_seconds)
