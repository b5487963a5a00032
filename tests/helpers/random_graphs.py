"""Random models of vertex functions and random graphs for them; each is decided by a seed."""

import random

import torch

from autosync.graphs.families import layered, sequence, tree
from autosync.graphs.input_graph import InputGraph
from autosync.graphs.vertex_function import VertexFunction
from autosync.graphs.vertex_model import VertexModel

MOST_CHILDREN = 4
NUM_WORDS = 11


class RandomFunction(VertexFunction):
    """Combines its input with its children in a way that the seed decides."""

    def __init__(self, chance: random.Random, width: int, shared: torch.nn.Linear, push_width: int) -> None:
        super().__init__()
        self.combine = chance.choice(["sum", "positions", "first", "attention"])
        self.pulls = chance.choice(["words", "nothing", "words"])
        self.uses_shared = chance.random() < 0.5
        self.words = torch.nn.Embedding(NUM_WORDS, width)
        self.inward = torch.nn.Linear(width, width, bias=chance.random() < 0.5)
        self.across = shared if self.uses_shared else torch.nn.Linear(width, width, bias=chance.random() < 0.5)
        self.again = torch.nn.Linear(width, width)
        self.is_deep = chance.random() < 0.5
        self.positions = torch.nn.Parameter(torch.randn(MOST_CHILDREN + 1, width))
        self.matrix = torch.nn.Parameter(torch.randn(width, width) / width)
        self.outward = torch.nn.Linear(width, push_width)
        if chance.random() < 0.3:
            self.across.weight.requires_grad_(requires_grad=False)

    def pull(self, inputs: torch.Tensor) -> torch.Tensor:
        if self.pulls == "nothing":
            return self.matrix.new_zeros(len(inputs), self.matrix.shape[0])
        return self.inward(self.words(inputs))

    def forward(self, pulled: torch.Tensor, children: torch.Tensor) -> torch.Tensor:
        match self.combine:
            case "positions":
                read = (children * self.positions[: children.shape[1]]).sum(dim=1)
            case "first":
                read = children[:, :1].sum(dim=1) + 0.5 * children[:, -1:].sum(dim=1)
            case "attention":
                read = (
                    (self.across(children) * pulled.unsqueeze(1)).sum(dim=2, keepdim=True).sigmoid() * children
                ).sum(dim=1)
            case _:
                read = children.sum(dim=1)
        mixed = pulled + self.across(read) + 0.5 * read @ self.matrix
        if self.is_deep:
            mixed = self.again(self.across(mixed).tanh())
        return mixed.tanh()

    def push(self, states: torch.Tensor) -> torch.Tensor:
        return self.outward(states)


def random_model(chance: random.Random) -> VertexModel:
    """Return a model with one to three kinds, in float64."""
    torch.manual_seed(chance.randrange(2**31))
    width, push_width = chance.randint(1, 5), chance.randint(1, 3)
    shared = torch.nn.Linear(width, width)
    functions = {
        f"kind{number}": RandomFunction(chance, width, shared, push_width) for number in range(chance.randint(1, 3))
    }
    return VertexModel(functions, state_width=width).double()


def random_graph(chance: random.Random, kinds: tuple[str, ...]) -> InputGraph:
    """Return a directed graph without cycles, numbered at random, with vertices of these kinds."""
    size = chance.randint(1, 12)
    order = list(range(size))
    chance.shuffle(order)
    children: list[list[int]] = [[] for _ in range(size)]
    for place, vertex in enumerate(order):
        # The same child may be read twice.
        children[vertex] = (
            [chance.choice(order[:place]) for _ in range(chance.randint(0, MOST_CHILDREN))] if place else []
        )
    outputs = None if chance.random() < 0.5 else [chance.randrange(size) for _ in range(chance.randint(0, 3))]
    words = torch.tensor([chance.randrange(NUM_WORDS) for _ in range(size)])
    return InputGraph(
        children=children, inputs=words, kinds=[chance.choice(kinds) for _ in range(size)], outputs=outputs
    )


def random_family(chance: random.Random, kinds: tuple[str, ...]) -> InputGraph:
    """Return a sequence, a tree, the layers of a graph network, a lattice, or any graph without cycles."""
    size = chance.randint(1, 9)
    words = torch.tensor([chance.randrange(NUM_WORDS) for _ in range(size)])
    first, second = chance.choice(kinds), chance.choice(kinds)
    match chance.choice(["sequence", "tree", "layers", "lattice", "any"]):
        case "sequence":
            chain = sequence(words)
            return InputGraph(children=chain.children, inputs=words, kinds=[first] * size, outputs=chain.outputs)
        case "tree":
            parents = [-1]
            while len(parents) < size:
                full = [one for one in range(len(parents)) if parents.count(one) < MOST_CHILDREN]
                parents.append(chance.choice(full))
            return tree(parents, words, leaf=first, inner=second)
        case "layers":
            neighbours = [[chance.randrange(size) for _ in range(chance.randint(0, 3))] for _ in range(size)]
            return layered(neighbours, words, num_layers=chance.randint(1, 3), first=first, later=second)
        case "lattice":
            return lattice(chance, size, first, second)
        case _:
            return random_graph(chance, kinds)


def lattice(chance: random.Random, size: int, character: str, word: str) -> InputGraph:
    """Return a chain of characters, some of which also read a word that spans earlier ones."""
    children: list[list[int]] = [[step - 1] if step else [] for step in range(size)]
    kinds = [character] * size
    for end in range(2, size):
        if chance.random() < 0.4:
            children.append([chance.randrange(end - 1)])
            children[end].append(len(children) - 1)
            kinds.append(word)
    words = torch.tensor([chance.randrange(NUM_WORDS) for _ in kinds])
    return InputGraph(children=children, inputs=words, kinds=kinds)
