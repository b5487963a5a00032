"""Styles: a few numbers that describe a whole strategy, for search methods that only handle numbers.

`Styles.strategy` makes the strategy of a style, always the same one. `Styles.style` returns the style nearest to a
strategy, so that the proposals of others count as well. A style has one value for all messages where strategies may
have many, so styles reach only a small part of the space.
"""

from __future__ import annotations

import math
import random
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from autosync.specs.model import Variable
from autosync.strategy.cuts import even_sizes
from autosync.strategy.legality import MAX_PARTS
from autosync.strategy.parts import Partition, PartName
from autosync.strategy.representation import Message, Overlap, Strategy
from autosync.strategy.space import Space
from autosync.strategy.space.choices import KindTable, Variant
from autosync.strategy.space.cutting import axes_to_cut
from autosync.strategy.space.placement import bandwidths_of
from autosync.strategy.space.scheduling import use_order

SMALLEST_MESSAGE = 1 / 256
"""The smallest target size of a message, as a share of the model."""

P_UNCUT = 0.6
P_UNSLICED = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Style:
    """The numbers from which a strategy is made.

    `way` and `rows_way` name the synchronisers of dense variables and of embeddings (`""`: the same as dense ones).
    Parts that become ready in succession are merged up to `message_bytes`, and variables above `part_bytes` are cut.
    Slices have `slice_bytes`; 0 means no slices. Messages take turns on `num_lanes` lanes, with priorities in order of
    use if `by_use`.
    """

    overlap: Overlap
    way: str
    rows_way: str
    message_bytes: float
    part_bytes: float
    slice_bytes: int
    num_lanes: int
    by_use: bool


_FIELDS = tuple(field.name for field in fields(Style))


@dataclass(slots=True)
class _StyleDraft:
    """A message that parts are still added to."""

    names: list[str]
    dtype: str
    variant: Variant
    num_bytes: float

    def takes(self, variable: Variable, variant: Variant, num_bytes: float, style: Style) -> bool:
        """Return whether a part may join the message."""
        is_like = variant is self.variant and variable.dtype == self.dtype
        return is_like and self.num_bytes + num_bytes <= style.message_bytes


