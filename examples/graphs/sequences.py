"""Sequences of different lengths: a recurrent cell says whether a random walk ends above its start.

A sequence is a graph too: each step reads the state of the step before it. No sequence is padded.

    autosync graph analyse examples/graphs/sequences.py
    autosync tune examples/graphs/sequences.py --cluster 4-hosts
"""

import random

import torch
from torch.nn import functional

from autosync.graphs.families import sequence
from autosync.graphs.graph_task import GraphTask
from autosync.graphs.vertex_function import VertexFunction
from autosync.graphs.vertex_model import VertexModel

WIDTH = 64
NUM_EXAMPLES = 256


class Step(VertexFunction):
    """A recurrent cell. The product with the inputs is made for all steps at once, in `pull`."""

    def __init__(self):
        super().__init__()
        self.inward = torch.nn.Linear(1, WIDTH)
        self.across = torch.nn.Linear(WIDTH, WIDTH, bias=False)
        self.outward = torch.nn.Linear(WIDTH, 1)

    def pull(self, inputs):
        return self.inward(inputs)

    def forward(self, pulled, children):
        # The first step has no child, so the sum is zero.
        return (pulled + self.across(children.sum(dim=1))).tanh()

    def push(self, states):
        return self.outward(states)


def walk(chance):
    """Return a random walk. Most are short, and a few are very long."""
    length = min(200, 5 + int(chance.paretovariate(1.5) * 5))
    steps = [chance.gauss(0, 1) for _ in range(length)]
    return sequence(torch.tensor(steps).unsqueeze(1), target=float(sum(steps) > 0))


def loss(rows, graphs):
    targets = torch.tensor([graph.target for graph in graphs])
    return functional.binary_cross_entropy_with_logits(rows.squeeze(1), targets)


def graph_task():
    """Return the model and its walks."""
    torch.manual_seed(5)
    chance = random.Random(5)
    model = VertexModel(Step(), state_width=WIDTH)
    return GraphTask(model=model, graphs=[walk(chance) for _ in range(NUM_EXAMPLES)], loss=loss, batch_size=64)


def task():
    """Return the training, for `autosync profile` and `autosync tune`."""
    return graph_task().task(lambda parameters: torch.optim.Adam(parameters, lr=0.01))
