"""Describes a strategy in words and tables for people, and as plain totals for programs.

Sizes are those of dense gradients and need the model. `plan.describe` shows the bytes on each link.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from autosync import units
from autosync.specs import graph_batching
from autosync.specs.model import ModelSpec
from autosync.strategy import shares, stages
from autosync.strategy.input_settings import input_in_words
from autosync.strategy.layers import told_as_layers
from autosync.strategy.parts import PartName
from autosync.strategy.representation import Message, Strategy, all_parts
from autosync.strategy.wording import abbreviated, count, format_table, natural, settings, spread

MAX_ROWS = 24


@dataclass(frozen=True, slots=True, kw_only=True)
class Totals:
    """The messages, variables, parts and bytes of a synchroniser or server; bytes are None if no model was given."""

    num_messages: int
    num_variables: int
    num_parts: int
    num_bytes: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """The totals of a strategy."""

    name: str
    classes: tuple[str, ...]
    overlap: str
    num_lanes: int
    total: Totals
    by_synchroniser: dict[str, Totals]
    by_server: dict[str, Totals]


def summarise(strategy: Strategy, model: ModelSpec | None = None) -> Summary:
    """Return the totals of a strategy; with bytes if a model is given, for which the strategy must be legal."""
    sizes = _sizes(strategy, model)
    kinds: dict[str, list[Message]] = {}
    servers: dict[str, list[Message]] = {}
    for message in strategy.messages:
        kinds.setdefault(message.synchroniser.kind, []).append(message)
        server = message.synchroniser.served_by
        if server is not None:
            servers.setdefault(server, []).append(message)
    return Summary(
        name=strategy.name,
        classes=tuple(sorted(strategy.classes)),
        overlap=strategy.overlap,
        num_lanes=strategy.num_lanes,
        total=_totals(strategy.messages, sizes),
        by_synchroniser={kind: _totals(messages, sizes) for kind, messages in kinds.items()},
        by_server={name: _totals(servers[name], sizes) for name in sorted(servers, key=natural)},
    )


def describe(strategy: Strategy, model: ModelSpec | None = None, *, full: bool = False) -> str:
    """Describe a strategy in a sentence and in tables by synchroniser, server and message (all messages if `full`)."""
    summary = summarise(strategy, model)
    blocks = [
        f"{strategy.name or 'strategy'}: {in_words(strategy, model)}",
        _schedule(strategy, summary),
        _totals_table("synchroniser", {**summary.by_synchroniser, "total": summary.total}),
        _totals_table("server", summary.by_server) if summary.by_server else "",
        _message_table(strategy, model, full=full),
    ]
    return "\n\n".join(block for block in blocks if block)


def in_words(strategy: Strategy, model: ModelSpec | None = None) -> str:
    """Return a sentence on how variables are synchronised; the largest group comes last, as "the rest"."""
    groups: dict[str, list[Message]] = {}
    for message in strategy.messages:
        groups.setdefault(_manner(message), []).append(message)
    ordered = sorted(groups.values(), key=lambda messages: len(_variables(messages)))
    clauses: list[str] = []
    for position, messages in enumerate(ordered):
        is_rest = position == len(ordered) - 1
        if is_rest and len(ordered) == 1:
            who, is_plural = "all variables", True
        elif is_rest:
            who, is_plural = "the rest", False
        else:
            who, is_plural = _who(_variables(messages), model)
        clauses.append(_clause(who, messages, is_plural=is_plural))
    if strategy.shares:
        clauses.append(f"the ranks compute {shares.in_words(strategy.shares)}")
    if strategy.batching is not None:
        clauses.append(graph_batching.in_words(strategy.batching))
    if strategy.input is not None:
        clauses.append(f"input: {input_in_words(strategy.input)}")
    if strategy.stages:
        # Who computes what comes first: it decides what else is sent.
        how = strategy.microbatches, strategy.schedule, strategy.slack
        clauses.insert(0, stages.in_words(strategy.stages, *how, recompute=strategy.recompute))
    return "; ".join(clauses)


def _manner(message: Message) -> str:
    """Return a key that is equal for messages that differ only in place, size and order; one clause describes them."""
    return f"{message.synchroniser.title} {message.codec.kind if message.codec else ''}"


def _who(variables: Sequence[str], model: ModelSpec | None) -> tuple[str, bool]:
    """Return a noun phrase for variables, and whether it is a plural."""
    if len(variables) == 1:
        return variables[0], False
    return told_as_layers(variables, model), True


def _clause(who: str, messages: Sequence[Message], *, is_plural: bool) -> str:
    cut = list(_cut(messages).values())
    encoded = f" as {messages[0].codec.kind}" if messages[0].codec else ""
    group = [message.synchroniser for message in messages]
    text = f"{who} {type(group[0]).in_words(group, is_plural=is_plural)}{encoded}"
    if min(cut) > 1:
        text += f" in {spread(cut)} parts" + (" each," if is_plural else ",")
    elif max(cut) > 1:
        numbers = [number for number in cut if number > 1]
        text += f", {len(numbers)} of {len(cut)} variables in {spread(numbers)} parts,"
    return text if len(cut) == len(messages) == 1 else f"{text} in {count(len(messages), 'message')}"


def _schedule(strategy: Strategy, summary: Summary) -> str:
    return f"class: {', '.join(summary.classes)}; {schedule_in_words(strategy)}"


def schedule_in_words(strategy: Strategy) -> str:
    """Return words on how transfers are scheduled."""
    until = "until backward returns" if strategy.overlap == "backward" else "until the next use of each parameter"
    facts = [f"transfers may last {until}", count(strategy.num_lanes, "lane")]
    priorities = {message.priority for message in strategy.messages}
    if len(priorities) > 1:
        facts.append(f"priorities {min(priorities)} to {max(priorities)}")
    num_sliced = sum(message.slice_bytes is not None for message in strategy.messages)
    if num_sliced:
        facts.append(f"{count(num_sliced, 'message')} in slices")
    return "; ".join(facts)


def _totals_table(what: str, totals: dict[str, Totals]) -> str:
    header = (what, "bytes", "variables", "parts", "messages")
    rows = [
        (name, _size(t.num_bytes), str(t.num_variables), str(t.num_parts), str(t.num_messages))
        for name, t in totals.items()
    ]
    return format_table(rows, header=header, right=header[1:])


def _message_table(strategy: Strategy, model: ModelSpec | None, *, full: bool) -> str:
    sizes = _sizes(strategy, model)
    shown = len(strategy.messages) if full or len(strategy.messages) <= MAX_ROWS else MAX_ROWS - 4
    rows = [_row(index, message, sizes) for index, message in enumerate(strategy.messages[:shown])]
    header = ("message", "bytes", "synchroniser", "codec", "slices", "lane", "priority", "parts")
    table = format_table(rows, header=header, right=("message", "bytes", "lane", "priority"))
    left_out = len(strategy.messages) - shown
    return f"{table}\n… and {count(left_out, 'message')} more (--full shows all)" if left_out else table


def _row(index: int, message: Message, sizes: dict[str, int] | None) -> tuple[str, ...]:
    return (
        str(index),
        _size(_bytes([message], sizes)),
        settings(message.synchroniser),
        "" if message.codec is None else settings(message.codec),
        "" if message.slice_bytes is None else units.exact_size(message.slice_bytes),
        str(message.lane),
        str(message.priority),
        abbreviated(message.parts, most=2),
    )


def _size(num_bytes: int | None) -> str:
    return "" if num_bytes is None else units.format_size(num_bytes)


def _totals(messages: Sequence[Message], sizes: dict[str, int] | None) -> Totals:
    return Totals(
        num_messages=len(messages),
        num_variables=len(_variables(messages)),
        num_parts=sum(len(message.parts) for message in messages),
        num_bytes=_bytes(messages, sizes),
    )


def _variables(messages: Sequence[Message]) -> list[str]:
    return list(_cut(messages))


def _cut(messages: Sequence[Message]) -> dict[str, int]:
    """Return the number of parts of each variable in these messages."""
    found: dict[str, int] = {}
    for message in messages:
        for name in message.parts:
            variable = PartName.parse(name).variable
            found[variable] = found.get(variable, 0) + 1
    return found


def _bytes(messages: Sequence[Message], sizes: dict[str, int] | None) -> int | None:
    return None if sizes is None else sum(sizes[name] for message in messages for name in message.parts)


def _sizes(strategy: Strategy, model: ModelSpec | None) -> dict[str, int] | None:
    """Return the bytes of each part, or None without a model."""
    return None if model is None else {name: part.num_bytes for name, part in all_parts(strategy, model).items()}
