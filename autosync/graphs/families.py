"""Makes input graphs of common families: sequences, trees, and the layers of a graph network."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from autosync.errors import InputError, Problem
from autosync.graphs.input_graph import InputGraph


def sequence(inputs: torch.Tensor, *, target: Any = None) -> InputGraph:
    """Return a chain in which each vertex reads the one before it. The last vertex is the output."""
    size = len(inputs)
    children = [[step - 1] if step else [] for step in range(size)]
    return InputGraph(children=children, inputs=inputs, outputs=[size - 1] if size else None, target=target)


def tree(
    parents: Sequence[int],
    inputs: torch.Tensor,
    *,
    leaf: str = "leaf",
    inner: str = "inner",
    outputs: Sequence[int] | None = None,
    target: Any = None,
) -> InputGraph:
    """Return a tree from each vertex's parent; the root has the parent -1. Children keep the order of their numbers."""
    children: list[list[int]] = [[] for _ in parents]
    for vertex, parent in enumerate(parents):
        if parent != -1:
            if not 0 <= parent < len(parents):
                what, rule = f"{parent!r} is no vertex of this tree", "a parent is a vertex; the root's is -1"
                raise InputError([Problem(what=what, rule=rule, path=("parents", vertex))])
            children[parent].append(vertex)
    num_roots = sum(parent == -1 for parent in parents)
    if parents and num_roots != 1:
        what = f"the tree has {num_roots} roots"
        raise InputError([Problem(what=what, rule="a tree has one root, whose parent is -1", path=("parents",))])
    kinds = [inner if below else leaf for below in children]
    return InputGraph(children=children, inputs=inputs, kinds=kinds, outputs=outputs, target=target)


def layered(
    neighbours: Sequence[Sequence[int]],
    inputs: torch.Tensor,
    *,
    num_layers: int,
    first: str = "embed",
    later: str = "update",
    target: Any = None,
) -> InputGraph:
    """Return the layers of a graph network on one graph, which may have cycles.

    Vertex `v` of layer 0 reads the row `inputs[v]`. In each later layer, `v` reads its own state in the layer before,
    then those of its neighbours. The vertices of the last layer are the outputs.
    """
    size = len(neighbours)
    if num_layers < 1:
        raise InputError(f"{num_layers} layers", rule="a graph network has at least one layer after the first")
    for vertex, others in enumerate(neighbours):
        for other in others:
            if not 0 <= other < size:
                what, rule = f"{other!r} is no vertex of this graph", f"a neighbour is a number from 0 to {size - 1}"
                raise InputError([Problem(what=what, rule=rule, path=("neighbours", vertex))])
    children: list[list[int]] = [[] for _ in range(size)]
    for layer in range(num_layers):
        below = layer * size
        children += [[below + one for one in (vertex, *others)] for vertex, others in enumerate(neighbours)]
    return InputGraph(
        children=children,
        inputs=inputs.repeat(num_layers + 1, *[1] * (inputs.dim() - 1)),
        kinds=[first] * size + [later] * (size * num_layers),
        outputs=range(num_layers * size, (num_layers + 1) * size),
        target=target,
    )
