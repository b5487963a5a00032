"""What a user's file declares about a model of vertex functions: the model, its data and its loss."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from autosync.errors import InputError, Problem
from autosync.graphs.input_graph import InputGraph
from autosync.graphs.vertex_model import VertexModel

GraphLoss = Callable[[torch.Tensor, Sequence[InputGraph]], torch.Tensor]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class GraphTask:
    """A model, examples, a loss of the model's rows and the batch's graphs, and the number of examples in a batch."""

    model: VertexModel
    graphs: Sequence[InputGraph]
    loss: GraphLoss
    batch_size: int = 64

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
        if self.batch_size < 1:
            problems.append(Problem(what=f"batch size {self.batch_size}", rule="at least 1", path=("batch_size",)))
        if problems:
            raise InputError(problems)

    def batches(self, num_batches: int, batch_size: int | None = None) -> list[list[InputGraph]]:
        """Return the first batches, the last one perhaps smaller. Examples are taken in their given order."""
        size = batch_size or self.batch_size
        starts = range(0, len(self.graphs), size)[:num_batches]
        return [list(self.graphs[start : start + size]) for start in starts]
