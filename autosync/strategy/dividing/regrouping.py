"""Fits the messages of a strategy to other stages: the same ranks hold all parts of a message."""

from __future__ import annotations

from dataclasses import replace

from autosync.specs.model import ModelSpec, variables_by_name
from autosync.strategy.dividing.divided import BUCKET_BYTES
from autosync.strategy.parts import PartName
from autosync.strategy.representation import Message, Strategy, all_parts
from autosync.strategy.stages import holders_of_variables


def regrouped(strategy: Strategy, model: ModelSpec) -> Strategy:
    """Return the strategy with messages whose parts are on the same ranks.

    A message is divided by the ranks that hold its parts. What came of a divided message joins others with the same
    settings, ranks and dtype, up to the size of a bucket.
    """
    holders, variables = holders_of_variables(strategy.stages, model), variables_by_name(model)
    parts = all_parts(strategy, model)
    whole: list[Message] = []
    fragments: list[Message] = []
    for message in strategy.messages:
        by_ranks: dict[tuple[int, ...], list[str]] = {}
        for part in message.parts:
            by_ranks.setdefault(holders[PartName.parse(part).variable], []).append(part)
        (whole if len(by_ranks) == 1 else fragments).extend(
            replace(message, parts=tuple(names)) for names in by_ranks.values()
        )

    def home(message: Message) -> tuple[object, ...]:
        variable = PartName.parse(message.parts[0]).variable
        return holders[variable], variables[variable].dtype, replace(message, parts=("",))

    def size(message: Message) -> int:
        return sum(parts[name].num_bytes for name in message.parts)

    for fragment in fragments:
        place = next(
            (
                place
                for place, one in enumerate(whole)
                if home(one) == home(fragment) and size(one) + size(fragment) <= BUCKET_BYTES
            ),
            None,
        )
        if place is None:
            whole.append(fragment)
        else:
            whole[place] = replace(whole[place], parts=whole[place].parts + fragment.parts)
    return replace(strategy, messages=tuple(whole))
