"""Steps that use different variables, as simulators play them: a strategy in a step is what travels in that step.

Which variables stay in a step follows from what no rank uses (`UseSample`) and from the plan (`may_stay`). A step in
which variables stay is played like a step of the strategy without them, for as long as it takes to become steady. The
drawn steps are the same for all strategies, so strategies differ by what they do and not by chance.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from autosync.runtime.varying.may_stay import may_stay
from autosync.simulators.shared.arrays import Floats
from autosync.simulators.shared.checked_lowering import lowered
from autosync.specs.cluster import ClusterSpec
from autosync.specs.model import ModelSpec
from autosync.strategy.representation import Strategy, without

_MAX_KNOWN = 10_000


class DrawnStep(NamedTuple):
    """What travels in a step, as a strategy without the variables that stay, and the share of such steps."""

    strategy: Strategy
    share: float


class DrawnSteps:
    """The steps of strategies for one model on one cluster."""

    def __init__(self, model: ModelSpec, cluster: ClusterSpec) -> None:
        self._model = model
        self._cluster = cluster
        sample = model.use_sample
        self._drawn = () if sample is None else sample.drawn(cluster.num_workers)
        self._known: OrderedDict[int, tuple[Strategy, tuple[DrawnStep, ...]]] = OrderedDict()

    def of(self, strategy: Strategy) -> tuple[DrawnStep, ...]:
        """Return the steps of a strategy; one, with all variables, if all travel in every step."""
        if not self._drawn or strategy.stages:
            return (DrawnStep(strategy, 1.0),)
        # Searches ask for the same strategies many times, and hashing one takes as long as comparing all of it.
        known = self._known.get(id(strategy))
        if known is None or known[0] is not strategy:
            if len(self._known) >= _MAX_KNOWN:
                self._known.popitem(last=False)
            known = self._known[id(strategy)] = strategy, self._steps(strategy)
        return known[1]

    def _steps(self, strategy: Strategy) -> tuple[DrawnStep, ...]:
        facts = may_stay(lowered(strategy, self._model, self._cluster))
        shares: dict[frozenset[str], float] = {}
        for unused, share in self._drawn:
            staying = facts.staying(unused)
            shares[staying] = shares.get(staying, 0.0) + share
        return tuple(DrawnStep(without(strategy, staying), share) for staying, share in shares.items())

    def mean_of(self, strategies: Sequence[Strategy], figures: Callable[[Sequence[Strategy]], Floats]) -> Floats:
        """Return the mean over the steps of each strategy, of figures that `figures` has in a row for each strategy."""
        if not self._drawn:
            return figures(strategies)
        steps = [self.of(strategy) for strategy in strategies]
        rows = figures([one.strategy for some in steps for one in some])
        shares = np.array([one.share for some in steps for one in some])
        weighed = rows * shares.reshape(-1, *[1] * (rows.ndim - 1))
        begins = np.cumsum([0, *map(len, steps)])[:-1]
        found: Floats = np.add.reduceat(weighed, begins, axis=0) if len(begins) else rows
        return found
