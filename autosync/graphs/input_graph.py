"""The graph of one example: vertices, the children that each vertex reads, and the vertices' inputs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from autosync.errors import InputError, Problem, first_problems

Integers = npt.NDArray[np.int64]

ANY_KIND = "vertex"
"""The kind of all vertices of a graph that names no kinds."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class InputGraph:
    """The graph of one example. A vertex is computed after its children, whose states it reads in the given order.

    `children[v]` lists the children of vertex `v`. `inputs` has one row for each vertex: word numbers, or features.
    `kinds[v]` names the vertex function of `v`; without kinds, all vertices have the same function. `outputs` lists the
    vertices whose results the model returns; without it, all vertices in their order. `target` is the user's own.

    The other fields follow from these. `child_list` has the children of all vertices one after the other, and vertex
    `v` has those from `child_starts[v]` to `child_starts[v + 1]`. A vertex without children has height 0; others are
    one higher than their highest child.
    """

    children: Sequence[Sequence[int]]
    inputs: torch.Tensor
    kinds: Sequence[str] = ()
    outputs: Sequence[int] | None = None
    target: Any = None
    child_starts: Integers = field(init=False, repr=False)
    child_list: Integers = field(init=False, repr=False)
    heights: Integers = field(init=False, repr=False)
    kind_names: tuple[str, ...] = field(init=False, repr=False)
    kind_codes: Integers = field(init=False, repr=False)
    output_list: Integers = field(init=False, repr=False)

    def __post_init__(self) -> None:
        problems = first_problems(list(self._problems()))
        if problems:
            raise InputError(problems)
        counts = [len(one) for one in self.children]
        starts = np.zeros(len(counts) + 1, dtype=np.int64)
        np.cumsum(counts, out=starts[1:])
        flat = np.fromiter((child for one in self.children for child in one), dtype=np.int64, count=int(starts[-1]))
        names = tuple(dict.fromkeys(self.kinds)) or (ANY_KIND,)
        codes = {name: code for code, name in enumerate(names)}
        outputs = range(len(counts)) if self.outputs is None else self.outputs
        values = {
            "child_starts": starts,
            "child_list": flat,
            "heights": _heights(self.children),
            "kind_names": names,
            "kind_codes": np.array([codes[kind] for kind in self.kinds] or [0] * len(counts), dtype=np.int64),
            "output_list": np.fromiter(outputs, dtype=np.int64, count=len(outputs)),
        }
        for name, value in values.items():
            object.__setattr__(self, name, value)

    @property
    def num_vertices(self) -> int:
        return len(self.children)

    @property
    def depth(self) -> int:
        """The number of vertices on the longest path."""
        return int(self.heights.max()) + 1

    def _problems(self) -> Iterator[Problem]:
        """Yield the mistakes that can be seen without following paths."""
        size = len(self.children)
        if not size:
            yield Problem(what="the graph is empty", rule="a graph has at least one vertex", path=("children",))
        for vertex, children in enumerate(self.children):
            yield from _bad_indices(children, size, ("children", vertex))
        yield from _bad_inputs(self.inputs, size)
        if self.kinds and len(self.kinds) != size:
            what = f"{len(self.kinds)} kinds for {size} vertices"
            yield Problem(what=what, rule="one kind for each vertex, or none at all", path=("kinds",))
        yield from _bad_kinds(self.kinds)
        if self.outputs is not None:
            yield from _bad_indices(self.outputs, size, ("outputs",))


def _bad_indices(indices: Iterable[object], size: int, path: tuple[str | int, ...]) -> Iterator[Problem]:
    for position, index in enumerate(indices):
        whole = isinstance(index, int | np.integer) and not isinstance(index, bool)
        if not whole or not 0 <= int(index) < size:  # type: ignore[call-overload]
            rule = f"a vertex is a number from 0 to {size - 1}"
            yield Problem(what=f"{index!r} is no vertex of this graph", rule=rule, path=(*path, position))


def _bad_inputs(inputs: object, size: int) -> Iterator[Problem]:
    if not isinstance(inputs, torch.Tensor) or inputs.dim() < 1 or len(inputs) != size:
        shape = tuple(inputs.shape) if isinstance(inputs, torch.Tensor) else type(inputs).__name__
        hint = "vertices without an input have any row, which their function does not read"
        rule = f"a tensor with one row for each of the {size} vertices"
        yield Problem(what=f"the inputs are {shape}", rule=rule, path=("inputs",), hint=hint)


def _bad_kinds(kinds: Sequence[object]) -> Iterator[Problem]:
    for vertex, kind in enumerate(kinds):
        if not isinstance(kind, str) or not kind:
            yield Problem(what=f"{kind!r} is no kind", rule="a kind is a name", path=("kinds", vertex))


def _heights(children: Sequence[Sequence[int]]) -> Integers:
    """Return the height of each vertex; raise InputError if the graph has a cycle."""
    parents: list[list[int]] = [[] for _ in children]
    missing = [len(one) for one in children]
    for vertex, below in enumerate(children):
        for child in below:
            parents[child].append(vertex)
    heights = [0] * len(children)
    ready = [vertex for vertex, count in enumerate(missing) if not count]
    for vertex in ready:
        above = heights[vertex] + 1
        for parent in parents[vertex]:
            heights[parent] = max(heights[parent], above)
            missing[parent] -= 1
            if not missing[parent]:
                ready.append(parent)
    if len(ready) < len(children):
        cycle = _cycle(children, {vertex for vertex, count in enumerate(missing) if count})
        what = f"vertices read each other in a cycle: {' -> '.join(map(str, cycle))}"
        rule = "a vertex is computed after its children"
        raise InputError([Problem(what=what, rule=rule, path=("children", cycle[0]), hint="unroll it in time steps")])
    return np.array(heights, dtype=np.int64)


def _cycle(children: Sequence[Sequence[int]], left: set[int]) -> list[int]:
    """Return a cycle among vertices that each have a child among them."""
    path, places = [min(left)], {min(left): 0}
    while True:
        following = next(child for child in children[path[-1]] if child in left)
        if following in places:
            return [*path[places[following] :], following]
        places[following] = len(path)
        path.append(following)


GraphLoss = Callable[[torch.Tensor, Sequence[InputGraph]], torch.Tensor]
"""A loss of the rows that a model returns, and the graphs of the batch."""
