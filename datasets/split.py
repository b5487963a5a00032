"""Splits a dataset by model, by cluster, or at random, to learn from one part and test on another."""

from __future__ import annotations

import math
import random
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

from autosync import jsonio
from autosync.datasets.schema import Record
from autosync.errors import InputError

By = Literal["model", "cluster"]
TRAIN, TEST = "train", "test"


def name_at_any_speed(model_name: str) -> str:
    """Return a model's name without its speed, because the model at another speed is the same model."""
    return model_name.partition("@")[0]


def split_by(records: Iterable[Record], by: By) -> Mapping[str, list[Record]]:
    """Return the records of each model at all its speeds, or of each cluster, by its name."""
    parts: dict[str, list[Record]] = defaultdict(list)
    for record in records:
        parts[name_at_any_speed(record.model_name) if by == "model" else record.cluster_name].append(record)
    return dict(sorted(parts.items()))


def split_by_share(records: Iterable[Record], share: float, seed: int) -> Mapping[str, list[Record]]:
    """Return a share of the strategies of each model on each cluster to learn from, and the others to test on.

    All records of one strategy are in the same part; otherwise the training part would reveal the test's answers.
    Models and clusters go by their fingerprints, which stay the same when a profile or a probe is repeated. The split
    depends on the seed and the set of strategies, not on the order of the records.
    """
    if not (math.isfinite(share) and 0 < share < 1):
        raise InputError(f"a share of {share:g} cannot be", rule="above 0 and below 1")
    groups: dict[tuple[str, str], list[Record]] = defaultdict(list)
    for record in records:
        groups[record.model_fingerprint, record.cluster_fingerprint].append(record)
    parts: dict[str, list[Record]] = {TRAIN: [], TEST: []}
    for fingerprints, group in sorted(groups.items()):
        strategies = _by_plan(group)
        names = sorted(strategies)
        random.Random(jsonio.content_hash([seed, *fingerprints])).shuffle(names)
        num_train = round(share * len(names))
        for position, name in enumerate(names):
            parts[TRAIN if position < num_train else TEST] += strategies[name]
    return parts


def _by_plan(records: Sequence[Record]) -> Mapping[str, list[Record]]:
    """Return the records of each strategy. Two strategies with one plan, such as mirror images, count as one.

    A strategy may have several plans, of several versions of autosync: then all strategies of all of them count as one.
    """
    # The name of a group is its smallest strategy or plan, so that it does not depend on the order of the records.
    names: dict[tuple[str, str], tuple[str, str]] = {}

    def group(one: tuple[str, str]) -> tuple[str, str]:
        while (other := names.setdefault(one, one)) != one:
            one = other
        return one

    for record in records:
        if record.strategy_id is not None and record.plan_id is not None:
            first, second = sorted([group(("strategy", record.strategy_id)), group(("plan", record.plan_id))])
            names[second] = first
    found: dict[str, list[Record]] = defaultdict(list)
    for record in records:
        found[group(("strategy", record.strategy_id or record.origin))[1]].append(record)
    return found
