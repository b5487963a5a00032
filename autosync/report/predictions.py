"""The timeline simulator's predictions for the trials of a study, from the specs of model and cluster alone."""

from __future__ import annotations

from collections.abc import Mapping

from autosync.search.candidates import default_as_strategy
from autosync.simulators.catalogue import open_simulator
from autosync.specs.cluster import ClusterSpec
from autosync.specs.model import ModelSpec
from autosync.strategy import legality
from autosync.strategy.representation import Strategy

SIMULATOR = "timeline"
LARGE = 250
"""Up to this product of variables and nodes, `MOST_PREDICTED` trials are predicted; above it, proportionally fewer."""
MOST_PREDICTED = 2000
FEWEST_PREDICTED = 100


def predicted_seconds(
    strategies: Mapping[int, Strategy | None], model: ModelSpec, cluster: ClusterSpec
) -> dict[int, float]:
    """Return the predicted step time of each trial that can be predicted, by its number.

    A trial without a strategy is stock DDP, and the strategy that equals stock DDP is predicted for it. Strategies that
    are not legal have no prediction. On large models and clusters only the first trials have one, so that a page takes
    seconds.
    """
    size = max(1.0, len(model.variables) * len(cluster.nodes) / LARGE)
    most = max(FEWEST_PREDICTED, round(MOST_PREDICTED / size))
    wanted = {
        number: strategy or default_as_strategy(model, cluster).strategy
        for number, strategy in list(strategies.items())[:most]
    }
    legal = {
        number: strategy
        for number, strategy in wanted.items()
        if strategy is not None and not legality.problems(strategy, model, cluster)
    }
    if not legal:
        return {}
    predictions = open_simulator(SIMULATOR, model, cluster).predict(list(legal.values()))
    return {number: one.seconds for number, one in zip(legal, predictions, strict=True)}
