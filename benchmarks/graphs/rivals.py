"""Measures a step of the example's Tree-LSTM here and under DyNet's automatic batching, on the same trees and weights.

    python -m pip install --constraint constraints.txt --no-build-isolation '.[rivals]'
    python benchmarks/graphs/rivals.py > rivals.json

Both run in turn in one process on one thread; times are processor times. A step is forward, loss and backward. Ours
runs by the policy that is the fastest in a first round. The exit code is 1 if DyNet is faster, or if the two losses
differ by more than rounding: then they would not be the same model. DGL does not run with today's torch, and PyG has no
batching of trees by level.
"""

from __future__ import annotations

import runpy
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from autosync.errors import OperationError
from autosync.graphs.choose_policy import candidates
from autosync.graphs.graph_task import GraphTask
from autosync.graphs.input_graph import InputGraph
from autosync.trials.statistics import min_rounds, round_ratio

sys.path.append(str(Path(__file__).parents[2]))
from benchmarks.shared import parser_of, report, run, tell

EXAMPLE = Path(__file__).parents[2] / "examples/graphs/tree_lstm.py"
MOST_DIFFERENCE = 1e-4
MEMORY_MEGABYTES = "8000"


def main() -> int:
    parser = parser_of(__doc__)
    parser.add_argument("--batch-sizes", type=int, nargs="+", default=[64, 256])
    parser.add_argument("--widths", type=int, nargs="+", default=[128, 512])
    parser.add_argument("--rounds", type=int, default=8)
    options = parser.parse_args()
    torch.set_num_threads(1)
    dynet = load_dynet()
    make = runpy.run_path(str(EXAMPLE))["graph_task"]
    cases = []
    for width in options.widths:
        task = make(width=width)
        rival = TreeLstm(dynet, task, width)
        for size in options.batch_sizes:
            tell(f"width {width}, batch {size}")
            cases.append({"width": width, "batch_size": size, **compared(task, rival, size, options.rounds)})
    holds = all(one["times_as_fast"] >= 1 and one["difference"] <= MOST_DIFFERENCE for one in cases)
    return report({"rounds": options.rounds, "cases": cases}, holds=holds)


def load_dynet() -> Any:
    """Return the module, with automatic batching."""
    try:
        import dynet_config
    except ImportError:
        raise OperationError("DyNet is not installed (python -m pip install '.[rivals]')") from None
    dynet_config.set(mem=MEMORY_MEGABYTES, autobatch=1, random_seed=1)
    import dynet

    return dynet


def compared(task: GraphTask, rival: TreeLstm, batch_size: int, num_rounds: int) -> dict[str, Any]:
    """Return the times of both on one batch, their ratio and the difference of their losses."""
    graphs = task.batches(1, batch_size)[0]
    policies = candidates(task.model, [graphs])
    first = []
    for policy in policies:
        task.model.policy = policy
        # The first step of a policy prepares what later ones use.
        first.append(timed(lambda: our_step(task, graphs), 2)[-1])
    task.model.policy = policies[first.index(min(first))]
    ours, theirs = [], []
    losses = our_step(task, graphs), rival.step(graphs)
    for _ in range(num_rounds):
        ours += timed(lambda: our_step(task, graphs))
        theirs += timed(lambda: rival.step(graphs))
    ratio = round_ratio([[one] for one in theirs], [[one] for one in ours])
    return {
        "policy": task.model.policy.name,
        "times_as_fast": ratio.value,
        "interval": [ratio.low, ratio.high] if num_rounds >= min_rounds() else None,
        "losses": losses,
        "difference": abs(losses[0] / losses[1] - 1),
        "ours": statistics.median(ours),
        "dynet": statistics.median(theirs),
    }


def timed(step: Callable[[], float], count: int = 1) -> list[float]:
    """Return the processor times of some steps."""
    found = []
    for _ in range(count):
        start = time.process_time()
        step()
        found.append(time.process_time() - start)
    return found


def our_step(task: GraphTask, graphs: Sequence[InputGraph]) -> float:
    """Run a step, and return its loss."""
    task.model.zero_grad()
    value = task.loss(task.model(graphs), graphs)
    value.backward()
    return float(value.detach())


class TreeLstm:
    """The example's model as a user of DyNet writes it: one tree after the other, batched by DyNet."""

    def __init__(self, dynet: Any, task: GraphTask, width: int) -> None:
        self._dynet, self._width = dynet, width
        leaf, inner = "functions.leaf_vertex", "functions.inner_vertex"
        # DyNet frees the parameters of a collection that nobody holds.
        held = self._held = dynet.ParameterCollection()
        weights = {name: one.detach().numpy() for name, one in task.model.named_parameters()}
        self._words = held.lookup_parameters_from_numpy(weights[f"{leaf}.words.weight"])
        places = {"leaf": f"{leaf}.gates", "inner": f"{inner}.gates", "labels": f"{leaf}.classifier"}
        self._linears = {
            name: [held.parameters_from_numpy(weights[f"{place}.{part}"]) for part in ("bias", "weight")]
            for name, place in places.items()
        }

    def step(self, graphs: Sequence[InputGraph]) -> float:
        """Run a step, and return its loss."""
        dynet = self._dynet
        dynet.renew_cg()
        losses: list[Any] = []
        for graph in graphs:
            self._below(graph, 0, losses)
        value = dynet.esum(losses) / len(losses)
        value.forward()
        value.backward()
        return float(value.value())

    def _below(self, graph: InputGraph, vertex: int, losses: list[Any]) -> tuple[Any, Any]:
        """Return the hidden state and the cell of a vertex, and append its loss and those of the vertices below it."""
        children = [self._below(graph, child, losses) for child in graph.children[vertex]]
        hidden, cell = self._inner(*children) if children else self._leaf(int(graph.inputs[vertex]))
        scores = self._linear("labels", hidden)
        losses.append(self._dynet.pickneglogsoftmax(scores, int(graph.target[vertex])))
        return hidden, cell

    def _leaf(self, word: int) -> tuple[Any, Any]:
        write, show, new = self._chunks(self._linear("leaf", self._words[word]), 3)
        dynet = self._dynet
        cell = dynet.cmult(dynet.logistic(write), dynet.tanh(new))
        return dynet.cmult(dynet.logistic(show), dynet.tanh(cell)), cell

    def _inner(self, left: tuple[Any, Any], right: tuple[Any, Any]) -> tuple[Any, Any]:
        dynet = self._dynet
        gates = self._linear("inner", dynet.concatenate([left[0], right[0]]))
        write, show, new, *forget = self._chunks(gates, 5)
        kept = [dynet.cmult(dynet.logistic(one), cell) for one, cell in zip(forget, (left[1], right[1]), strict=True)]
        cell = dynet.cmult(dynet.logistic(write), dynet.tanh(new)) + kept[0] + kept[1]
        return dynet.cmult(dynet.logistic(show), dynet.tanh(cell)), cell

    def _linear(self, name: str, value: Any) -> Any:
        return self._dynet.affine_transform([*self._linears[name], value])

    def _chunks(self, value: Any, count: int) -> list[Any]:
        return [self._dynet.pick_range(value, part * self._width, (part + 1) * self._width) for part in range(count)]


if __name__ == "__main__":
    run(main)
