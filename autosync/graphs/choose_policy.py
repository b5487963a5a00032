"""Chooses the batching policy of a model by measurement on batches of its own data.

Every policy runs the same batches in turn, forward and backward, round after round. So a disturbance of the machine
falls on all of them. Before that, each policy's results are compared with those of the naive execution.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from autosync.errors import InputError
from autosync.graphs.graph_batch import join
from autosync.graphs.input_graph import GraphLoss, InputGraph
from autosync.graphs.order_search import search_table
from autosync.graphs.policy import BatchingPolicy
from autosync.graphs.schedule import make_schedule
from autosync.graphs.vertex_model import VertexModel

_TOLERANCES = {torch.float64: 1e-8, torch.float32: 1e-3}
_LOOSE = 5e-2


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyTiming:
    """The steps of one policy: seconds of each round for all batches, of which schedules took `schedule_seconds`."""

    policy: BatchingPolicy
    num_groups: int
    num_vertices: int
    round_seconds: tuple[float, ...]
    schedule_seconds: float

    @property
    def seconds(self) -> float:
        """The median of the rounds."""
        return statistics.median(self.round_seconds)

    @property
    def schedule_share(self) -> float:
        return self.schedule_seconds / self.seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyChoice:
    """The fastest policy, and the measurements of all of them."""

    policy: BatchingPolicy
    timings: tuple[PolicyTiming, ...]


def candidates(model: VertexModel, batches: Sequence[Sequence[InputGraph]]) -> list[BatchingPolicy]:
    """Return the policies to measure: each order, with and without lazy weights.

    The searched order is left out if the search found nothing better than the agenda.
    """
    orders = [BatchingPolicy(order="depth"), BatchingPolicy(order="agenda")]
    table = search_table([join(graphs, model.kinds) for graphs in batches])
    if table:
        orders.append(BatchingPolicy(order="searched", table=table))
    lazy = [BatchingPolicy(order=one.order, table=one.table, lazy_weights=True) for one in orders]
    return [policy for pair in zip(orders, lazy, strict=True) for policy in pair]


def choose_policy(
    model: VertexModel,
    batches: Sequence[Sequence[InputGraph]],
    loss: GraphLoss,
    *,
    num_rounds: int = 5,
    also: Sequence[BatchingPolicy] = (),
) -> PolicyChoice:
    """Measure the policies on the batches and return the fastest. The model keeps its policy and its gradients.

    Policies in `also` are measured too, and come first. A naive one is never the fastest.
    """
    if not batches or num_rounds < 1:
        raise InputError(f"{len(batches)} batches, {num_rounds} rounds", rule="at least one batch and one round")
    known = {one.name for one in also}
    policies = [*also, *(one for one in candidates(model, batches) if one.name not in known)]
    naive = BatchingPolicy(order="naive")
    with _restored(model):
        _check_rows(model, batches[0], [naive, *policies])
        # The check warmed each policy up, and the first round of a process is still slower than later ones.
        seconds: list[list[float]] = [[] for _ in policies]
        for _ in range(num_rounds):
            for policy, rounds in zip(policies, seconds, strict=True):
                rounds.append(_round(model, policy, batches, loss))
    timings = tuple(_timing(model, policy, batches, rounds) for policy, rounds in zip(policies, seconds, strict=True))
    batched = [one for one in timings if one.policy.order != "naive"]
    return PolicyChoice(policy=min(batched, key=lambda one: one.seconds).policy, timings=timings)


def _round(
    model: VertexModel, policy: BatchingPolicy, batches: Sequence[Sequence[InputGraph]], loss: GraphLoss
) -> float:
    """Return the seconds of one step on each batch, without the optimizer's."""
    model.policy = policy
    start = time.perf_counter()
    for graphs in batches:
        model.zero_grad()
        loss(model(graphs), graphs).backward()  # type: ignore[no-untyped-call]
    wait_for_device(model)
    return time.perf_counter() - start


def wait_for_device(model: VertexModel) -> None:
    """Wait until a GPU has done its work, which the measured time includes."""
    if any(one.is_cuda for one in model.parameters()):
        torch.cuda.synchronize()


def _timing(
    model: VertexModel,
    policy: BatchingPolicy,
    batches: Sequence[Sequence[InputGraph]],
    rounds: Sequence[float],
) -> PolicyTiming:
    num_groups = num_vertices = 0
    times = []
    for _ in range(3):
        start = time.perf_counter()
        made = [make_schedule(join(graphs, model.kinds), policy.groups_of) for graphs in batches]
        times.append(time.perf_counter() - start)
        num_groups = sum(len(one.groups) for one in made)
        num_vertices = sum(one.num_vertices for one in made)
    return PolicyTiming(
        policy=policy,
        num_groups=num_groups,
        num_vertices=num_vertices,
        round_seconds=tuple(rounds),
        schedule_seconds=0.0 if policy.order == "naive" else statistics.median(times),
    )


@contextmanager
def _restored(model: VertexModel) -> Iterator[None]:
    """Run a block after which the model has its policy and its gradients again."""
    policy, gradients = model.policy, [one.grad for one in model.parameters()]
    try:
        yield
    finally:
        model.policy = policy
        for parameter, gradient in zip(model.parameters(), gradients, strict=True):
            parameter.grad = gradient


@contextmanager
def without_dropout(model: VertexModel) -> Iterator[None]:
    """Run a block without dropout, so that results can be compared."""
    dropouts = [one for one in model.modules() if isinstance(one, torch.nn.modules.dropout._DropoutNd)]  # noqa: SLF001 - the common base of torch's dropout layers
    training = [one.training for one in dropouts]
    for one in dropouts:
        one.eval()
    try:
        yield
    finally:
        for one, was_training in zip(dropouts, training, strict=True):
            one.train(was_training)


def _check_rows(model: VertexModel, graphs: Sequence[InputGraph], policies: Sequence[BatchingPolicy]) -> None:
    """Raise InputError if a policy's results differ from those of the first one. Dropout is off meanwhile."""
    results = []
    with without_dropout(model), torch.no_grad():
        for policy in policies:
            model.policy = policy
            results.append(model(graphs))
    for policy, result in zip(policies[1:], results[1:], strict=True):
        tolerance = _TOLERANCES.get(result.dtype, _LOOSE)
        scale = max(1.0, float(results[0].abs().max())) if results[0].numel() else 1.0
        if not torch.allclose(result, results[0], rtol=tolerance, atol=tolerance * scale, equal_nan=True):
            what = f"policy {policy.name} gives other results than one vertex after the other"
            rule = "a vertex function computes each row from that row only"
            raise InputError(what, rule=rule, hint="BatchNorm and random numbers depend on the other rows")
