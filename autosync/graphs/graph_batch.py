"""The graphs of a batch as one graph in numpy arrays, and the signatures of its vertices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from autosync.errors import InputError, UnknownNameError
from autosync.graphs.input_graph import InputGraph, Integers


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class GraphBatch:
    """All vertices of a batch, numbered through: those of the first example first.

    Vertices with the same signature (kind and number of children) may run together. `signatures` has the number of each
    vertex's signature, `signature_kinds` and `signature_arities` describe them.
    """

    child_starts: Integers
    child_list: Integers
    heights: Integers
    examples: Integers
    signatures: Integers
    signature_kinds: tuple[str, ...]
    signature_arities: tuple[int, ...]
    outputs: Integers

    @property
    def num_vertices(self) -> int:
        return len(self.heights)

    def name_of(self, signature: int) -> str:
        """Return the name of a signature in files and output: `inner/2` is an inner vertex with two children."""
        return f"{self.signature_kinds[signature]}/{self.signature_arities[signature]}"


def join(graphs: Sequence[InputGraph], kinds: Sequence[str]) -> GraphBatch:
    """Return the graphs as one batch. `kinds` are the kinds that the model has."""
    if not graphs:
        raise InputError("the batch has no graphs", rule="a batch has at least one graph")
    sizes = np.array([graph.num_vertices for graph in graphs])
    firsts = np.cumsum(sizes) - sizes
    arities = np.concatenate([graph.child_starts[1:] - graph.child_starts[:-1] for graph in graphs])
    starts = np.zeros(len(arities) + 1, dtype=np.int64)
    np.cumsum(arities, out=starts[1:])
    num_children = np.array([len(graph.child_list) for graph in graphs])
    num_outputs = np.array([len(graph.output_list) for graph in graphs])
    codes = _kind_codes(graphs, {name: code for code, name in enumerate(kinds)})
    width = int(arities.max()) + 1
    found, signatures = np.unique(codes * width + arities, return_inverse=True)
    return GraphBatch(
        child_starts=starts,
        child_list=np.concatenate([graph.child_list for graph in graphs]) + np.repeat(firsts, num_children),
        heights=np.concatenate([graph.heights for graph in graphs]),
        examples=np.repeat(np.arange(len(graphs)), sizes),
        signatures=signatures,
        signature_kinds=tuple(kinds[code] for code in found // width),
        signature_arities=tuple((found % width).tolist()),
        outputs=np.concatenate([graph.output_list for graph in graphs]) + np.repeat(firsts, num_outputs),
    )


def _kind_codes(graphs: Sequence[InputGraph], codes: Mapping[str, int]) -> Integers:
    """Return the number of each vertex's kind; raise UnknownNameError for a kind that the model does not have."""
    lookups: dict[tuple[str, ...], Integers] = {}
    pieces = []
    for number, graph in enumerate(graphs):
        names = graph.kind_names
        if names not in lookups:
            for name in names:
                if name not in codes:
                    raise UnknownNameError("kind of vertex", name, codes, path=("graphs", number, "kinds"))
            lookups[names] = np.array([codes[name] for name in names])
        pieces.append(lookups[names][graph.kind_codes])
    return np.concatenate(pieces)
