"""What `optuna-dashboard` shows of a study: the metric, a strategy's traits as parameters, and a note on the winner.

A strategy is no point of a space of a few numbers, so Optuna has no parameters of it. The traits here are read from
strategies, for people alone: nothing samples by them, and a study without them is complete.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, get_args, get_type_hints

from optuna.distributions import BaseDistribution, CategoricalDistribution, IntDistribution
from optuna.storages import BaseStorage

from autosync.strategy.codecs import Codec
from autosync.strategy.representation import Overlap, Strategy
from autosync.strategy.synchronisers import SHIPPED_KINDS

METRIC = "seconds of a step"
METRICS_ATTRIBUTE = "study:metric_names"
"""The attribute in which Optuna keeps the names of a study's metrics. Its own method for it warns."""
STOCK = "stock DDP"
SEVERAL = "several"
OTHER = "other"
NONE = "none"
_CODECS = tuple(get_args(get_type_hints(codec)["kind"])[0] for codec in get_args(get_args(Codec)[0]))

# Optuna refuses a trial whose choices are not those of the trials before, so the lists are closed.
TRAITS: Mapping[str, BaseDistribution] = {
    "family": CategoricalDistribution((STOCK, *SHIPPED_KINDS, OTHER, SEVERAL)),
    "codec": CategoricalDistribution((NONE, *_CODECS, SEVERAL)),
    "overlap": CategoricalDistribution(get_args(Overlap)),
    "messages": IntDistribution(1, 1_000_000, log=True),
    "lanes": IntDistribution(1, 1_000_000, log=True),
    "partitioned": IntDistribution(0, 1_000_000),
}
"""The traits by name: the kind of synchroniser, the codec, how long transfers may last, and the numbers of messages,
lanes and partitioned variables."""


def traits_of(strategy: Strategy | None) -> dict[str, Any]:
    """Return the values of the traits. Stock DDP (None) has some of them only."""
    if strategy is None:
        return {"family": STOCK, "codec": NONE, "overlap": "backward", "lanes": 1}
    kinds = {one.synchroniser.kind if one.synchroniser.kind in SHIPPED_KINDS else OTHER for one in strategy.messages}
    codecs = {NONE if one.codec is None else one.codec.kind for one in strategy.messages}
    return {
        "family": _only(kinds),
        "codec": _only(codecs),
        "overlap": strategy.overlap,
        "messages": len(strategy.messages),
        "lanes": strategy.num_lanes,
        "partitioned": len(strategy.partitions),
    }


def _only(found: Iterable[str]) -> str:
    first, *others = found
    return SEVERAL if others else first


def name_metric(storage: BaseStorage, study_id: int) -> None:
    """Say what the values of the study's trials are."""
    if METRICS_ATTRIBUTE not in storage.get_study_system_attrs(study_id):
        storage.set_study_system_attr(study_id, METRICS_ATTRIBUTE, [METRIC])


def keep_traits(storage: BaseStorage, trial_id: int, strategy: Strategy | None) -> None:
    """Keep the traits of a trial that has begun."""
    kept = storage.get_trial(trial_id).params
    for name, value in traits_of(strategy).items():
        if name not in kept:
            distribution = TRAITS[name]
            storage.set_trial_param(trial_id, name, distribution.to_internal_repr(value), distribution)


def note_winner(storage: BaseStorage, study_id: int, trial_id: int, words: str) -> None:
    """Put a note on the trial of the proof's winner. The notes of earlier proofs say that they are earlier."""
    attributes = storage.get_study_system_attrs(study_id)
    for key, text in attributes.items():
        if key.endswith(_NOTE_END) and isinstance(text, str) and text.startswith(_WINNER):
            storage.set_study_system_attr(study_id, key, text.replace(_WINNER, _EARLIER, 1))
    _set_note(storage, study_id, f"{trial_id}:", f"{_WINNER} {words}")
    _set_note(storage, study_id, "", f"{_WINNER} trial {storage.get_trial(trial_id).number}, {words}")


_WINNER = "**Proven winner:**"
_EARLIER = "Winner of an earlier proof:"
_NOTE_END = "note_str:0"
_MOST_CHARACTERS = 2000
"""The dashboard cuts notes into pieces of 2,045 characters; a winner's note is one piece."""


def _set_note(storage: BaseStorage, study_id: int, of: str, text: str) -> None:
    """Write a note where the dashboard keeps them: `of` is the id of a trial with a colon, or nothing for the study."""
    version = f"dashboard:{of}note_ver"
    number = storage.get_study_system_attrs(study_id).get(version, 0)
    storage.set_study_system_attr(study_id, f"dashboard:{of}{_NOTE_END}", text[:_MOST_CHARACTERS])
    storage.set_study_system_attr(study_id, version, number + 1)
