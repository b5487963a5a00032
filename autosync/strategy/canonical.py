"""Rewrites strategies that mean the same to one canonical form, and hashes it to the `strategy_id`.

The lowering lowers the canonical form, so strategies with equal ids have equal plans. The rules, in order:

1.  periodic averaging every step without an outer optimizer becomes an all-reduce of gradients (`every: 1` means this)
2.  with one worker every synchroniser becomes a plain all-reduce, without codec and slices, which moves nothing;
    periodic averaging stays, because its outer optimizer also steps with one worker
3.  halving-doubling and `levels` between two ranks become a ring
4.  hierarchical is dropped on a flat cluster (one rank on each node, or one node); a local proxy is dropped where
    each node has one rank, or where all workers are on the server's own node
5.  a cut is dropped if it makes one part, or if all its parts travel in the same message (with no codec or a cast)
6.  a slice size that is not smaller than the message is dropped
7.  lanes are numbered by first appearance and priorities by rank; with one lane all priorities become 0
8.  parts are sorted by the order in which gradients become ready, messages by their first part, partitions by name
9.  the name is dropped
10. weights of trees are divided by their common divisor; `down` is dropped where it equals `up`
11. shares that are all equal are dropped
12. a slack without stages, or where all forward passes come first, is dropped; without stages `recompute` and
    `send_units` are dropped too, and the schedule becomes the usual one; without a flush, `units` and `send_units` are
    dropped
13. input settings that have no effect (of workers without workers, of a cache without a cache) become the defaults;
    settings that are all at their defaults are dropped for a task with a dataset, whose loader has these anyway
14. a batching that the model has without it is dropped; with one worker, examples are dealt by count
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from autosync import jsonio
from autosync.documents import to_plain
from autosync.specs.cluster import ClusterSpec
from autosync.specs.graph_batching import GraphBatching
from autosync.specs.input_settings import InputSettings
from autosync.specs.model import ModelSpec
from autosync.strategy.codecs import Cast, Codec
from autosync.strategy.input_settings import canonical_input
from autosync.strategy.parts import Partition, PartName
from autosync.strategy.representation import Message, Strategy
from autosync.strategy.shares import are_even
from autosync.strategy.stages import UNFLUSHED, USUAL_SCHEDULE
from autosync.strategy.synchronisers.all_reduce import PLAIN
from autosync.strategy.synchronisers.base import Synchroniser


def strategy_id(strategy: Strategy, model: ModelSpec, cluster: ClusterSpec) -> str:
    """Return the identity of a strategy for a model on a cluster."""
    return jsonio.content_hash(to_plain(canonical(strategy, model, cluster)))


def canonical(strategy: Strategy, model: ModelSpec, cluster: ClusterSpec) -> Strategy:
    """Return the canonical form of a legal strategy."""
    forms = {message.synchroniser: message.synchroniser for message in strategy.messages}
    forms = {synchroniser: canonical_synchroniser(synchroniser, cluster) for synchroniser in forms}
    has_wire = cluster.num_workers > 1
    messages = [
        _canonical_message(message, forms[message.synchroniser], has_wire=has_wire) for message in strategy.messages
    ]
    partitions, messages = _without_idle_cuts(strategy.partitions, messages)
    parts = _Parts(partitions, model)
    messages = [_in_ready_order(_without_idle_slice(message, parts), parts) for message in messages]
    messages.sort(key=lambda message: parts.order(message.parts[0]))
    # Without a flush, the order of passes does not depend on their times.
    has_times = strategy.stages and strategy.schedule not in UNFLUSHED
    return replace(
        strategy,
        name="",
        stages=strategy.stages if has_times else tuple(replace(stage, units=()) for stage in strategy.stages),
        shares=() if are_even(strategy.shares) else strategy.shares,
        schedule=strategy.schedule if strategy.stages else USUAL_SCHEDULE,
        recompute=strategy.recompute and bool(strategy.stages),
        slack=strategy.slack if strategy.stages and strategy.schedule != "gpipe" else 0,
        send_units=strategy.send_units if has_times else 0,
        input=_canonical_input(strategy.input, model),
        batching=_canonical_batching(strategy.batching, model, cluster),
        partitions={name: partitions[name] for name in sorted(partitions)},
        messages=tuple(_renumbered(messages)),
    )


def _canonical_input(settings: InputSettings | None, model: ModelSpec) -> InputSettings | None:
    found = canonical_input(settings)
    is_usual = model.input is not None and found == canonical_input(model.input.usual)
    return None if is_usual else found


def _canonical_batching(batching: GraphBatching | None, model: ModelSpec, cluster: ClusterSpec) -> GraphBatching | None:
    if batching is None or model.graphs is None:
        return batching
    found = replace(batching, dealing="count") if cluster.num_workers == 1 else batching
    return None if found == model.graphs.own else found


class _Parts:
    """The order and size of parts, computed only when asked for, because searches make thousands of canonical forms."""

    def __init__(self, partitions: Mapping[str, Partition], model: ModelSpec) -> None:
        self._partitions = partitions
        self._variables = {variable.name: variable for variable in model.variables}

    def order(self, text: str) -> tuple[int, int]:
        name = PartName.parse(text)
        return self._variables[name.variable].ready, name.index

    def num_bytes(self, text: str) -> int:
        name = PartName.parse(text)
        variable = self._variables[name.variable]
        if name.whole:
            return variable.num_bytes
        partition = self._partitions[name.variable]
        return variable.num_bytes // variable.shape[partition.axis] * partition.sizes[name.index]


def _canonical_message(message: Message, synchroniser: Synchroniser, *, has_wire: bool) -> Message:
    if not has_wire:
        return replace(message, synchroniser=synchroniser, codec=None, slice_bytes=None)
    return message if message.synchroniser == synchroniser else replace(message, synchroniser=synchroniser)


def canonical_synchroniser(synchroniser: Synchroniser, cluster: ClusterSpec) -> Synchroniser:
    """Return the canonical form of a synchroniser on this cluster (rules 1 to 4, and 10).

    Each kind defines its own canonical form; the rule for one worker holds for all kinds.
    """
    form = synchroniser.canonical(cluster)
    return PLAIN if cluster.num_workers == 1 and not form.trains_apart else form


def _without_idle_cuts(
    partitions: Mapping[str, Partition], messages: list[Message]
) -> tuple[dict[str, Partition], list[Message]]:
    """Undo cuts that change nothing: into one part, or into parts that all travel in one message that can join them."""
    message_of = {name: position for position, message in enumerate(messages) for name in message.parts}
    kept: dict[str, Partition] = {}
    joined: set[str] = set()
    for variable, partition in partitions.items():
        names = [str(PartName(variable, index, whole=False)) for index in range(len(partition.sizes))]
        homes = {message_of[name] for name in names}
        if len(homes) == 1 and (len(names) == 1 or _joins(messages[homes.pop()])):
            joined.add(variable)
        else:
            kept[variable] = partition
    return kept, [_with_joined(message, joined) for message in messages]


def _joins(message: Message) -> bool:
    return joins_parts(message.synchroniser, message.codec)


def joins_parts(synchroniser: Synchroniser, codec: Codec | None) -> bool:
    """Whether parts of a variable in one message with this synchroniser and codec can be joined (rule 5)."""
    codec_is_by_number = codec is None or isinstance(codec, Cast)
    return codec_is_by_number and not synchroniser.travels_alone


def _with_joined(message: Message, joined: set[str]) -> Message:
    if not joined:
        return message
    names: dict[str, None] = {}
    for text in message.parts:
        variable = PartName.parse(text).variable
        names[variable if variable in joined else text] = None
    return replace(message, parts=tuple(names))


def _without_idle_slice(message: Message, parts: _Parts) -> Message:
    if message.slice_bytes is None:
        return message
    num_bytes = 0
    for name in message.parts:
        num_bytes += parts.num_bytes(name)
        if num_bytes > message.slice_bytes:
            return message
    return replace(message, slice_bytes=None)


def _in_ready_order(message: Message, parts: _Parts) -> Message:
    if len(message.parts) == 1:
        return message
    ordered = tuple(sorted(message.parts, key=parts.order))
    return message if ordered == message.parts else replace(message, parts=ordered)


def _renumbered(messages: list[Message]) -> list[Message]:
    lanes = {lane: index for index, lane in enumerate(dict.fromkeys(message.lane for message in messages))}
    levels = sorted({message.priority for message in messages}) if len(lanes) > 1 else []
    ranks = {priority: rank for rank, priority in enumerate(levels)}
    return [_numbered(message, lanes[message.lane], ranks.get(message.priority, 0)) for message in messages]


def _numbered(message: Message, lane: int, priority: int) -> Message:
    if message.lane == lane and message.priority == priority:
        return message
    return replace(message, lane=lane, priority=priority)
