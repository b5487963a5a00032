"""The passes of stages that one rank makes in a step, in their order.

With a flush they come as the plan lists them. Without one, a rank takes forward and backward passes in turn, and has as
many microbatches under way as it may: so its first backward passes are those of earlier steps (`late`), and its last
ones come in later steps.

A rank with n microbatches of its own, of which k may be under way, makes the forward pass of microbatch j and then the
backward pass of microbatch j - k + 1, which for j < k - 1 is one of an earlier step.

No rank waits for ever, if (k - 1) w does not grow from a stage with w ranks to the next one, which is a rule for
strategies. Count microbatches over all steps, and give the forward pass of microbatch m the number m, and its backward
pass the number m + (k - 1) w: that of the forward pass right before it on its rank. Then a pass waits for passes with
smaller numbers, or with the same number: a backward pass for the forward pass before it and for that of the next stage,
a forward pass for that of the stage before. So waits make no circle. A wait for a stage's update is one for backward
passes with smaller numbers.
"""

from __future__ import annotations

from typing import NamedTuple

from autosync.plan.types import Local, LocalKind, Plan, StagePass
from autosync.strategy.stages import late_turns


class RankPass(NamedTuple):
    """One pass of a rank: the operation (by position), its kind, and its place.

    `before` is the pass of this rank that makes what this pass needs. It is -1 if another rank sends that, or if the
    pass needs nothing. A pass that is `late` is of so many steps before. It computes with parameters that miss the
    updates of so many steps (`misses`) before its own.
    """

    operation: int
    kind: LocalKind
    place: StagePass
    before: int
    late: int = 0
    misses: int = 0

    @property
    def is_forward(self) -> bool:
        return self.kind == "forward"


def passes_of(plan: Plan, rank: int) -> list[RankPass]:
    """Return the passes of a rank in a step, in their order."""
    makers: dict[int, int] = {}
    found: list[RankPass] = []
    for index, one in enumerate(plan.operations):
        if isinstance(one, Local) and isinstance(one.settings, StagePass) and one.groups[0][0] == rank:
            before = makers.get(one.inputs[0], -1) if one.inputs else -1
            found.append(RankPass(index, one.kind, one.settings, before))
            makers.update(dict.fromkeys(one.outputs, index))
    return found if plan.flushes else _in_turn(plan, found)


def _in_turn(plan: Plan, passes: list[RankPass]) -> list[RankPass]:
    """Return the passes of a rank with one stage, without a flush."""
    forward = [one for one in passes if one.is_forward]
    backward = [one for one in passes if not one.is_forward]
    numbers = {one.operation: number for number, one in enumerate(backward)}
    # The first forward pass waits for the one that makes room for it.
    first = plan.operations[forward[0].operation].after
    (room,) = (edge for edge in first if edge.lag and edge.event == "operation")
    under_way, per_step = room.lag * len(backward) - numbers[room.target], len(backward)
    found = []
    for turn, one in enumerate(forward):
        place = (turn - under_way + 1) % per_step
        missed = [late_turns(number, under_way, per_step) if plan.stashes else 1 for number in (turn, place)]
        late = late_turns(turn, under_way, per_step)
        found += [one._replace(misses=missed[0]), backward[place]._replace(late=late, misses=missed[1])]
    return found


def most_late(plan: Plan) -> int:
    """Return by how many steps the latest pass of any rank is late."""
    return max(one.late for rank in range(plan.num_workers) for one in passes_of(plan, rank))
