"""Compares two strategies, aspect by aspect.

The order of messages and of their parts has no meaning, so comparing the files does not help. Each strategy becomes one
value for each part and aspect. If a variable is cut differently, the two strategies share none of its parts, so the
values of all its parts are compared together. Merging is compared by groups of connected messages: those of one
strategy and those of the other that share parts. Equal changes are shown once, with all their parts.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Any

from autosync import units
from autosync.documents import to_plain
from autosync.strategy.parts import PartName
from autosync.strategy.representation import Message, Strategy
from autosync.strategy.synchronisers import synchroniser_kinds
from autosync.strategy.wording import abbreviated, count, spread

WHOLE_STEP = "the whole step"
MAX_PRIORITY_LINES = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """An aspect that differs, with its plain value in each strategy, and the parts or variables for which it differs.

    The value is None if a part cannot have the aspect (such as a server under all_reduce). The values of the aspect
    `messages` are lists of parts.
    """

    aspect: str
    before: Any
    after: Any
    places: tuple[str, ...]

    def __str__(self) -> str:
        places = abbreviated(self.places)
        if self.aspect == "messages":
            before, after = count(len(self.before), "message"), count(len(self.after), "message")
            return f"{places}: {before} -> {after}{', grouped otherwise' if before == after else ''}"
        worded = _WORDINGS.get(self.aspect, _worded)
        return f"{places}: {self.aspect.replace('_', ' ')}: {worded(self.before)} -> {worded(self.after)}"


def diff(a: Strategy, b: Strategy) -> list[Difference]:
    """Return the differences between two strategies; names and the order of writing do not count."""
    found: dict[str, Difference] = {}
    for place, aspect, before, after in _differences(a, b):
        key = repr((aspect, before, after))
        places = found[key].places if key in found else ()
        found[key] = Difference(aspect=aspect, before=before, after=after, places=(*places, place))
    return [*found.values(), *_regrouped(a, b)]


def format_diff(differences: Sequence[Difference]) -> str:
    """Return differences as lines of text; many differences in priority become one line."""
    priorities = [difference for difference in differences if difference.aspect == "priority"]
    if len(priorities) > MAX_PRIORITY_LINES:
        places = [place for difference in priorities for place in difference.places]
        before, after = (_spread(getattr(d, side) for d in priorities) for side in ("before", "after"))
        line = f"{abbreviated(places)}: priority: {before} -> {after}"
        differences = [difference for difference in differences if difference.aspect != "priority"]
        return "\n".join([*map(str, differences), line])
    return "\n".join(map(str, differences)) or "no difference"


def _differences(a: Strategy, b: Strategy) -> Iterator[tuple[str, str, Any, Any]]:
    if a.overlap != b.overlap:
        yield WHOLE_STEP, "overlap", a.overlap, b.overlap
    if a.shares != b.shares:
        yield WHOLE_STEP, "shares", _shares(a), _shares(b)
    for aspect in ("stages", "microbatches", "schedule", "slack", "send_units", "recompute", "input", "batching"):
        one, other = (to_plain(getattr(strategy, aspect)) for strategy in (a, b))
        if one != other:
            yield WHOLE_STEP, aspect, one, other
    before, after = _by_variable(a), _by_variable(b)
    for variable in dict.fromkeys([*before, *after]):
        if variable not in before or variable not in after:
            there = {True: "present", False: "absent"}
            yield variable, "variable", there[variable in before], there[variable in after]
            continue
        cut_before, cut_after = (to_plain(strategy.partitions.get(variable)) for strategy in (a, b))
        if cut_before == cut_after and before[variable].keys() == after[variable].keys():
            for part, aspects in before[variable].items():
                yield from _changed(part, aspects, after[variable][part])
        else:
            yield variable, "partition", cut_before, cut_after
            yield from _changed(variable, _together(before[variable]), _together(after[variable]))


def _shares(strategy: Strategy) -> list[int] | None:
    return list(strategy.shares) or None


def _changed(place: str, before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[tuple[str, str, Any, Any]]:
    for aspect in dict.fromkeys([*before, *after]):
        # A field that only one of the two synchronisers has is no difference while it is at its default.
        default = _defaults().get(aspect)
        if before.get(aspect, default) != after.get(aspect, default):
            yield place, aspect, before.get(aspect), after.get(aspect)


def _by_variable(strategy: Strategy) -> dict[str, dict[str, dict[str, Any]]]:
    """Return the aspects of each part, by variable and part."""
    found: dict[str, dict[str, dict[str, Any]]] = {}
    for message in strategy.messages:
        aspects = _aspects(message)
        for name in message.parts:
            found.setdefault(PartName.parse(name).variable, {})[name] = aspects
    return found


def _aspects(message: Message) -> dict[str, Any]:
    synchroniser = message.synchroniser
    settings = {field.name: to_plain(getattr(synchroniser, field.name)) for field in dataclasses.fields(synchroniser)}
    return {
        "synchroniser": settings.pop("kind"),
        **settings,
        "codec": to_plain(message.codec),
        "priority": message.priority,
        "lane": message.lane,
        "slice_bytes": message.slice_bytes,
    }


def _together(parts: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Return the aspects of several parts together: for each the common value, or a list of all values."""
    found: dict[str, Any] = {}
    for aspect in dict.fromkeys(aspect for aspects in parts.values() for aspect in aspects):
        values = {repr(aspects.get(aspect)): aspects.get(aspect) for aspects in parts.values()}
        found[aspect] = [values[key] for key in sorted(values)] if len(values) > 1 else next(iter(values.values()))
    return found


