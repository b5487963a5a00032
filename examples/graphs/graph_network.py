"""A graph network over graphs of different sizes: it finds the vertices that a marked vertex can reach in few steps.

Each layer is a layer of vertices of the input graph. Vertices with the same number of neighbours run together.

    autosync graph analyse examples/graphs/graph_network.py
    autosync tune examples/graphs/graph_network.py --cluster 4-hosts
"""

import random

import torch
from torch.nn import functional

from autosync.graphs.families import layered
from autosync.graphs.graph_task import GraphTask
from autosync.graphs.vertex_function import VertexFunction
from autosync.graphs.vertex_model import VertexModel

WIDTH = 32
NUM_LAYERS = 3
NUM_EXAMPLES = 128


class Embed(VertexFunction):
    """Layer 0: the state of a vertex comes from its input."""

    def __init__(self):
        super().__init__()
        self.inward = torch.nn.Linear(1, WIDTH)

    def pull(self, inputs):
        return self.inward(inputs)

    def forward(self, pulled, _children):
        return pulled.relu()


class Update(VertexFunction):
    """A later layer: a vertex reads itself and the sum of its neighbours."""

    def __init__(self):
        super().__init__()
        self.own = torch.nn.Linear(WIDTH, WIDTH)
        self.others = torch.nn.Linear(WIDTH, WIDTH)
        self.outward = torch.nn.Linear(WIDTH, 1)

    def forward(self, _pulled, children):
        return (self.own(children[:, 0]) + self.others(children[:, 1:].sum(dim=1))).relu()

    def push(self, states):
        return self.outward(states)


def random_graph(chance):
    """Return a random graph with one marked vertex. The target says which vertices it reaches."""
    size = chance.randint(5, 60)
    neighbours = [[] for _ in range(size)]
    for one in range(1, size):
        other = chance.randrange(max(0, one - 4), one)
        neighbours[one].append(other)
        neighbours[other].append(one)
    marked = chance.randrange(size)
    reached = {marked}
    for _ in range(NUM_LAYERS):
        reached |= {other for one in reached for other in neighbours[one]}
    inputs = torch.zeros(size, 1)
    inputs[marked] = 1.0
    target = torch.tensor([float(one in reached) for one in range(size)])
    return layered(neighbours, inputs, num_layers=NUM_LAYERS, target=target)


def loss(rows, graphs):
    return functional.binary_cross_entropy_with_logits(rows.squeeze(1), torch.cat([graph.target for graph in graphs]))


def weight(graphs):
    """Return how many vertices the loss is the mean of."""
    return sum(len(graph.target) for graph in graphs)


def graph_task():
    """Return the model and its graphs."""
    torch.manual_seed(7)
    chance = random.Random(7)
    model = VertexModel({"embed": Embed(), "update": Update()}, state_width=WIDTH)
    graphs = [random_graph(chance) for _ in range(NUM_EXAMPLES)]
    return GraphTask(model=model, graphs=graphs, loss=loss, weight=weight, batch_size=32)


def task():
    """Return the training, for `autosync profile` and `autosync tune`."""
    return graph_task().task(lambda parameters: torch.optim.Adam(parameters, lr=0.01))
