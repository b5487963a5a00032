"""Memory: what a plan's ranks need of it at least, and whether the nodes have it.

Counted is what synchronising decides: parameters and gradients, the optimizer's state where the plan keeps it, and the
buffers of messages. What a model's activations take is in no model spec and not counted; so what is refused here has no
room for certain, and what is not may still run out.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from autosync.plan.types import Local, Operation, Plan, Region, Transfer
from autosync.specs.cluster import ClusterSpec
from autosync.specs.model import ITEM_BYTES, ModelSpec

STATE_ITEM_BYTES = 4


class NodeMemory:
    """The nodes' memory, where the cluster file states it."""

    def __init__(self, model: ModelSpec, cluster: ClusterSpec) -> None:
        self._model = model
        self._limits = {
            position: node.memory_bytes for position, node in enumerate(cluster.nodes) if node.memory_bytes is not None
        }

    def fits(self, plan: Plan) -> bool:
        """Whether what a plan's ranks need at least fits into their nodes."""
        if not self._limits:
            return True
        needs: dict[int, float] = defaultdict(float)
        for rank, num_bytes in zip(plan.ranks, rank_bytes(plan, self._model), strict=True):
            needs[rank.node] += num_bytes
        return all(needs[node] <= limit for node, limit in self._limits.items())


def rank_bytes(plan: Plan, model: ModelSpec) -> list[float]:
    """What each rank needs at least."""
    own = 2.0 * sum(variable.num_bytes for variable in model.variables)
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
    """Whether a worker works on the parameter or the gradient itself rather than on a copy."""
    return region.kind == "param" or (region.kind == "grad" and len(plan.messages[message]) == 1)


def _part_bytes(region: Region, plan: Plan) -> float:
    """Of the whole part: all slices of it share a buffer."""
    if region.kind in {"grad", "param", "master", "anchor", "incoming"} and region.part >= 0:
        return float(plan.parts[region.part].num_bytes)
    return float(region.num_elements * ITEM_BYTES[region.dtype])


def _state(operation: Operation, model: ModelSpec) -> Iterator[tuple[int, float]]:
    """The optimizer's state, by rank that keeps it."""
    if not isinstance(operation, Local) or operation.kind != "update":
        return
    for group in operation.groups:
        share = len(group) if operation.sharded else 1
        for rank in group:
            yield rank, model.optimizer.state_slots * STATE_ITEM_BYTES * operation.num_elements / share
