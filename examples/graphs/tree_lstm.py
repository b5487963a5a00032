"""Sentiment of sentences with a binary Tree-LSTM: every word and every phrase has a label.

The trees are synthetic. Their sizes are those of a treebank of film reviews: about 19 words, up to 52. A word has a
hidden mood, and some words negate the phrase to their right.

    autosync graph analyse examples/graphs/tree_lstm.py
    autosync tune examples/graphs/tree_lstm.py --cluster 4-hosts
    python examples/graphs/tree_lstm.py
"""

import random

import torch
from torch.nn import functional

from autosync.graphs.families import tree
from autosync.graphs.graph_task import GraphTask
from autosync.graphs.vertex_function import VertexFunction
from autosync.graphs.vertex_model import VertexModel

NUM_WORDS = 2_000
NUM_EXAMPLES = 512
NUM_LABELS = 3
NEGATIONS = range(40)


class Word(VertexFunction):
    """A leaf: its state comes from its word alone."""

    def __init__(self, width, classifier):
        super().__init__()
        self.words = torch.nn.Embedding(NUM_WORDS, width)
        self.gates = torch.nn.Linear(width, 3 * width)
        self.classifier = classifier

    def pull(self, inputs):
        return self.gates(self.words(inputs))

    def forward(self, pulled, _children):
        write, show, new = pulled.chunk(3, dim=1)
        cell = write.sigmoid() * new.tanh()
        return torch.cat([show.sigmoid() * cell.tanh(), cell], dim=1)

    def push(self, states):
        return self.classifier(states.chunk(2, dim=1)[0])


class Phrase(VertexFunction):
    """An inner vertex: it reads two phrases, and has a forget gate for each of them."""

    def __init__(self, width, classifier):
        super().__init__()
        self.gates = torch.nn.Linear(2 * width, 5 * width)
        self.classifier = classifier

    def pull(self, inputs):
        # A phrase has no input of its own.
        return inputs.new_empty(len(inputs), 0)

    def forward(self, _pulled, children):
        hidden, cells = children.chunk(2, dim=2)
        write, show, new, *forget = self.gates(hidden.flatten(1)).chunk(5, dim=1)
        kept = torch.stack(forget, dim=1).sigmoid() * cells
        cell = write.sigmoid() * new.tanh() + kept.sum(dim=1)
        return torch.cat([show.sigmoid() * cell.tanh(), cell], dim=1)

    def push(self, states):
        return self.classifier(states.chunk(2, dim=1)[0])


def tree_lstm(width):
    """Return the model. A state has two vectors of this width."""
    classifier = torch.nn.Linear(width, NUM_LABELS)
    return VertexModel({"leaf": Word(width, classifier), "inner": Phrase(width, classifier)}, state_width=2 * width)


def sentence(chance, moods):
    """Return a random tree of words. Its target has the label of each vertex."""
    parents, words, values = [], [], []

    def grow(length, parent):
        vertex = len(parents)
        parents.append(parent)
        words.append(chance.randrange(NUM_WORDS) if length == 1 else 0)
        values.append(0.0)
        if length == 1:
            values[vertex] = moods[words[vertex]]
        else:
            # English branches to the right: the left part is short more often than not.
            left = min(length - 1, 1 + int(chance.random() ** 2 * (length - 1)))
            first, second = grow(left, vertex), grow(length - left, vertex)
            negated = words[first] in NEGATIONS and left == 1
            values[vertex] = -values[second] if negated else 0.7 * (values[first] + values[second])
        return vertex

    grow(max(1, min(52, round(chance.gauss(19, 9)))), -1)
    labels = [0 if value < -0.5 else 2 if value > 0.5 else 1 for value in values]
    return tree(parents, torch.tensor(words), target=torch.tensor(labels))


def loss(rows, graphs):
    """Return the mean cross-entropy of all words and phrases."""
    return functional.cross_entropy(rows, torch.cat([graph.target for graph in graphs]))


def weight(graphs):
    """Return how many words and phrases the loss is the mean of."""
    return sum(len(graph.target) for graph in graphs)


def graph_task(width=128):
    """Return the model and its sentences."""
    torch.manual_seed(3)
    chance = random.Random(3)
    moods = [chance.gauss(0, 1) for _ in range(NUM_WORDS)]
    graphs = [sentence(chance, moods) for _ in range(NUM_EXAMPLES)]
    return GraphTask(model=tree_lstm(width), graphs=graphs, loss=loss, weight=weight, batch_size=64)


def task():
    """Return the training, for `autosync profile` and `autosync tune`."""
    return graph_task().task(lambda parameters: torch.optim.Adam(parameters, lr=0.01))


def main():
    """Train for a few epochs."""
    task = graph_task(width=64)
    optimizer = torch.optim.Adam(task.model.parameters(), lr=0.01)
    for epoch in range(3):
        total = 0.0
        batches = task.batches(NUM_EXAMPLES)
        for graphs in batches:
            optimizer.zero_grad()
            value = task.loss(task.model(graphs), graphs)
            value.backward()
            optimizer.step()
            total += value.item()
        print(f"epoch {epoch + 1}: loss {total / len(batches):.3f}")


if __name__ == "__main__":
    main()