class Styles:
    """The styles of one space."""

    def __init__(self, space: Space) -> None:
        self.space = space
        self._variables = sorted(space.model.variables, key=lambda variable: variable.ready)
        self._rates = bandwidths_of(space.cluster)
        self.total_bytes = sum(variable.num_bytes for variable in self._variables)
        largest = max(self._variables, key=lambda variable: variable.num_bytes)
        choices = space.choices
        self._dense = {
            dtype: _by_way(table) | _by_way(choices.following_table[dtype])
            for dtype, table in choices.dense_table.items()
        }
        self._rows = _by_way(choices.alone_table["embedding"])
        self.ways = tuple(self._dense[largest.dtype])
        self.rows_ways = ("", *self._rows)

    @property
    def message_bounds(self) -> tuple[float, float]:
        """The smallest and largest target sizes of messages, in bytes."""
        return self.total_bytes * SMALLEST_MESSAGE, float(self.total_bytes)

    @property
    def overlaps(self) -> tuple[Overlap, ...]:
        return self.space.overlaps

    @property
    def slices(self) -> tuple[int, ...]:
        return (0, *self.space.limits.slice_bytes)

    @property
    def num_lanes(self) -> int:
        return self.space.choices.num_lanes

    def strategy(self, style: Style) -> Strategy:
        """Return the strategy of a style."""
        partitions: dict[str, Partition] = {}
        load = dict.fromkeys(self._rates, 0.0)
        drafts: list[_StyleDraft] = []
        for variable in self._variables:
            cut = self._cut(variable, style)
            if cut is not None:
                partitions[variable.name] = cut
            variant, is_alone = self._variant(variable, style)
            for name, num_bytes in _pieces(variable, cut):
                last = drafts[-1] if drafts and not is_alone else None
                if last is not None and last.takes(variable, variant, num_bytes, style):
                    last.names.append(name)
                    last.num_bytes += num_bytes
                else:
                    drafts.append(_StyleDraft([name], variable.dtype, variant, num_bytes))
        messages = [
            self._message(draft, style, load, position % style.num_lanes) for position, draft in enumerate(drafts)
        ]
        if style.by_use and style.num_lanes > 1 and self.space.choices.num_priorities > 1:
            messages = self._prioritised(messages)
        return Strategy(overlap=style.overlap, partitions=partitions, messages=tuple(messages))

    def sample(self, rng: random.Random) -> Style:
        """Return a random style. Sizes are drawn by their logarithm, and mostly no variable is cut."""
        return Style(**{name: self._drawn(name, rng) for name in _FIELDS})

    def changed(self, style: Style, rng: random.Random) -> Style:
        """Return a style that differs in one value. Sizes change by a factor of up to four."""
        name = rng.choice(_FIELDS)
        if name.endswith("_bytes") and name != "slice_bytes":
            low, high = self.message_bounds
            size = getattr(style, name) * math.exp(rng.uniform(-1.4, 1.4))
            return replace(style, **{name: min(max(size, low), high)})
        return replace(style, **{name: self._drawn(name, rng)})

    def _drawn(self, name: str, rng: random.Random) -> Any:
        low, high = self.message_bounds
        match name:
            case "overlap":
                return rng.choice(self.overlaps)
            case "way":
                return rng.choice(self.ways)
            case "rows_way":
                return rng.choice(self.rows_ways)
            case "part_bytes" if rng.random() < P_UNCUT:
                return high
            case "message_bytes" | "part_bytes":
                return math.exp(rng.uniform(math.log(low), math.log(high)))
            case "slice_bytes":
                return 0 if rng.random() < P_UNSLICED else rng.choice(self.slices)
            case "num_lanes":
                return rng.randint(1, self.num_lanes)
            case _:
                return rng.random() < 0.5

    def style(self, strategy: Strategy) -> Style:
        """Return the style that is nearest to a strategy."""
        ways: dict[str, float] = defaultdict(float)
        rows: dict[str, float] = defaultdict(float)
        variables = {variable.name: variable for variable in self._variables}
        slice_bytes = 0.0
        merged: list[float] = []
        alone: list[float] = []
        for message in strategy.messages:
            num_bytes = 0.0
            for part in message.parts:
                name = PartName.parse(part)
                variable = variables[name.variable]
                size = variable.num_bytes * _share(name, variable, strategy)
                num_bytes += size
                way = message.synchroniser.label
                ways[way if way in self.ways else ""] += size
                if variable.kind == "embedding":
                    rows[way if way in self.rows_ways else ""] += size
            (merged if len(message.parts) > 1 else alone).append(num_bytes)
            slice_bytes += num_bytes / self.total_bytes * (message.slice_bytes or 0)
        ways.pop("", None)
        low, high = self.message_bounds
        return Style(
            overlap=strategy.overlap if strategy.overlap in self.overlaps else self.overlaps[0],
            way=max(ways, key=lambda way: ways[way], default=self.ways[0]),
            rows_way=max(rows, key=lambda way: rows[way], default=""),
            message_bytes=min(max(max(merged, default=min([*alone, high])), low), high),
            part_bytes=min(max(self._part_bytes(strategy), low), high),
            slice_bytes=min(self.slices, key=lambda size: abs(size - slice_bytes)),
            num_lanes=min(strategy.num_lanes, self.num_lanes),
            by_use=len({message.priority for message in strategy.messages}) > 1,
        )

    def _part_bytes(self, strategy: Strategy) -> float:
        """Return the bytes of the largest part of a cut variable; the bytes of all variables if none is cut."""
        if not strategy.partitions:
            return float(self.total_bytes)
        cuts = strategy.partitions
        return max(
            variable.num_bytes * (max(cuts[variable.name].sizes) / sum(cuts[variable.name].sizes))
            if variable.name in cuts
            else float(variable.num_bytes)
            for variable in self._variables
        )

    def _cut(self, variable: Variable, style: Style) -> Partition | None:
        axes = axes_to_cut(variable)
        num_parts = math.ceil(variable.num_bytes / style.part_bytes)
        if not self.space.choices.can_cut or not axes or num_parts < 2:
            return None
        size = variable.shape[axes[0]]
        num_parts = min(num_parts, self.space.limits.max_parts, MAX_PARTS, size)
        return Partition(axis=axes[0], sizes=even_sizes(size, num_parts))

    def _variant(self, variable: Variable, style: Style) -> tuple[Variant, bool]:
        if variable.kind == "embedding" and style.rows_way:
            return self._rows[style.rows_way], True
        dense = self._dense[variable.dtype]
        return dense.get(style.way) or next(iter(dense.values())), False

    def _message(self, draft: _StyleDraft, style: Style, load: dict[str, float], lane: int) -> Message:
        """Return the message of a draft. A served message goes to the node that would finish first."""
        setting = draft.variant[0]
        if len(draft.variant) > 1:
            servers = {str(setting.synchroniser.served_by): setting for setting in draft.variant}
            server = min(servers, key=lambda name: (load[name] + draft.num_bytes) / self._rates[name])
            load[server] += draft.num_bytes
            setting = servers[server]
        is_sliced = setting.slices and 0 < style.slice_bytes < draft.num_bytes
        return Message(
            parts=tuple(draft.names),
            synchroniser=setting.synchroniser,
            lane=lane,
            slice_bytes=style.slice_bytes if is_sliced else None,
        )

    def _prioritised(self, messages: Sequence[Message]) -> list[Message]:
        by_name = {variable.name: variable for variable in self._variables}
        uses = [min(by_name[PartName.parse(part).variable].use for part in message.parts) for message in messages]
        levels = use_order(uses, min(self.space.choices.num_priorities, len(uses)))
        return [replace(message, priority=level) for message, level in zip(messages, levels, strict=True)]


def _by_way(table: KindTable) -> dict[str, Variant]:
    """Return the variants without a codec, by the names of their synchronisers."""
    return {
        variant[0].synchroniser.label: variant
        for by_codec in table.values()
        for variant in by_codec.get(None, ())
        if not variant[0].synchroniser.is_stale
    }


def _pieces(variable: Variable, cut: Partition | None) -> list[tuple[str, float]]:
    if cut is None:
        return [(variable.name, float(variable.num_bytes))]
    per_index = variable.num_bytes / variable.shape[cut.axis]
    return [(f"{variable.name}[{index}]", per_index * size) for index, size in enumerate(cut.sizes)]


def _share(name: PartName, variable: Variable, strategy: Strategy) -> float:
    if name.whole:
        return 1.0
    cut = strategy.partitions[name.variable]
    return cut.sizes[name.index] / variable.shape[cut.axis]
