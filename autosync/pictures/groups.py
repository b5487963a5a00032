"""The messages of a plan that are drawn together: groups with the same stages, and the strands of each group.

Messages with the same stages form a group, which is drawn once. While a group has few messages, each is a strand. With
many, messages that pass the same ranks in the same way become one strand, and the smallest of the remaining strands
share a colour.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from autosync.pictures.stages import Stage, is_about_norm, num_slices, stages_of
from autosync.pictures.theme import NUM_COLOURS, OTHERS
from autosync.plan.types import Operation, Plan, Transfer


@dataclass(frozen=True, slots=True, kw_only=True)
class Strand:
    """Messages that are drawn as one line.

    The first of its stages is the data that ranks begin with. `order` is the position of the first operation in the
    plan, and `slot` the position of the line among those of its group.
    """

    parts: tuple[str, ...]
    num_messages: int
    num_bytes: int
    lanes: tuple[int, ...]
    priorities: tuple[int, ...]
    num_slices: int
    stages: tuple[Stage, ...]
    order: int
    colour: int = 0
    slot: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Messages with the same stages.

    `rows` are the positions of stages that are drawn as one: a transfer, or local operations in succession on the same
    ranks.
    """

    strands: tuple[Strand, ...]
    rows: tuple[tuple[int, ...], ...]

    @property
    def num_bytes(self) -> int:
        return sum(strand.num_bytes for strand in self.strands)

    @property
    def num_messages(self) -> int:
        return sum(strand.num_messages for strand in self.strands)

    @property
    def num_slots(self) -> int:
        """The number of lines side by side."""
        return 1 + max(strand.slot for strand in self.strands)

    @property
    def stages(self) -> tuple[Stage, ...]:
        """The stages of one strand, for the fields that all strands have in common."""
        return self.strands[0].stages


def groups_of(plan: Plan) -> tuple[Group, ...]:
    """Return the groups of a plan, the one with the most bytes first. Colours follow the plan's operations."""
    by_way: dict[object, list[Strand]] = {}
    for strand in _strands(plan):
        by_way.setdefault(_way(strand.stages), []).append(strand)
    groups = [
        Group(strands=tuple(_bundled(strands)), rows=tuple(_rows(strands[0].stages))) for strands in by_way.values()
    ]
    return _coloured(sorted(groups, key=lambda group: -group.num_bytes))


def _strands(plan: Plan) -> list[Strand]:
    """Return a strand for each message, in the order of their first operations."""
    operations: dict[int, list[Operation]] = {}
    order: dict[int, int] = {}
    for position, operation in enumerate(plan.operations):
        if not is_about_norm(plan, operation):
            operations.setdefault(operation.message, []).append(operation)
            order.setdefault(operation.message, position)
    sizes = {str(part.name): part.num_bytes for part in plan.parts}
    return [_strand(plan, message, found, sizes, order[message]) for message, found in operations.items()]


def _strand(plan: Plan, message: int, operations: Sequence[Operation], sizes: Mapping[str, int], order: int) -> Strand:
    parts = plan.messages[message]
    num_bytes = sum(sizes[name] for name in parts)
    transfers = [one for one in operations if isinstance(one, Transfer)]
    return Strand(
        parts=parts,
        num_messages=1,
        num_bytes=num_bytes,
        lanes=tuple(sorted({plan.lane_of(one) for one in transfers})),
        priorities=tuple(sorted({one.priority for one in transfers})),
        num_slices=num_slices(operations),
        stages=stages_of(plan, operations, num_bytes),
        order=order,
    )


def _way(stages: Sequence[Stage]) -> object:
    """Return the key of messages that are drawn together: the fields of their stages without ranks and sizes."""
    return tuple(
        (stage.what, stage.manner, stage.sharded, stage.state, stage.every, stage.lag, bool(stage.within), before)
        for stage, before in zip(stages, _stays(stages), strict=True)
    )


def _stays(stages: Sequence[Stage]) -> list[bool]:
    """Return for each stage whether it is local work on the same ranks as the local stage before it."""
    found = [False]
    for before, stage in itertools.pairwise(stages):
        is_work = not (before.is_transfer or stage.is_transfer)
        found.append(is_work and before.groups == stage.groups)
    return found


def _rows(stages: Sequence[Stage]) -> list[tuple[int, ...]]:
    rows: list[tuple[int, ...]] = []
    stays = _stays(stages)
    for place in range(1, len(stages)):
        stage, before = stages[place], stages[place - 1]
        is_alike = (before.sharded, before.every, before.lag) == (stage.sharded, stage.every, stage.lag)
        if place > 1 and stays[place] and is_alike:
            rows[-1] = (*rows[-1], place)
        else:
            rows.append((place,))
    return rows


def _bundled(strands: Sequence[Strand]) -> list[Strand]:
    """Return strands that are few enough to distinguish by colour."""
    if len(strands) <= NUM_COLOURS:
        return [replace(strand, slot=slot) for slot, strand in enumerate(strands)]
    by_route: dict[object, list[Strand]] = {}
    for strand in strands:
        by_route.setdefault(tuple(stage.groups for stage in strand.stages), []).append(strand)
    routes = [merged(members) for members in by_route.values()]
    if 1 < len(routes) <= NUM_COLOURS:
        return [replace(strand, slot=slot) for slot, strand in enumerate(routes)]
    candidates = list(strands) if len(routes) == 1 else routes
    by_size = sorted(range(len(candidates)), key=lambda place: -candidates[place].num_bytes)
    largest, rest = (
        sorted(by_size[: NUM_COLOURS - 1]),
        [candidates[place] for place in sorted(by_size[NUM_COLOURS - 1 :])],
    )
    if len(routes) == 1:
        rest = [merged(rest)]
    return [
        *[replace(candidates[place], slot=slot) for slot, place in enumerate(largest)],
        *[replace(strand, slot=NUM_COLOURS - 1, colour=OTHERS) for strand in rest],
    ]


def merged(strands: Sequence[Strand]) -> Strand:
    """Return messages with the same ranks as one strand."""
    num_bytes = sum(strand.num_bytes for strand in strands)

    def together(stages: Sequence[Stage]) -> Stage:
        weighed = sum(stage.share * strand.num_bytes for stage, strand in zip(stages, strands, strict=True))
        return stages[0]._replace(
            share=weighed / num_bytes if num_bytes else 1.0, num_bytes=sum(stage.num_bytes for stage in stages)
        )

    return Strand(
        parts=tuple(part for strand in strands for part in strand.parts),
        num_messages=len(strands),
        num_bytes=num_bytes,
        lanes=tuple(sorted({lane for strand in strands for lane in strand.lanes})),
        priorities=tuple(sorted({priority for strand in strands for priority in strand.priorities})),
        num_slices=max(strand.num_slices for strand in strands),
        stages=tuple(together(stages) for stages in zip(*[strand.stages for strand in strands], strict=True)),
        order=min(strand.order for strand in strands),
    )


def _coloured(groups: Sequence[Group]) -> tuple[Group, ...]:
    """Give each strand a colour, in the order of their first operations; after the last colour the first follows."""
    order = sorted(strand.order for group in groups for strand in group.strands if strand.colour != OTHERS)
    colour_of = {first: place % NUM_COLOURS for place, first in enumerate(order)}
    return tuple(
        replace(
            group,
            strands=tuple(
                strand if strand.colour == OTHERS else replace(strand, colour=colour_of[strand.order])
                for strand in group.strands
            ),
        )
        for group in groups
    )
