"""Input graphs: what follows from the children, the families, and what is refused."""

from typing import Any

import pytest
import torch

from autosync.errors import InputError
from autosync.graphs.families import layered, sequence, tree
from autosync.graphs.graph_batch import join
from autosync.graphs.input_graph import InputGraph


def test_heights_and_lists_follow_from_the_children() -> None:
    graph = InputGraph(children=[[1, 2], [2], [], [0, 0]], inputs=torch.zeros(4, 2))
    assert graph.heights.tolist() == [2, 1, 0, 3]
    assert graph.child_starts.tolist() == [0, 2, 3, 3, 5]
    assert graph.child_list.tolist() == [1, 2, 2, 0, 0]
    assert graph.output_list.tolist() == [0, 1, 2, 3]
    assert (graph.num_vertices, graph.depth) == (4, 4)


def test_families() -> None:
    chain = sequence(torch.zeros(3, 1), target=7)
    assert [list(one) for one in chain.children] == [[], [0], [1]]
    assert chain.output_list.tolist() == [2]
    assert chain.target == 7
    pair = tree([2, 2, -1], torch.arange(3))
    assert [list(one) for one in pair.children] == [[], [], [0, 1]]
    assert list(pair.kinds) == ["leaf", "leaf", "inner"]
    network = layered([[1], [0]], torch.tensor([[1.0], [2.0]]), num_layers=2)
    assert [list(one) for one in network.children] == [[], [], [0, 1], [1, 0], [2, 3], [3, 2]]
    assert list(network.kinds) == ["embed"] * 2 + ["update"] * 4
    assert network.output_list.tolist() == [4, 5]
    assert network.inputs.shape == (6, 1)


def test_vertices_of_a_batch_are_numbered_through() -> None:
    first, second = tree([-1, 0, 0], torch.arange(3)), tree([-1], torch.arange(1))
    batch = join([second, first], ("inner", "leaf"))
    assert batch.child_list.tolist() == [2, 3]
    assert batch.examples.tolist() == [0, 1, 1, 1]
    assert [batch.name_of(one) for one in batch.signatures] == ["leaf/0", "inner/2", "leaf/0", "leaf/0"]


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"children": []}, "children: the graph is empty (a graph has at least one vertex)"),
        ({"children": [[], [2], []], "size": 3}, None),
        ({"children": [[], [3], []], "size": 3}, "children[1][0]: 3 is no vertex of this graph"),
        ({"children": [[], [-1]], "size": 2}, "children[1][0]: -1 is no vertex"),
        ({"children": [[], [0.0]], "size": 2}, "children[1][0]: 0.0 is no vertex"),
        ({"children": [[], [True]], "size": 2}, "children[1][0]: True is no vertex"),
        ({"children": [[1], [2], [1], []], "size": 4}, "children[1]: vertices read each other in a cycle: 1 -> 2 -> 1"),
        ({"children": [[0]], "size": 1}, "in a cycle: 0 -> 0 (a vertex is computed after its children); unroll it"),
        ({"children": [[], [0]], "size": 3}, "inputs: the inputs are (3, 1) (a tensor with one row for each of the 2"),
        ({"children": [[]], "inputs": [[1.0]]}, "the inputs are list"),
        ({"children": [[]], "inputs": torch.tensor(1.0)}, "one row for each of the 1 vertices"),
        ({"children": [[]], "size": 1, "kinds": ["a", "b"]}, "kinds: 2 kinds for 1 vertices"),
        ({"children": [[]], "size": 1, "kinds": [3]}, "kinds[0]: 3 is no kind"),
        ({"children": [[]], "size": 1, "outputs": [1]}, "outputs[0]: 1 is no vertex of this graph"),
    ],
)
def test_mistakes_in_a_graph_are_refused(values: dict[str, Any], words: str | None) -> None:
    size = values.pop("size", 0)
    values = {"inputs": torch.zeros(size, 1), **values}
    if words is None:
        InputGraph(**values)
        return
    with pytest.raises(InputError) as caught:
        InputGraph(**values)
    assert words in str(caught.value)


def test_all_mistakes_of_a_graph_are_reported_together() -> None:
    with pytest.raises(InputError) as caught:
        InputGraph(children=[[5], [6]], inputs=torch.zeros(3, 1), kinds=["a"])
    assert len(caught.value.problems) == 4


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: sequence(torch.zeros(0, 1)), "the graph is empty"),
        (lambda: tree([-1, -1], torch.zeros(2)), "the tree has 2 roots"),
        (lambda: tree([-1, 4], torch.zeros(2)), "parents[1]: 4 is no vertex of this tree"),
        (lambda: tree([1, 0], torch.zeros(2)), "the tree has 0 roots"),
        (lambda: layered([[2], [0]], torch.zeros(2, 1), num_layers=1), "neighbours[0]: 2 is no vertex"),
        (lambda: layered([[]], torch.zeros(1, 1), num_layers=0), "0 layers"),
        (lambda: join([], ("a",)), "the batch has no graphs"),
    ],
)
def test_families_refuse_what_is_not_of_them(make: Any, words: str) -> None:
    with pytest.raises(InputError) as caught:
        make()
    assert words in str(caught.value)


def test_an_unknown_kind_is_named_with_the_known_ones() -> None:
    graph = tree([-1], torch.zeros(1), leaf="leef")
    with pytest.raises(InputError) as caught:
        join([graph], ("leaf", "inner"))
    assert "unknown kind of vertex 'leef' (known: inner, leaf)" in str(caught.value)
