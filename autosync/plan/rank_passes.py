"""The passes of stages that one rank makes in a step, in their order.

With a flush they come as the plan lists them. Without one, a rank takes forward and backward passes in turn, and has as
many microbatches under way as it may: so its first backward passes are those of the step before (`late`), and its last
ones come in the next step.

A rank with n microbatches of its own, of which k may be under way, makes the forward pass of microbatch j and then the
backward pass of microbatch j - k + 1, which for j < k - 1 is one of the step before. No rank waits for ever: a stage
has more examples under way than the stages behind it, so a backward pass comes back before the rank needs it to go on.
"""

from __future__ import annotations

from typing import NamedTuple

from autosync.plan.types import Local, LocalKind, Plan, StagePass


class RankPass(NamedTuple):
    """One pass of a rank: the operation (by position), its kind, and its place.

    `before` is the pass of this rank that makes what this pass needs. It is -1 if another rank sends that, or if the
    pass needs nothing. A `late` pass is of the step before.
    """

    operation: int
    kind: LocalKind
    place: StagePass
    before: int
    late: bool = False

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
    # The first forward pass waits for the one of the step before that makes room for it.
    (room,) = (edge for edge in plan.operations[forward[0].operation].after if edge.lag)
    num_late = len(backward) - numbers[room.target] - 1
    found = []
    for number, one in enumerate(forward):
        earlier = backward[number - num_late]
        found += [one, earlier._replace(late=number < num_late)]
    return found
