"""An ensemble of boosted trees that corrects the other simulators' predictions of the log of seconds.

The members differ in their loss, in the rows and features that they see, and by chance. Their mean is the correction,
and their disagreement its uncertainty. Some *blocks* of rows (a trial, or all trials of a model) are hidden from each
member. The others' corrections on hidden blocks show, without separate test trials, how far to trust them: only a part
of the correction is applied if all of it would have been too much.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from autosync.simulators.learned.losses import LOSSES, Loss, LossName, Positions, Targets, loss_of
from autosync.simulators.shared.arrays import Floats

MIN_BLOCKS = 4
"""The fewest blocks from which some can be hidden; with fewer, only the common error is learned."""


MIN_NOISE = 0.01
"""The least standard deviation of a prediction, because another trial of the same strategy may differ by this much."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Boosting:
    """The settings for training an ensemble.

    `seeds` is the number of members for each loss, and `seen` the share of blocks that a member sees.
    """

    losses: tuple[LossName, ...] = LOSSES
    seeds: int = 3
    rounds: int = 120
    depth: int = 4
    rate: float = 0.1
    seen: float = 0.75
    feature_share: float = 0.5
    smoothing: float = 3.0
    knows_ties: bool = True


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Boosted:
    """A trained ensemble: XGBoost's boosters, the share of their correction to apply, and the remaining error.

    `offset` is the common error of all predictions. `noise` is the standard deviation of the remaining error on blocks
    that members did not see.
    """

    members: tuple[Any, ...]
    share: float
    offset: float
    noise: float

    def correct(self, values: Floats) -> tuple[Floats, Floats]:
        """Return the correction of the log of seconds for each row, and its standard deviation."""
        if not self.members or not len(values):
            return np.full(len(values), self.offset), np.full(len(values), self.noise)
        each = _outputs(self.members, values)
        unsure = np.sqrt(self.noise**2 + (self.share * each.std(axis=0)) ** 2)
        return self.offset + self.share * each.mean(axis=0), unsure


UNTAUGHT = Boosted(members=(), share=0.0, offset=0.0, noise=0.0)
"""An ensemble that corrects nothing and does not know its error."""


def boost(values: Floats, begin: Floats, targets: Targets, blocks: Positions, how: Boosting) -> Boosted:
    """Train an ensemble. `begin` is the log of seconds that it corrects. The same input gives the same ensemble."""
    errors = targets.log_seconds - begin
    offset = _weighted_median(errors, targets.weight)
    num_blocks = int(blocks.max(initial=-1)) + 1
    if num_blocks < MIN_BLOCKS:
        return Boosted(members=(), share=0.0, offset=offset, noise=_spread(errors - offset))
    begin = begin + offset
    members, unseen = [], []
    for number, (seed, name) in enumerate(itertools.product(range(how.seeds), how.losses)):
        seen = _seen(num_blocks, how.seen, number)[blocks]
        rows = np.flatnonzero(seen)
        loss = loss_of(name, targets.rows(rows), seed=seed, knows_ties=how.knows_ties)
        members.append(_train(values[rows], begin[rows], loss, how, number))
        unseen.append(np.where(seen, np.nan, _outputs(members[-1:], values)[0]))
    share, noise = _trusted(np.array(unseen), targets.log_seconds - begin, targets)
    return Boosted(members=tuple(members), share=share, offset=offset, noise=noise)


def _train(values: Floats, begin: Floats, loss: Loss, how: Boosting, number: int) -> Any:
    import xgboost

    settings = {
        "base_score": 0.0,
        "colsample_bylevel": how.feature_share,
        "eta": how.rate,
        "lambda": how.smoothing,
        "max_depth": how.depth,
        "min_child_weight": 0.5,
        "nthread": 1,
        "seed": number,
        "tree_method": "hist",
    }
    matrix = xgboost.DMatrix(values.astype(np.float32), nthread=1)
    return xgboost.train(settings, matrix, how.rounds, obj=_objective(loss, begin))


def _objective(loss: Loss, begin: Floats) -> Callable[[npt.NDArray[np.float32], Any], tuple[Floats, Floats]]:
    def gradients(correction: npt.NDArray[np.float32], _matrix: Any) -> tuple[Floats, Floats]:
        return loss.gradients(begin + correction)

    return gradients


def _outputs(members: Sequence[Any], values: Floats) -> Floats:
    """Return each member's correction of the log of seconds: a row for each member."""
    import xgboost

    matrix = xgboost.DMatrix(values.astype(np.float32), nthread=1)
    return np.array([one.predict(matrix, output_margin=True) for one in members], dtype=np.float64)


def _seen(num_blocks: int, share: float, seed: int) -> npt.NDArray[np.bool_]:
    """Return which blocks a member sees: all except at least one."""
    found = np.zeros(num_blocks, dtype=np.bool_)
    count = min(num_blocks - 1, max(1, round(share * num_blocks)))
    found[np.random.default_rng(seed).permutation(num_blocks)[:count]] = True
    return found


def _trusted(unseen: Floats, errors: Floats, targets: Targets) -> tuple[float, float]:
    """Return the share of the correction to apply, and the standard deviation of the remaining error.

    `unseen` has a row for each member, with NaN on the rows that it saw. The common error of a whole group does not
    affect the order, so it is removed; the next study learns its own.
    """
    told = ~np.isnan(unseen)
    rows = np.flatnonzero(told.any(axis=0))
    if len(rows) == 0:
        return 1.0, _spread(errors)
    corrections = np.nansum(unseen[:, rows], axis=0) / told[:, rows].sum(axis=0)
    weight, group = targets.weight[rows], targets.group[rows]
    wanted = _centred(errors[rows], group, weight)
    found = _centred(corrections, group, weight)
    power = float(np.sum(weight * found**2))
    share = float(np.clip(np.sum(weight * found * wanted) / power, 0.0, 1.0)) if power > 0 else 0.0
    return share, _spread(errors[rows] - share * corrections)


def _centred(values: Floats, group: Positions, weight: Floats) -> Floats:
    means = np.bincount(group, weight * values) / np.maximum(1e-12, np.bincount(group, weight))
    centred: Floats = values - means[group]
    return centred


def _spread(errors: Floats) -> float:
    """Return a standard deviation that a few outliers do not change."""
    return max(MIN_NOISE, float(1.4826 * np.median(np.abs(errors)))) if len(errors) else 0.0


def _weighted_median(values: Floats, weight: Floats) -> float:
    if len(values) == 0:
        return 0.0
    order = np.argsort(values)
    passed = np.cumsum(weight[order])
    return float(values[order][np.searchsorted(passed, passed[-1] / 2)])
