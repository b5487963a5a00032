"""What a tuner needs to know and change of a model of vertex functions: its policies, and how examples are dealt."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from autosync.graphs.choose_policy import PolicyTiming, choose_policy, without_dropout
from autosync.graphs.dealing import deal
from autosync.graphs.dealt_batch import DealtBatch, deal_graphs
from autosync.graphs.example_costs import StepCosts, measure_costs
from autosync.graphs.input_graph import GraphLoss, InputGraph
from autosync.graphs.vertex_model import VertexModel
from autosync.specs import task_run
from autosync.specs.graph_batching import DealingTimes, GraphProfile, PolicySeconds
from autosync.specs.task import Task

NUM_MEASURED = 3
"""The number of batches on which policies are measured."""
NUM_ROUNDS = 5
NUMBERS_OF_WORKERS = (2, 4, 8, 16, 32)
"""The numbers of workers for which deals are compared."""
NUM_DEALS = 8
"""The number of global batches that are dealt for each number of workers."""

_TOLERANCE = 1e-3
"""The relative difference of gradients that rounding may make; other means differ by much more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TunedBatching:
    """Implements `specs.task.GraphTraining` for a loss and its weight (None: the loss is a mean over examples)."""

    loss: GraphLoss
    weight: Callable[[Sequence[InputGraph]], float] | None = None

    def measure(self, task: Task, generator: torch.Generator, device: torch.device) -> GraphProfile:
        """Measure the policies on drawn batches, fit the costs of examples, and compare deals."""
        model: Any = task_run.build_model(task).to(device)
        batches = [task_run.move(task_run.draw_batch(task, generator), device) for _ in range(NUM_MEASURED)]
        own = model.policy
        choice = choose_policy(model, batches, self.loss, num_rounds=NUM_ROUNDS, also=[own])
        model.policy = choice.policy
        costs = measure_costs(model, batches[0], self.loss)
        undealt = self._why_undealt(model, batches[0])
        drawn = _Draws(task, generator, batches)
        graphs = [graph for batch in batches for graph in batch]
        return GraphProfile(
            vertices=_quantiles([graph.num_vertices for graph in graphs]),
            depths=_quantiles([graph.depth for graph in graphs]),
            policies=tuple(_seconds(one) for one in choice.timings),
            table=next((dict(one.policy.table) for one in choice.timings if one.policy.table), {}),
            vertex_seconds=float(f"{costs.vertex_seconds:.4g}"),
            level_seconds=float(f"{costs.level_seconds:.4g}"),
            dealings=() if undealt else tuple(_dealing(drawn, number, costs) for number in NUMBERS_OF_WORKERS),
            undealt=undealt,
        )

    def deal(self, graphs: Sequence[InputGraph], profile: GraphProfile, *, rank: int, num_ranks: int) -> DealtBatch:
        """Return one rank's part of a global batch, dealt by cost."""
        part = deal_graphs(graphs, profile, num_ranks=num_ranks)[rank]
        # The weights of a task that weighs its batches are applied to gradients.
        return part if self.weight is None else replace(part, factor=1.0)

    def _why_undealt(self, model: VertexModel, batch: Sequence[InputGraph]) -> str:
        """Return why examples cannot be dealt by cost; empty if the loss is the declared mean.

        The gradient of the mean over a batch is compared with those of its smaller and its larger examples. Losses
        would say less: at the beginning of a training, those of all examples are nearly the same.
        """
        if len(batch) < 2:
            return "a batch of one example leaves nothing to deal"
        ordered = sorted(batch, key=lambda graph: graph.num_vertices)
        parts = [ordered[: len(batch) // 2], ordered[len(batch) // 2 :]]
        weights = [float(len(part) if self.weight is None else self.weight(part)) for part in parts]
        if not sum(weights):
            return "the task's weight of a batch is 0"
        whole, *gradients = [self._gradient(model, part) for part in (batch, *parts)]
        mean = sum(weight / sum(weights) * one for weight, one in zip(weights, gradients, strict=True))
        if float((whole - mean).norm()) <= _TOLERANCE * float(whole.norm()):
            return ""
        if self.weight is None:
            return "the loss is no mean over examples (give GraphTask the weight of graphs in its mean)"
        return "the loss is no mean by the task's weight (of two halves of a batch, and of the whole batch)"

    def _gradient(self, model: VertexModel, graphs: Sequence[InputGraph]) -> torch.Tensor:
        """Return all gradients of the mean over some graphs, one after the other. Dropout is off meanwhile."""
        trained = [one for one in model.parameters() if one.requires_grad]
        with without_dropout(model):
            loss = self.loss(model(graphs), graphs)
        found: Sequence[torch.Tensor | None] = torch.autograd.grad(loss, trained, allow_unused=True)
        flat = [torch.zeros_like(one) if grad is None else grad for one, grad in zip(trained, found, strict=True)]
        return torch.cat([one.to_dense().flatten().double() for one in flat])


class _Draws:
    """Draws examples of global batches, beginning with the batches that were already drawn."""

    def __init__(self, task: Task, generator: torch.Generator, batches: Sequence[Sequence[InputGraph]]) -> None:
        self._task = task
        self._generator = generator
        self._batches = [_sizes(batch) for batch in batches]

    def batches(self, count: int) -> Iterator[tuple[list[int], list[int]]]:
        """Yield the numbers of vertices and the depths of so many batches, one after the other."""
        while len(self._batches) < count:
            self._batches.append(_sizes(task_run.draw_batch(self._task, self._generator)))
        yield from self._batches[:count]


def _sizes(batch: Sequence[InputGraph]) -> tuple[list[int], list[int]]:
    return [graph.num_vertices for graph in batch], [graph.depth for graph in batch]


def _dealing(drawn: _Draws, num_workers: int, costs: StepCosts) -> DealingTimes:
    """Compare the deals of some global batches. Dealt by count, each rank keeps what it drew."""
    batches = list(drawn.batches(num_workers * NUM_DEALS))
    alone, by_count, by_cost = [], [], []
    for start in range(0, len(batches), num_workers):
        some = batches[start : start + num_workers]
        own = [sum(costs.prices(vertices)) + costs.level_seconds * max(depths) for vertices, depths in some]
        alone += own
        by_count.append(max(own))
        prices = costs.prices([one for vertices, _ in some for one in vertices])
        levels = [one for _, depths in some for one in depths]
        by_cost.append(max(deal(prices, num_workers, depths=levels, level_cost=costs.level_seconds).rank_costs))
    return DealingTimes(
        num_workers=num_workers,
        by_count=float(f"{np.mean(by_count) / np.mean(alone):.4g}"),
        by_cost=float(f"{np.mean(by_cost) / np.mean(alone):.4g}"),
    )


def _seconds(timing: PolicyTiming) -> PolicySeconds:
    policy = timing.policy
    return PolicySeconds(
        order=policy.order, lazy_weights=policy.lazy_weights, seconds=float(f"{timing.seconds / NUM_MEASURED:.4g}")
    )


def _quantiles(numbers: Sequence[int]) -> tuple[int, ...]:
    """Return the least, the median, 90 % and the most."""
    return tuple(int(one) for one in np.quantile(numbers, [0.0, 0.5, 0.9, 1.0], method="nearest"))
