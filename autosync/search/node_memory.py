"""The least memory that a plan's ranks need, and whether the nodes have it.

It counts the memory that synchronisation decides: parameters and gradients, the optimizer's state where the plan keeps
it, and the buffers of messages. Activations are not counted, because no model spec knows them. So a plan that is
refused here certainly does not fit, and a plan that is accepted may still run out of memory. With stages, the profile
knows activations, and they are counted (`stage_memory`). Such a plan has to leave a tenth of the memory free, because
the count is up to a tenth below what ranks take (`benchmarks/pipelines/memory.py`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from autosync.plan.shards import shard_sizes
from autosync.plan.types import Local, Operation, Plan, Region, Transfer
from autosync.search.stage_memory import stage_rank_bytes
from autosync.specs.cluster import ClusterSpec
from autosync.specs.model import ITEM_BYTES, STATE_ITEM_BYTES, ModelSpec
from autosync.strategy.dividing.model_problem import MEMORY_TO_SPARE


class NodeMemory:
    """The nodes' memory, as far as the cluster file states it."""

    def __init__(self, model: ModelSpec, cluster: ClusterSpec) -> None:
        self._model = model
        self._limits = {
            position: node.memory_bytes for position, node in enumerate(cluster.nodes) if node.memory_bytes is not None
        }

    def fits(self, plan: Plan) -> bool:
        """Return whether the least memory that a plan's ranks need fits into their nodes."""
        if not self._limits:
            return True
        needs: dict[int, float] = defaultdict(float)
        for rank, num_bytes in zip(plan.ranks, self._of_ranks(plan), strict=True):
            needs[rank.node] += num_bytes
        return all(needs[node] <= limit for node, limit in self._limits.items())

    def _of_ranks(self, plan: Plan) -> list[float]:
        if plan.stages:
            return [MEMORY_TO_SPARE * one for one in stage_rank_bytes(plan, self._model)]
        return rank_bytes(plan, self._model)


def rank_bytes(plan: Plan, model: ModelSpec) -> list[float]:
    """Return the least bytes that each rank needs."""
    own = 2.0 * model.num_bytes + model.untrained_bytes
    found = [own if rank.role == "worker" else 0.0 for rank in plan.ranks]
    buffers: list[dict[tuple[str, int], float]] = [{} for _ in plan.ranks]
    for operation in plan.operations:
        regions = [plan.regions[index] for index in _regions_of(operation)]
        for group in operation.groups:
            for rank in group:
                is_worker = plan.ranks[rank].role == "worker"
                for region in regions:
                    if not (is_worker and _is_the_users(region, plan, operation.message)):
                        buffers[rank][region.kind, region.part] = _part_bytes(region, plan)
        for rank, num_bytes in _state(operation, model):
            found[rank] += num_bytes
    return [base + sum(sizes.values()) for base, sizes in zip(found, buffers, strict=True)]


def _regions_of(operation: Operation) -> tuple[int, ...]:
    return operation.regions if isinstance(operation, Transfer) else (*operation.inputs, *operation.outputs)


def _is_the_users(region: Region, plan: Plan, message: int) -> bool:
    """Return whether a worker works on the parameter or gradient itself rather than on a copy."""
    return region.kind == "param" or (region.kind == "grad" and len(plan.messages[message]) == 1)


def _part_bytes(region: Region, plan: Plan) -> float:
    """Return the bytes of the whole part, because all its slices share a buffer."""
    if region.kind in {"grad", "param", "master", "anchor", "incoming"} and region.part >= 0:
        return float(plan.parts[region.part].num_bytes)
    return float(region.num_elements * ITEM_BYTES[region.dtype])


def _state(operation: Operation, model: ModelSpec) -> Iterator[tuple[int, float]]:
    """Yield each rank that keeps state of the optimizer, and the bytes of that state."""
    if not isinstance(operation, Local) or operation.kind != "update":
        return
    for group in operation.groups:
        for rank, num_elements in zip(group, shard_sizes(operation, group), strict=True):
            yield rank, model.optimizer.state_slots * STATE_ITEM_BYTES * num_elements
