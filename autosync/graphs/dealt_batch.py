"""A rank's part of a global batch of graphs, dealt by cost, with the factor that keeps the mean over all of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from autosync.errors import InputError
from autosync.graphs.dealing import deal, deal_by_count
from autosync.graphs.example_costs import StepCosts
from autosync.graphs.input_graph import GraphLoss, InputGraph
from autosync.specs.graph_batching import GraphProfile
from autosync.strategy.bundle import Bundle, load_bundle


@dataclass(frozen=True, slots=True, kw_only=True)
class DealtBatch:
    """One rank's graphs. If ranks average their gradients, a mean over them has to be multiplied by `factor`."""

    graphs: list[InputGraph]
    factor: float


def graphs_of(batch: DealtBatch | list[InputGraph]) -> list[InputGraph]:
    return batch.graphs if isinstance(batch, DealtBatch) else batch


def loss_of(model: Callable[..., Any], batch: DealtBatch | list[InputGraph], loss: GraphLoss) -> torch.Tensor:
    """Return the loss of a batch, dealt by cost or not."""
    graphs = graphs_of(batch)
    value = loss(model(graphs), graphs)
    return value * batch.factor if isinstance(batch, DealtBatch) else value


def deal_graphs(graphs: Sequence[InputGraph], profile: GraphProfile, *, num_ranks: int) -> list[DealtBatch]:
    """Deal a global batch by the costs of a profile; return the part of each rank."""
    costs = StepCosts(vertex_seconds=profile.vertex_seconds, level_seconds=profile.level_seconds)
    prices = costs.prices([one.num_vertices for one in graphs])
    depths = [one.depth for one in graphs]
    dealt = deal(prices, num_ranks, depths=depths, level_cost=profile.level_seconds)
    weights = dealt.rank_weights
    return [
        DealtBatch(graphs=[graphs[number] for number in own], factor=factor)
        for own, factor in zip(dealt.examples, weights, strict=True)
    ]


def deal_batch(graphs: Sequence[InputGraph], bundle: Bundle | Path | str, *, rank: int) -> DealtBatch:
    """Return a rank's part of a global batch, dealt as the bundle's strategy says. All ranks give the same graphs.

    Multiply the mean loss of these graphs by `factor`. A program whose loss is not a mean over examples calls
    `autosync.weigh` instead.
    """
    found = bundle if isinstance(bundle, Bundle) else load_bundle(bundle)
    num_ranks = found.cluster.num_workers
    if not 0 <= rank < num_ranks:
        raise InputError(f"rank {rank}", rule=f"one of the bundle's {num_ranks} workers, counted from 0")
    batching, profile = found.strategy.batching, found.model.graphs
    if batching is not None and batching.dealing == "cost":
        assert profile is not None, "a legal strategy that deals by cost has a profile of graphs"
        return deal_graphs(graphs, profile, num_ranks=num_ranks)[rank]
    own = deal_by_count([1.0] * len(graphs), num_ranks)
    return DealtBatch(graphs=[graphs[one] for one in own.examples[rank]], factor=own.rank_weights[rank])
