"""Runs a model as it is written: one vertex after the other. This defines what batched execution has to return."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch

from autosync.graphs.input_graph import InputGraph
from autosync.graphs.vertex_function import VertexFunction


def run_naive(
    functions: Mapping[str, VertexFunction], graphs: Sequence[InputGraph], no_children: torch.Tensor
) -> torch.Tensor:
    """Return the pushed rows of all output vertices, example by example.

    `no_children` is what a vertex without children reads: (1, 0, width).
    """
    rows = [row for graph in graphs for row in _rows_of(functions, graph, no_children)]
    if rows:
        return torch.cat(rows)
    # Without output vertices there are no rows, as wide as those of a kind in the batch.
    kind = next((kind for graph in graphs for kind in graph.kinds or graph.kind_names), next(iter(functions)))
    return functions[kind].push(no_children.new_empty(0, no_children.shape[-1]))


def _rows_of(
    functions: Mapping[str, VertexFunction], graph: InputGraph, no_children: torch.Tensor
) -> list[torch.Tensor]:
    states: dict[int, torch.Tensor] = {}
    kinds = graph.kinds or graph.kind_names * graph.num_vertices
    for vertex in np.argsort(graph.heights, kind="stable").tolist():
        function = functions[kinds[vertex]]
        below = [states[child] for child in graph.children[vertex]]
        children = torch.cat(below).unsqueeze(0) if below else no_children
        states[vertex] = function(function.pull(graph.inputs[vertex : vertex + 1]), children)
    return [functions[kinds[vertex]].push(states[vertex]) for vertex in graph.output_list.tolist()]
