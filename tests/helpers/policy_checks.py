"""Every policy on a random model gives the outputs and gradients of one vertex after the other."""

from __future__ import annotations

import random

import torch

from autosync.graphs.graph_batch import join
from autosync.graphs.input_graph import InputGraph
from autosync.graphs.order_search import search_table
from autosync.graphs.policy import BatchingPolicy
from autosync.graphs.vertex_model import VertexModel
from autosync.specs.task_run import move
from tests.helpers.random_graphs import random_family, random_model

CPU = torch.device("cpu")
NAIVE = BatchingPolicy(order="naive")


def _policies(chance: random.Random, model: VertexModel, graphs: list[InputGraph]) -> list[BatchingPolicy]:
    table = search_table([join(graphs, model.kinds)], most_trials=chance.choice([5, 30]))
    return [
        BatchingPolicy(order=order, lazy_weights=lazy, table=table if order == "searched" else {})
        for order in ("depth", "agenda", "searched")
        for lazy in (False, True)
    ]


def run_model(
    model: VertexModel, graphs: list[InputGraph], policy: BatchingPolicy
) -> tuple[torch.Tensor, list[torch.Tensor | None]]:
    """The outputs and the parameters' gradients of a loss that weighs every output differently."""
    model.policy = policy
    model.zero_grad()
    rows = model(graphs)
    weights = torch.linspace(-1, 1, rows.numel(), dtype=rows.dtype, device=rows.device).view_as(rows)
    if rows.requires_grad:
        (rows * weights + rows.square()).sum().backward()
    return rows.detach(), [one.grad for one in model.parameters()]


def check_policies(seed: int, device: torch.device = CPU) -> None:
    chance = random.Random(seed)
    model = random_model(chance)
    graphs = move([random_family(chance, model.kinds) for _ in range(chance.randint(1, 6))], device)
    model = model.to(device)
    if not any(len(graph.output_list) for graph in graphs):
        return
    rows, gradients = run_model(model, graphs, NAIVE)
    for policy in _policies(chance, model, graphs):
        batched, others = run_model(model, graphs, policy)
        assert torch.allclose(batched, rows, rtol=1e-10, atol=1e-12), (seed, policy.name)
        for (name, _), ours, theirs in zip(model.named_parameters(), others, gradients, strict=True):
            # A parameter that only unread vertices use may have zeros instead of no gradient.
            if ours is None or theirs is None:
                assert all(one is None or not one.any() for one in (ours, theirs)), (seed, policy.name, name)
            else:
                assert torch.allclose(ours, theirs, rtol=1e-9, atol=1e-11), (seed, policy.name, name)
