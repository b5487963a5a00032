"""Two strategies compared, aspect by aspect.

The order of messages and of their parts has no meaning, so the files themselves cannot be compared. Each strategy is
spread out into one value for each part and aspect. A variable whose cut differs has no parts in common: the values
of all its parts are compared as one. Equal changes are told once, for all parts that they hold for.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from autosync.documents import to_plain
from autosync.strategy.representation import Message, PartName, Strategy
from autosync.strategy.wording import abbreviated, count

WHOLE_STEP = "the whole step"


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """One aspect that differs, with its plain value in each strategy, and the parts (or variables) it differs for.

    An aspect that a part does not have (a server, under all_reduce) is None.
    """

    aspect: str
    before: Any
    after: Any
    places: tuple[str, ...]

    def __str__(self) -> str:
        before, after = _worded(self.before), _worded(self.after)
        return f"{abbreviated(self.places)}: {self.aspect.replace('_', ' ')}: {before} -> {after}"


def diff(a: Strategy, b: Strategy) -> list[Difference]:
    """What differs between two strategies; nothing where they are equal but for name and order."""
    found: dict[str, Difference] = {}
    for place, aspect, before, after in _differences(a, b):
        key = repr((aspect, before, after))
        places = found[key].places if key in found else ()
        found[key] = Difference(aspect=aspect, before=before, after=after, places=(*places, place))
    return list(found.values())


def format_diff(differences: list[Difference]) -> str:
    """Differences as lines for people."""
    if not differences:
        return "no difference"
    return "\n".join(str(difference) for difference in differences)


def _differences(a: Strategy, b: Strategy) -> Iterator[tuple[str, str, Any, Any]]:
    if a.overlap != b.overlap:
        yield WHOLE_STEP, "overlap", a.overlap, b.overlap
    before, after = _by_variable(a), _by_variable(b)
    for variable in dict.fromkeys([*before, *after]):
        if variable not in before or variable not in after:
            yield variable, "variable", *("present" if variable in side else "absent" for side in (before, after))
            continue
        cuts = [to_plain(strategy.partitions.get(variable)) for strategy in (a, b)]
        if cuts[0] == cuts[1] and before[variable].keys() == after[variable].keys():
            for part, aspects in before[variable].items():
                yield from _changed(part, aspects, after[variable][part])
        else:
            yield variable, "partition", *cuts
            yield from _changed(variable, _together(before[variable]), _together(after[variable]))


def _changed(place: str, before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[tuple[str, str, Any, Any]]:
    for aspect in dict.fromkeys([*before, *after]):
        if before.get(aspect) != after.get(aspect):
            yield place, aspect, before.get(aspect), after.get(aspect)


def _by_variable(strategy: Strategy) -> dict[str, dict[str, dict[str, Any]]]:
    """The aspects of each part, by variable and part."""
    found: dict[str, dict[str, dict[str, Any]]] = {}
    for message in strategy.messages:
        aspects = _aspects(message)
        for name in message.parts:
            found.setdefault(PartName.parse(name).variable, {})[name] = aspects
    return found


def _aspects(message: Message) -> dict[str, Any]:
    synchroniser = {name: getattr(message.synchroniser, name) for name in message.synchroniser.__dataclass_fields__}
    return {
        "synchroniser": synchroniser.pop("kind"),
        **{name: to_plain(value) for name, value in synchroniser.items()},
        "codec": to_plain(message.codec),
        "message": sorted(message.parts),
        "priority": message.priority,
        "lane": message.lane,
        "slice_bytes": message.slice_bytes,
    }


def _together(parts: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """The aspects of several parts as one: the common value, or a list. What travels together is said of parts only."""
    found: dict[str, Any] = {}
    for aspects in parts.values():
        for aspect, value in aspects.items():
            values = found.setdefault(aspect, [])
            if value not in values:
                values.append(value)
    found.pop("message", None)
    return {aspect: values[0] if len(values) == 1 else values for aspect, values in found.items()}


def _worded(value: Any) -> str:
    match value:
        case None:
            return "none"
        case bool():
            return "yes" if value else "no"
        case dict():
            return " ".join(f"{key}={_worded(item)}" if key != "kind" else str(item) for key, item in value.items())
        case [int(), *_] if len(value) > 4:
            return f"{count(len(value), 'part')} of {min(value)} to {max(value)}"
        case list():
            return f"[{abbreviated([_worded(item) for item in value])}]"
    return str(value)
