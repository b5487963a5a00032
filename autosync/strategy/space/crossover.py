"""Crosses two strategies: the child synchronises each variable as one of its parents does.

With a variable the child inherits its cut and the messages of its parts, without the parts of variables from the other
parent; a message with fewer parts stays legal. Mostly the parents alternate in runs of variables in ready order, which
keeps most messages whole. Fragments of messages from both parents are joined if they have the same setting.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping
from dataclasses import replace

from autosync.specs.model import ModelSpec
from autosync.strategy.parts import PartName
from autosync.strategy.representation import Message, Strategy
from autosync.strategy.space.batching_choice import batched
from autosync.strategy.space.division import divided
from autosync.strategy.space.editing import must_be_alone
from autosync.strategy.space.input_choice import with_input

P_RUNS = 0.7


def cross(first: Strategy, second: Strategy, model: ModelSpec, rng: random.Random) -> Strategy:
    """Return a legal child of two legal strategies; its overlap, shares, batching and input come from either parent."""
    names = [variable.name for variable in sorted(model.variables, key=lambda variable: variable.ready)]
    takes_first = dict(zip(names, _turns(rng, len(names)), strict=True))
    partitions = {}
    for name in names:
        parent = first if takes_first[name] else second
        if name in parent.partitions:
            partitions[name] = parent.partitions[name]
    whole, fragments = _inherited(first, {name for name in names if takes_first[name]})
    more, other_fragments = _inherited(second, {name for name in names if not takes_first[name]})
    dtypes = {variable.name: variable.dtype for variable in model.variables}
    messages = [*whole, *more, *_joined(fragments, other_fragments, dtypes)]
    child = Strategy(overlap=rng.choice((first, second)).overlap, partitions=partitions, messages=tuple(messages))
    if first.batching != second.batching:
        child = batched(child, rng.choice((first, second)).batching)
    elif first.batching is not None:
        child = batched(child, first.batching)
    child = with_input(child, rng.choice((first, second)).input if first.input != second.input else first.input)
    return child if first.shares == second.shares == () else divided(child, rng.choice((first, second)).shares)


def _turns(rng: random.Random, count: int) -> list[bool]:
    """Draw for each variable in ready order whether it comes from the first parent; in runs both parents give some."""
    if count > 1 and rng.random() < P_RUNS:
        bounds = sorted(rng.sample(range(1, count), min(count - 1, rng.choice((1, 2, 2, 3)))))
        turns: list[bool] = []
        takes_first = rng.random() < 0.5
        for begin, end in zip([0, *bounds], [*bounds, count], strict=True):
            turns.extend([takes_first] * (end - begin))
            takes_first = not takes_first
        return turns
    return [rng.random() < 0.5 for _ in range(count)]


def _inherited(parent: Strategy, taken: Iterable[str]) -> tuple[list[Message], list[Message]]:
    """Return a parent's messages with only the taken variables: the whole messages, and those that lost parts."""
    variables = frozenset(taken)
    whole: list[Message] = []
    fragments: list[Message] = []
    for message in parent.messages:
        parts = tuple([part for part in message.parts if PartName.parse(part).variable in variables])
        if len(parts) == len(message.parts):
            whole.append(message)
        elif parts:
            fragments.append(replace(message, parts=parts))
    return whole, fragments


def _joined(fragments: list[Message], others: list[Message], dtypes: Mapping[str, str]) -> list[Message]:
    """Join each fragment with the next one of the other parent with the same setting and dtype; return all messages."""
    waiting: dict[Message, list[Message]] = {}
    for other in others:
        waiting.setdefault(_setting(other, dtypes), []).append(other)
    result: list[Message] = []
    for fragment in fragments:
        partners = waiting.get(_setting(fragment, dtypes))
        if partners and not must_be_alone(fragment):
            partner = partners.pop(0)
            result.append(replace(fragment, parts=fragment.parts + partner.parts))
        else:
            result.append(fragment)
    return [*result, *(other for partners in waiting.values() for other in partners)]


def _setting(message: Message, dtypes: Mapping[str, str]) -> Message:
    """Return the message with its dtype in place of its parts, as a key."""
    return replace(message, parts=(dtypes[PartName.parse(message.parts[0]).variable],))
