"""Small tasks of graphs in float64: sequences of very different lengths, with a mean over examples or over vertices."""

from collections.abc import Callable, Sequence

import torch
from torch.nn import functional

from autosync import Task
from autosync.graphs.graph_task import GraphTask
from autosync.graphs.input_graph import InputGraph
from autosync.graphs.vertex_function import VertexFunction
from autosync.graphs.vertex_model import VertexModel

BATCH = 6
WIDTH = 5


class Recurrent(VertexFunction):
    def __init__(self) -> None:
        super().__init__()
        self.inward = torch.nn.Linear(2, WIDTH)
        self.across = torch.nn.Linear(WIDTH, WIDTH, bias=False)
        self.outward = torch.nn.Linear(WIDTH, 3)

    def pull(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.inward(inputs)

    def forward(self, pulled: torch.Tensor, children: torch.Tensor) -> torch.Tensor:
        return (pulled + self.across(children.sum(dim=1))).tanh()

    def push(self, states: torch.Tensor) -> torch.Tensor:
        return self.outward(states)


def _chain(size: int, generator: torch.Generator) -> InputGraph:
    children = [[vertex - 1] if vertex else [] for vertex in range(size)]
    inputs = torch.randn(size, 2, generator=generator, dtype=torch.float64)
    return InputGraph(children=children, inputs=inputs, target=torch.randint(3, (size,), generator=generator))


def over_vertices(rows: torch.Tensor, graphs: Sequence[InputGraph]) -> torch.Tensor:
    return functional.cross_entropy(rows, torch.cat([graph.target for graph in graphs]))


def over_examples(rows: torch.Tensor, graphs: Sequence[InputGraph]) -> torch.Tensor:
    parts = rows.split([graph.num_vertices for graph in graphs])
    return torch.stack(
        [functional.cross_entropy(part, graph.target) for part, graph in zip(parts, graphs, strict=True)]
    ).mean()


def num_vertices(graphs: Sequence[InputGraph]) -> float:
    return sum(graph.num_vertices for graph in graphs)


def _task(loss: Callable[..., torch.Tensor], weight: Callable[..., float] | None) -> Task:
    generator = torch.Generator().manual_seed(11)
    torch.manual_seed(11)
    graphs = [_chain(size, generator) for size in (1, 1, 2, 2, 3, 3, 4, 5, 8, 12, 16, 20)]
    model = VertexModel(Recurrent(), state_width=WIDTH).double()
    found = GraphTask(model=model, graphs=graphs, loss=loss, weight=weight, batch_size=BATCH)
    return found.task(lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9))


def examples() -> Task:
    return _task(over_examples, None)


def vertices() -> Task:
    return _task(over_vertices, num_vertices)


TASKS: dict[str, Callable[[], Task]] = {"examples": examples, "vertices": vertices}
