"""The attributes of a study's trials in Optuna, and what they say of a trial."""

from __future__ import annotations

import datetime as dt

from optuna.trial import FrozenTrial, TrialState

from autosync.datasets.schema import RECORD_ATTRIBUTE, WITHDRAWN_ATTRIBUTE

CANDIDATE_ATTRIBUTE = "candidate"
TUNER_ATTRIBUTE = "tuner"
BLAME_ATTRIBUTE = "blame"
"""The side that may have caused the trial's failure (see trials.failures)."""
PROOF_ATTRIBUTE = "for_proof"
EXPECTED_ATTRIBUTE = "expected"
STALE_SECONDS = 3600.0
"""The time after which a trial that another machine began is considered dead, and others may try its strategy."""


def is_well_formed(attributes: object) -> bool:
    """Return whether a trial has no attributes, or those that a study writes."""
    if not isinstance(attributes, dict) or not isinstance(attributes.get(RECORD_ATTRIBUTE, {}), dict):
        return False
    if CANDIDATE_ATTRIBUTE not in attributes:
        return True
    fields = attributes[CANDIDATE_ATTRIBUTE]
    return (
        isinstance(fields, dict)
        and all(isinstance(fields.get(name), str) for name in ("origin", "strategy_id"))
        and (fields.get("strategy", "") is None or isinstance(fields.get("strategy"), dict))
    )


def has_record(trial: FrozenTrial) -> bool:
    """Return whether a trial has a record."""
    return RECORD_ATTRIBUTE in trial.user_attrs


def has_candidate(trial: FrozenTrial) -> bool:
    """Return whether a trial has a strategy or stands for stock DDP; a trial that Optuna made by itself has neither."""
    return CANDIDATE_ATTRIBUTE in trial.user_attrs


def strategy_id_of(trial: FrozenTrial) -> str:
    """Return the id of the strategy of a trial that has a candidate."""
    found: str = trial.user_attrs[CANDIDATE_ATTRIBUTE]["strategy_id"]
    return found


def may_be_its_own_fault(trial: FrozenTrial) -> bool:
    """Return whether a trial's strategy may have caused its failure. Older studies do not say what caused it."""
    return bool(trial.user_attrs.get(BLAME_ATTRIBUTE, "either") == "either")


def is_withdrawn(trial: FrozenTrial) -> bool:
    """Return whether a trial was ended without a record."""
    return WITHDRAWN_ATTRIBUTE in trial.user_attrs


def is_for_proof(trial: FrozenTrial) -> bool:
    """Return whether a trial was run for a proof alone."""
    return PROOF_ATTRIBUTE in trial.user_attrs


def is_to_come(trial: FrozenTrial) -> bool:
    """Return whether a trial waits or is under way. A trial that began too long ago does not count."""
    return not trial.state.is_finished() and not _is_stale(trial)


def started(trial: FrozenTrial) -> dt.datetime | None:
    """Return when a trial began; None if it has not, or if a damaged study has a year that no time zone has.

    Optuna keeps this time in UTC, but tells it in local time without a zone, in which days of summer time have jumps.
    """
    if trial.datetime_start is None:
        return None
    try:
        return trial.datetime_start.astimezone(dt.UTC)
    except (OverflowError, ValueError):
        return None


def _is_stale(trial: FrozenTrial) -> bool:
    begun = started(trial)
    if trial.state != TrialState.RUNNING or begun is None:
        return False
    return (dt.datetime.now(tz=dt.UTC) - begun).total_seconds() > STALE_SECONDS
