"""What a user's file declares about a model of vertex functions: the model, its data and its loss."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import torch

from autosync.errors import InputError, Problem
from autosync.graphs.dealt_batch import graphs_of, loss_of
from autosync.graphs.input_graph import GraphLoss, InputGraph
from autosync.graphs.tuned_batching import TunedBatching
from autosync.graphs.vertex_model import VertexModel
from autosync.specs.task import Task


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class GraphTask:
    """A model, examples, a loss of the model's rows and the batch's graphs, and the number of examples in a batch.

    The loss is a mean over the batch's examples. If it is a mean over something else, such as vertices, `weight` says
    how many of them some graphs have; then dealing by cost keeps the mean over the global batch right.
    """

    model: VertexModel
    graphs: Sequence[InputGraph]
    loss: GraphLoss
    batch_size: int = 64
    weight: Callable[[Sequence[InputGraph]], float] | None = None

    def __post_init__(self) -> None:
        problems = []
        # A user's file is not checked for types.
        model: object = self.model
        loss: object = self.loss
        if not isinstance(model, VertexModel):
            what = f"the model is of type {type(model).__name__}"
            problems.append(Problem(what=what, rule="must be a VertexModel", path=("model",)))
        if not self.graphs or not all(isinstance(graph, InputGraph) for graph in self.graphs):
            rule = "at least one graph, each an InputGraph"
            problems.append(Problem(what="the graphs cannot be used", rule=rule, path=("graphs",)))
        if not callable(loss):
            problems.append(Problem(what="the loss is no function", rule="loss(rows, graphs)", path=("loss",)))
        weight: object = self.weight
        if weight is not None and not callable(weight):
            problems.append(Problem(what="the weight is no function", rule="weight(graphs)", path=("weight",)))
        if self.batch_size < 1:
            problems.append(Problem(what=f"batch size {self.batch_size}", rule="at least 1", path=("batch_size",)))
        if problems:
            raise InputError(problems)

    def task(self, optimizer: Callable[[Iterable[torch.nn.Parameter]], torch.optim.Optimizer]) -> Task:
        """Return the training of this model: each rank draws random examples, and steps use the model's policy."""
        return Task(
            model=lambda: copy.deepcopy(self.model),
            batch=self._drawn,
            loss=lambda model, batch: loss_of(model, batch, self.loss),
            optimizer=optimizer,
            batch_size=self.batch_size,
            weight=None if self.weight is None else lambda batch: self._weight_of(graphs_of(batch)),
            graphs=TunedBatching(loss=self.loss, weight=self.weight),
        )

    def _weight_of(self, graphs: Sequence[InputGraph]) -> float:
        assert self.weight is not None, "asked of tasks that weigh their batches"
        return self.weight(graphs)

    def _drawn(self, generator: torch.Generator) -> list[InputGraph]:
        """Return the examples of a batch: different ones, if there are as many."""
        count = len(self.graphs)
        if count >= self.batch_size:
            chosen = torch.randperm(count, generator=generator)[: self.batch_size]
        else:
            chosen = torch.randint(count, (self.batch_size,), generator=generator)
        return [self.graphs[number] for number in chosen.tolist()]

    def batches(self, num_batches: int, batch_size: int | None = None) -> list[list[InputGraph]]:
        """Return the first batches, the last one perhaps smaller. Examples are taken in their given order."""
        size = batch_size or self.batch_size
        starts = range(0, len(self.graphs), size)[:num_batches]
        return [list(self.graphs[start : start + size]) for start in starts]
