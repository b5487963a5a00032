"""Splits a dataset by model, by cluster, or at random, to learn from one part and test on another."""

from __future__ import annotations

import math
import random
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Literal

from autosync import jsonio
from autosync.datasets.machine_drift import Combination, combination_of
from autosync.datasets.schema import Record
from autosync.errors import InputError

By = Literal["model", "cluster"]
TRAIN, TEST = "train", "test"


def split_by(records: Iterable[Record], by: By) -> Mapping[str, list[Record]]:
    """Return the records of each model, or of each cluster, by its name."""
    parts: dict[str, list[Record]] = defaultdict(list)
    for record in records:
        parts[record.model_name if by == "model" else record.cluster_name].append(record)
    return dict(sorted(parts.items()))


def split_by_share(records: Iterable[Record], share: float, seed: int) -> Mapping[str, list[Record]]:
    """Return a share of the strategies of each model on each cluster to learn from, and the others to test on.

    All records of one strategy on one combination are in the same part; otherwise the training part would reveal the
    test's answers. The split depends on the seed and the set of strategies, not on the order of the records.
    """
    if not (math.isfinite(share) and 0 < share < 1):
        raise InputError(f"a share of {share:g} cannot be", rule="above 0 and below 1")
    groups: dict[Combination, dict[str, list[Record]]] = defaultdict(lambda: defaultdict(list))
    for record in records:
        groups[combination_of(record)][record.strategy_id or record.origin].append(record)
    parts: dict[str, list[Record]] = {TRAIN: [], TEST: []}
    for combination, strategies in sorted(groups.items()):
        names = sorted(strategies)
        random.Random(jsonio.content_hash([seed, *combination])).shuffle(names)
        num_train = round(share * len(names))
        for position, name in enumerate(names):
            parts[TRAIN if position < num_train else TEST] += strategies[name]
    return parts
