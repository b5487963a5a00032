"""Crossover: each variable is synchronised as in one parent or the other.

Whoever takes a variable takes its cut and its parts' messages, without the parts of variables that come from the other
side; a message with fewer parts stays legal. Mostly the parents take turns in runs of ready order, so that messages
stay whole; where they do not, fragments of equal setting from both sides are joined.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping
from dataclasses import replace

from autosync.specs.model import ModelSpec
from autosync.strategy.parts import PartName
from autosync.strategy.representation import Message, Strategy
from autosync.strategy.space.editing import must_be_alone

P_RUNS = 0.7


def cross(first: Strategy, second: Strategy, model: ModelSpec, rng: random.Random) -> Strategy:
    """A legal child of two legal strategies; the overlap is one parent's."""
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
    return Strategy(overlap=rng.choice((first, second)).overlap, partitions=partitions, messages=tuple(messages))


def _turns(rng: random.Random, count: int) -> list[bool]:
    """For each variable in ready order, whether it comes from the first parent; both parents give some if they can."""
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
    """What is left of a parent's messages: those that are whole and those that lost parts."""
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
    """Fragments of one side, each joined with the next one of the other side that has the same setting and dtype."""
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
    """The message with its dtype in place of its parts."""
    return replace(message, parts=(dtypes[PartName.parse(message.parts[0]).variable],))