def _regrouped(a: Strategy, b: Strategy) -> Iterator[Difference]:
    """Yield a difference for each group of connected parts that the strategies divide into messages differently."""
    before, after = _groups(a), _groups(b)
    shared = before.keys() & after.keys()
    done: set[str] = set()
    for start in before:
        if start not in shared or start in done:
            continue
        places = _connected(start, before, after, shared)
        done.update(places)
        sides = [_messages_of(places, groups) for groups in (before, after)]
        if sides[0] != sides[1]:
            yield Difference(aspect="messages", before=sides[0], after=sides[1], places=tuple(places))


def _groups(strategy: Strategy) -> dict[str, tuple[str, ...]]:
    """Return for each part all parts of its message."""
    return {name: message.parts for message in strategy.messages for name in message.parts}


def _connected(
    start: str, before: Mapping[str, tuple[str, ...]], after: Mapping[str, tuple[str, ...]], shared: AbstractSet[str]
) -> list[str]:
    """Return the shared parts that are connected with `start`, from message to message of either strategy."""
    found = {start: None}
    waiting = [start]
    while waiting:
        part = waiting.pop()
        near = [name for name in (*before[part], *after[part]) if name in shared and name not in found]
        found.update(dict.fromkeys(near))
        waiting.extend(near)
    return [name for name in before if name in found]


def _messages_of(places: Sequence[str], groups: Mapping[str, tuple[str, ...]]) -> list[list[str]]:
    """Return the messages of these parts, with only these parts in them, sorted so that equal groupings are equal."""
    wanted = set(places)
    return [list(names) for names in sorted({tuple(sorted(wanted.intersection(groups[place]))) for place in places})]


def _spread(values: Iterable[Any]) -> str:
    numbers = sorted({number for value in values for number in (value if isinstance(value, list) else [value])})
    return spread(numbers)


def _worded(value: Any) -> str:
    match value:
        case None:
            return "none"
        case bool():
            return "yes" if value else "no"
        case dict():
            return " ".join(f"{key}={_worded(item)}" if key != "kind" else str(item) for key, item in value.items())
        case list():
            return f"[{abbreviated([_worded(item) for item in value])}]"
    return str(value)


def _worded_cut(value: Any) -> str:
    if value is None:
        return "whole"
    pieces = f"{count(len(value['sizes']), 'part')} of {spread(value['sizes'])}"
    return f"{pieces} along axis {value['axis']}" if "axis" in value else pieces


def _worded_size(value: Any) -> str:
    return units.exact_size(value) if isinstance(value, int) else _worded(value)


def _worded_shares(value: Any) -> str:
    return "even" if value is None else " ".join(map(str, value))


def _worded_input(value: Any) -> str:
    return "left to the script" if value is None else _worded(value) or "the defaults"


def _worded_batching(value: Any) -> str:
    return "the model's own" if value is None else _worded(value) or "the defaults"


def _worded_stages(value: Any) -> str:
    return " ".join(map(_worded_stage, value)) or "none"


def _worded_stage(one: Mapping[str, Any]) -> str:
    taking = f"({'/'.join(map(str, one['units']))})" if one.get("units") else ""
    return f"{one['before']}:{'+'.join(map(str, one['ranks']))}{taking}"


_WORDINGS: Mapping[str, Callable[[Any], str]] = {
    "partition": _worded_cut,
    "shares": _worded_shares,
    "stages": _worded_stages,
    "input": _worded_input,
    "batching": _worded_batching,
    "slice_bytes": _worded_size,
}


@functools.cache
def _defaults() -> Mapping[str, Any]:
    """Return the defaults of all synchronisers' fields, by name, as a file has them."""
    return {
        field.name: to_plain(field.default)
        for kind in synchroniser_kinds().values()
        for field in dataclasses.fields(kind)
        if field.name != "kind" and field.default is not dataclasses.MISSING
    }
