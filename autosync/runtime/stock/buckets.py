"""Finds the plans that stock DDP can express, and the buckets that it would send. Free of torch.

**What is the same.** The Reducer launches one all-reduce for each bucket when it is complete, strictly in the order of
the buckets, all on one communicator. This is a plan with one lane, whose transfers each sum whole gradients of one
dtype over all workers, natively, and wait for nothing but those gradients. Every worker averages and updates by itself,
and the plan is done when backward returns. Which message a transfer belongs to does not matter, and neither do
priorities, which only decide between lanes. The gradient norm of a task that clips is the user's, as under DDP.

**What is not.** Several lanes: a bucket of one lane would wait behind those of another. Slices that cut a gradient,
codecs, and our own topologies: the Reducer has none. Overlap with the forward pass: the Reducer waits at the end of
backward. Buckets of several dtypes whose sizes do not fit into one list (see the note ONE LIST OF SIZES). Sparse
gradients: the Reducer takes them, but may corrupt memory (see the note ROWS STAY HERE).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from autosync.plan.types import Groups, Plan, Transfer
from autosync.specs.model import Variable
from autosync.strategy.presets.buckets import assign_by_size

_EVERY_WORKERS_OWN = frozenset({"average", "norm", "update"})


@dataclass(frozen=True, slots=True, kw_only=True)
class StockBuckets:
    """The buckets of a plan, in the order of their launch, as positions of variables in the model.

    `limits_bytes` is the list of sizes from which the Reducer makes these buckets by itself (see the note ONE LIST OF
    SIZES).
    """

    buckets: tuple[tuple[int, ...], ...]
    limits_bytes: tuple[int, ...]


def stock_buckets(plan: Plan) -> StockBuckets | None:
    """Return the buckets with which stock DDP does exactly what the plan says, or None: see `why_not_stock`."""
    return None if why_not_stock(plan) else _buckets(plan)


def why_not_stock(plan: Plan) -> str:
    """Return what stock DDP cannot express in a plan; empty if it can express everything."""
    return next(_reasons(plan), "")


def _reasons(plan: Plan) -> Iterator[str]:
    everyone: Groups = (tuple(range(plan.num_workers)),)
    if plan.overlap != "backward":
        yield "transfers overlap the forward pass"
    if plan.backend not in ("gloo", "nccl"):
        yield f"the backend is {plan.backend}"
    if plan.num_workers < 2:
        yield "one worker has nothing to send"
    yield from _division_reasons(plan)
    for operation in plan.operations:
        if operation.groups != everyone:
            yield "not every operation is of all workers and of them alone"
        if operation.every > 1:
            yield "not every operation is of every step"
        if isinstance(operation, Transfer):
            yield from _transfer_reasons(plan, operation)
        elif operation.kind not in _EVERY_WORKERS_OWN or operation.sharded:
            yield f"the plan has {'a sharded ' if operation.sharded else ''}{operation.kind}"
    if len({transfer.lane for transfer in _transfers(plan)}) > 1:
        yield "transfers are in several lanes"
    if sum(map(len, _members(plan))) != len(plan.parts):
        yield "a gradient is in no bucket, or in several"
    elif _assigned(plan) != _members(plan):
        yield "its buckets of several dtypes have sizes that do not fit into one list"


def _division_reasons(plan: Plan) -> Iterator[str]:
    if plan.shares or plan.weighs:
        yield "gradients are weighed, and the Reducer takes their plain mean"


def _transfer_reasons(plan: Plan, transfer: Transfer) -> Iterator[str]:
    regions = [plan.regions[index] for index in transfer.regions]
    if transfer.algorithm != "native" or transfer.within:
        yield f"a transfer goes by {transfer.algorithm} rounds"
    if any(edge.event != "grad_ready" or edge.lag for edge in transfer.after):
        yield "a transfer waits for more than gradients"
    for region in regions:
        variable = plan.parts[region.part].variable if region.part >= 0 else None
        if variable is None or region.num_elements != variable.num_elements or region.dtype != variable.dtype:
            yield "a transfer moves something else than whole gradients"
        # See the note ROWS STAY HERE.
        elif (transfer.collective, region.kind, variable.sparse) != ("all_reduce", "grad", False):
            yield f"{variable.name} has the transfer {transfer.collective} of its {region.kind}"
    if len({region.dtype for region in regions}) > 1:
        yield "a transfer has gradients of several dtypes"


def _transfers(plan: Plan) -> list[Transfer]:
    return [operation for operation in plan.operations if isinstance(operation, Transfer)]


def _members(plan: Plan) -> list[list[Variable]]:
    """Return the variables of each bucket."""
    return [[plan.parts[plan.regions[i].part].variable for i in one.regions] for one in _transfers(plan)]


def _limits_bytes(members: Sequence[Sequence[Variable]]) -> tuple[int, ...]:
    """Return, for each k, the size of the smallest k-th bucket of any dtype."""
    sizes: dict[str, list[int]] = {}
    for bucket in members:
        sizes.setdefault(bucket[0].dtype, []).append(sum(variable.num_bytes for variable in bucket))
    longest = max(map(len, sizes.values()))
    return tuple(min(column[k] for column in sizes.values() if k < len(column)) for k in range(longest))


def _assigned(plan: Plan) -> list[list[Variable]]:
    """Return the buckets that the Reducer makes of the variables, in order, by the limits."""
    members = _members(plan)
    variables = [variable for bucket in members for variable in bucket]
    return assign_by_size(variables, _limits_bytes(members), lambda _: False)


def _buckets(plan: Plan) -> StockBuckets:
    # A transfer of whole gradients waits for as many variables as it moves, in the same order.
    buckets = tuple(tuple(edge.target for edge in transfer.after) for transfer in _transfers(plan))
    return StockBuckets(buckets=buckets, limits_bytes=_limits_bytes(_members(plan)))


# ONE LIST OF SIZES. The Reducer fills buckets of each dtype separately, and closes the k-th bucket of a dtype when it
# reaches the k-th limit of one list for all dtypes. With one dtype, that list is simply the sizes of the buckets. With
# several, the only limit that can work is the size of the smallest k-th bucket, and it works if the larger ones reach
# it with their last gradient only.

# ROWS STAY HERE. torch 2.13's all-reduce of sparse tensors on gloo sometimes corrupts the heap, in the Reducer as under
# DDP: of 17 trainings by two ranks, 700 to 1,000 steps each, 5 ended with "malloc(): unaligned tcache chunk detected".
# Our engine gathers rows as dense tensors and merges them itself, which never failed in 21,000 steps. NCCL has no
# all-reduce of sparse tensors.
