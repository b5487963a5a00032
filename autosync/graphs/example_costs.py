"""What an example costs: a time for each vertex, and a time for each level of the deepest example of a batch.

Both are fitted to measured steps on parts of a batch. Large parts show the time of vertices, and small ones the time of
levels, each of which runs a few groups however small they are. Some parts have few deep examples, and others as many
vertices in shallow ones: between such parts dealing by cost has to choose.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from autosync.errors import InputError
from autosync.graphs.choose_policy import wait_for_device
from autosync.graphs.dealing import ExampleDeal, deal, deal_by_count
from autosync.graphs.input_graph import GraphLoss, InputGraph
from autosync.graphs.vertex_model import VertexModel

_SHARES = (1, 2, 4, 8)
_NUM_BANDS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class StepCosts:
    """The seconds of a step for each vertex of its batch, and for each level of the deepest example."""

    vertex_seconds: float
    level_seconds: float

    def prices(self, num_vertices: Sequence[int]) -> list[float]:
        """Return the prices of examples by which they are dealt, without their levels."""
        # If only levels were seen to cost anything, vertices break ties.
        each = self.vertex_seconds or 1e-9 * max(self.level_seconds, 1e-9)
        return [each * one for one in num_vertices]


@dataclass(frozen=True, slots=True, kw_only=True)
class DealComparison:
    """A batch dealt by count and by cost, in the same units."""

    by_count: ExampleDeal
    by_cost: ExampleDeal


def fit_costs(num_vertices: Sequence[int], depths: Sequence[int], seconds: Sequence[float]) -> StepCosts:
    """Return the non-negative costs that explain measured steps best (least squares of relative errors)."""
    if not len(num_vertices) == len(depths) == len(seconds) or not seconds or min(seconds) <= 0:
        raise InputError("the measured steps cannot be used", rule="positive times, each with vertices and a depth")
    measured = np.asarray(seconds, dtype=float)
    columns = np.stack([np.asarray(num_vertices), np.asarray(depths)], axis=1) / measured[:, None]
    target = np.ones(len(measured))
    both = np.linalg.lstsq(columns, target, rcond=None)[0]
    # With one cost below 0, the best that is allowed has this cost at 0.
    alone = [float(column @ target / (column @ column)) for column in columns.T]
    options = [(alone[0], 0.0), (0.0, alone[1])]
    if both.min() >= 0:
        options.insert(0, (float(both[0]), float(both[1])))
    best = min(options, key=lambda one: float(np.square(columns @ np.array(one) - target).sum()))
    return StepCosts(vertex_seconds=best[0], level_seconds=best[1])


def measure_costs(
    model: VertexModel, graphs: Sequence[InputGraph], loss: GraphLoss, *, num_rounds: int = 10
) -> StepCosts:
    """Measure steps on parts of a batch under the model's policy, and fit the costs. Gradients are not kept.

    The shortest of the rounds counts, because a disturbance makes a step longer.
    """
    parts = [list(graphs[: max(1, len(graphs) // share)]) for share in _SHARES] + depth_bands(graphs)
    seconds: list[list[float]] = [[] for _ in parts]
    gradients = [one.grad for one in model.parameters()]
    for number in range(num_rounds + 1):
        for part, rounds in zip(parts, seconds, strict=True):
            wait_for_device(model)
            start = time.perf_counter()
            model.zero_grad()
            loss(model(part), part).backward()  # type: ignore[no-untyped-call]
            wait_for_device(model)
            # The first round warms up.
            if number:
                rounds.append(time.perf_counter() - start)
    for parameter, gradient in zip(model.parameters(), gradients, strict=True):
        parameter.grad = gradient
    return fit_costs(
        [sum(graph.num_vertices for graph in part) for part in parts],
        [max(graph.depth for graph in part) for part in parts],
        [min(rounds) for rounds in seconds],
    )


def depth_bands(graphs: Sequence[InputGraph]) -> list[list[InputGraph]]:
    """Return the examples from the shallowest to the deepest, in parts with about the same number of vertices."""
    ordered = sorted(graphs, key=lambda graph: graph.depth)
    before = np.cumsum([0] + [graph.num_vertices for graph in ordered])
    of_example = before[:-1] * _NUM_BANDS // before[-1]
    return [[ordered[one] for one in np.flatnonzero(of_example == band)] for band in np.unique(of_example)]


def compare_deals(graphs: Sequence[InputGraph], num_ranks: int, costs: StepCosts) -> DealComparison:
    """Return how a batch is dealt to ranks by count and by cost."""
    prices = costs.prices([graph.num_vertices for graph in graphs])
    depths = [graph.depth for graph in graphs]
    return DealComparison(
        by_count=deal_by_count(prices, num_ranks, depths=depths, level_cost=costs.level_seconds),
        by_cost=deal(prices, num_ranks, depths=depths, level_cost=costs.level_seconds),
    )
