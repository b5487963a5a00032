"""The stages of a message, as far as they are drawn: the ranks that take part, and the data of each rank afterwards.

A stage corresponds to one line of `describe`: the operations of a message that differ only in their slices.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple, TypeAlias

from autosync.plan.types import Groups, Local, Operation, Plan, RegionKind, Transfer
from autosync.strategy.shapes.trees import TreeShape
from autosync.strategy.wording import settings

State: TypeAlias = Literal["own", "shared", "own parameter", "parameter"]
"""The states of a rank's data: its own gradient, a result from several ranks, a parameter that it updated by itself, or
a parameter updated from such a result."""

_PARAMETERS = ("param", "new_rows", "master", "incoming", "anchor")
_PACKED = ("rows", "new_rows", "factors", "encoded", "left", "right")
_SUMMING = ("reduce", "all_reduce", "reduce_scatter", "merge_rows", "rebuild", "decode", "average")
_LATE = ("take", "write_rows")


class Stage(NamedTuple):
    """One stage of a message, or of several messages that are drawn together.

    `what` is the collective or the kind of local operation, and `manner` its algorithm, codec or optimizer. `trees` is
    the algorithm of a transfer over trees. `share` is the size of the whole buffer after the stage, as a share of the
    dense bytes. `num_bytes` is the size of a transfer's buffer.
    """

    what: str
    groups: Groups
    state: State
    manner: str = ""
    trees: TreeShape | None = None
    is_transfer: bool = False
    within: Groups = ()
    sharded: bool = False
    num_bytes: int = 0
    share: float = 1.0
    every: int = 1
    lag: int = 0
    after_step: bool = False


class Holding(NamedTuple):
    """The data of a rank after a stage: piece `share` of `num_shares` of the buffer, a layer for each contributor."""

    share: int
    num_shares: int
    num_layers: int


def holdings(stage: Stage) -> Mapping[int, Holding]:
    """Return the data of each rank that takes part, after a stage."""
    found: dict[int, Holding] = {}
    outer = {rank: (index, len(group)) for group in stage.within for index, rank in enumerate(group)}
    for group in stage.groups:
        layers = len(group) if stage.what in ("gather_v", "all_gather_v") else 1
        takers = group[:1] if stage.what in ("reduce", "gather_v") else group
        is_cut = stage.what == "reduce_scatter" or stage.sharded
        for index, rank in enumerate(takers):
            share = (index, len(group)) if is_cut else outer.get(rank, (0, 1))
            found[rank] = Holding(*share, layers)
    return found


def is_about_norm(plan: Plan, operation: Operation) -> bool:
    """Return whether an operation works on the norm of all gradients, which belongs to no message."""
    regions = operation.regions if isinstance(operation, Transfer) else operation.outputs
    return all(plan.regions[region].kind == "norm" for region in regions)


def stages_of(plan: Plan, operations: Sequence[Operation], num_bytes: int) -> tuple[Stage, ...]:
    """Return the stages of a message with these dense bytes: first the data that ranks begin with, then the rest."""
    found: dict[object, list[Operation]] = {}
    for operation in operations:
        found.setdefault(_manner(operation), []).append(operation)
    stages = _with_shares([_stage(plan, alike) for alike in found.values()], max(1, num_bytes))
    begins_with = _kind(plan, operations[0], before=True)
    share = stages[0].share if begins_with in _PACKED else 1.0
    start = Stage(what=begins_with, groups=(tuple(range(plan.num_workers)),), state="own", share=share)
    return (start, *_told_apart(stages))


def num_slices(operations: Sequence[Operation]) -> int:
    """Return the number of a message's slices."""
    counts: dict[object, int] = {}
    for operation in operations:
        counts[_manner(operation)] = counts.get(_manner(operation), 0) + 1
    return max(counts.values())


def _manner(operation: Operation) -> object:
    """Return the fields that all operations of one stage have in common."""
    if isinstance(operation, Transfer):
        return (operation.collective, operation.algorithm, operation.groups, operation.lane, operation.every)
    return (operation.kind, operation.cost, operation.groups, operation.sharded, operation.every)


def _kind(plan: Plan, operation: Operation, *, before: bool = False) -> RegionKind:
    """Return the kind of data that an operation writes or, with `before`, that it reads."""
    if isinstance(operation, Transfer):
        return plan.regions[operation.regions[0]].kind
    return plan.regions[(operation.inputs if before else operation.outputs)[0]].kind


def _stage(plan: Plan, operations: Sequence[Operation]) -> Stage:
    first = operations[0]
    kind = _kind(plan, first)
    edges = [edge for operation in operations for edge in operation.after]
    after_step = any(edge.event == "step_called" for edge in edges)
    if isinstance(first, Transfer):
        is_sum = first.collective in (*_SUMMING, "broadcast", "all_gather")
        return Stage(
            what=first.collective,
            groups=first.groups,
            state=_state(kind, is_sum=is_sum),
            manner=str(first.algorithm),
            trees=first.algorithm if isinstance(first.algorithm, TreeShape) else None,
            is_transfer=True,
            within=first.within,
            num_bytes=sum(one.num_bytes for one in operations if isinstance(one, Transfer)),
            every=first.every,
            after_step=after_step,
        )
    return Stage(
        what=first.kind,
        groups=first.groups,
        state=_state(kind, is_sum=first.kind in _SUMMING),
        manner=_manner_of(first),
        sharded=first.sharded,
        share=0.0 if kind in _PACKED else 1.0,
        every=first.every,
        lag=max((edge.lag for edge in edges), default=0) if first.kind in _LATE else 0,
        after_step=after_step,
    )


def _state(kind: RegionKind, *, is_sum: bool) -> State:
    if kind in _PARAMETERS:
        return "parameter"
    return "shared" if is_sum else "own"


def _told_apart(stages: Sequence[Stage]) -> list[Stage]:
    """Mark parameters that workers update before any transfer as their own."""
    sends = [place for place, stage in enumerate(stages) if stage.is_transfer]
    first = sends[0] if sends else 0
    return [
        stage._replace(state="own parameter") if place < first and stage.state == "parameter" else stage
        for place, stage in enumerate(stages)
    ]


def _manner_of(local: Local) -> str:
    """Return the codec or the optimizer of a local operation."""
    if local.kind == "encode" and local.settings is not None:
        return settings(local.settings)
    return local.cost.partition(":")[2] if local.kind == "update" else ""


def _with_shares(stages: Sequence[Stage], num_bytes: int) -> list[Stage]:
    """Fill in the sizes of buffers: an operation that packs data makes it as large as the next transfer."""
    shares = [stage.share for stage in stages]
    travels = 0.0
    for place in reversed(range(len(stages))):
        if stages[place].is_transfer:
            shares[place] = travels = min(1.0, stages[place].num_bytes / num_bytes)
        elif not shares[place]:
            shares[place] = travels
    for place in range(1, len(shares)):
        shares[place] = shares[place] or shares[place - 1]
    return [stage._replace(share=share) for stage, share in zip(stages, shares, strict=True)]
