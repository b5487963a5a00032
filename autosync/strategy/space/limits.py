"""Limits: the values of each aspect that the space may use.

Legality depends on the model, the cluster and the backend; limits say which legal strategies the user wants to try. By
default the space has every exact strategy, with slice sizes from a list and bounds on counts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Annotated, Literal

from pydantic import BeforeValidator

from autosync.documents import STRICT
from autosync.errors import Path, Problem
from autosync.specs.graph_batching import in_words
from autosync.strategy.codecs import Cast, Codec, Int8, PowerSGD, Sign, TopK
from autosync.strategy.cuts import even_sizes
from autosync.strategy.input_settings import input_in_words
from autosync.strategy.parts import Partition
from autosync.strategy.representation import Message, Overlap, Strategy
from autosync.strategy.shares import are_even
from autosync.strategy.stages import FLUSHED, UNFLUSHED, most_missed
from autosync.strategy.synchronisers import any_kind, synchroniser_kinds
from autosync.strategy.synchronisers.base import ROUTES, Route, Synchroniser
from autosync.strategy.synchronisers.outer_optimizer import OuterOptimizer
from autosync.units import exact_size, parse_size
from autosync.validation import Later

InexactClass = Literal["lossy", "stale"]

ALL_CODECS: tuple[Codec, ...] = (
    Cast(dtype="bfloat16"),
    Cast(dtype="float16"),
    Int8(error_feedback=True),
    TopK(),
    PowerSGD(),
    Sign(),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The values of each aspect that the space may use.

    allow                the classes besides `exact`; default none, because lossy and stale strategies change training
    overlaps             how far transfers may overlap compute; default both
    synchronisers        default all (periodic only with `stale`)
    topologies           default all that the backend can run; levels only with racks, trees also where links differ
    hierarchical         all-reduce within nodes first; default yes
    server_updates       where a server's optimizer may run; default both places
    local_proxies        one rank exchanges data with a server for its whole node; default yes
    staleness            steps that servers may lag, with `stale`; default 1, 2 and 4 (0 is always allowed); stages
                         without a flush miss no more updates than the largest of these
    periods              steps between two averages, with `stale`; default 2, 4, 8, 16 and 64
    outer_optimizers     applied to an average; default none, or DiLoCo's step
    codecs               with `lossy`; default each kind at its usual setting
    max_parts            parts of one variable; default 128
    uneven_parts         sizes that differ by more than one; default yes
    slice_bytes          besides whole messages; default 62.5 kB to 16 MB, each twice the one before
    max_lanes            default 4
    max_priorities       default 256 levels
    shares               uneven shares of the batch, where devices compute at different speeds; default yes
    stages               the model divided into stages, where its profile has cuts; default yes
    batching             policies and dealing of a model whose graph changes; default yes
    input                settings of the loader, for a task with a dataset; default yes
    """

    __pydantic_config__ = STRICT

    allow: tuple[InexactClass, ...] = ()
    overlaps: tuple[Overlap, ...] = ("backward", "forward")
    synchronisers: tuple[Annotated[str, Later(any_kind)], ...] = field(
        default_factory=lambda: tuple(synchroniser_kinds())
    )
    topologies: tuple[Route, ...] = ROUTES
    hierarchical: bool = True
    server_updates: tuple[Literal["server", "worker"], ...] = ("server", "worker")
    local_proxies: bool = True
    staleness: tuple[int, ...] = (1, 2, 4)
    periods: tuple[int, ...] = (2, 4, 8, 16, 64)
    outer_optimizers: tuple[OuterOptimizer | None, ...] = (None, OuterOptimizer())
    codecs: tuple[Codec, ...] = ALL_CODECS
    max_parts: int = 128
    uneven_parts: bool = True
    slice_bytes: tuple[Annotated[int, BeforeValidator(parse_size)], ...] = field(
        default=tuple(62_500 * 2**exponent for exponent in range(9)),
        metadata={"write": lambda sizes: [exact_size(size) for size in sizes]},
    )
    max_lanes: int = 4
    max_priorities: int = 256
    shares: bool = True
    stages: bool = True
    batching: bool = True
    input: bool = True

    def __post_init__(self) -> None:
        for name in ("overlaps", "synchronisers", "topologies", "server_updates", "outer_optimizers"):
            if not getattr(self, name):
                raise ValueError(f"{name} leaves no choice (at least one)")
        for name in ("max_parts", "max_lanes", "max_priorities"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} {getattr(self, name)} leaves no choice (1 or more)")
        if any(steps < 1 for steps in self.staleness) or any(steps < 1 for steps in self.periods):
            raise ValueError("staleness and periods are numbers of steps (1 or more)")
        if any(size < 1024 for size in self.slice_bytes):
            raise ValueError("slices below 1 KiB are all overhead (1 KiB or more)")
        for name in (limit.name for limit in fields(self)):
            value = getattr(self, name)
            if isinstance(value, tuple) and len(set(value)) < len(value):
                raise ValueError(f"{name} names a value twice (each value once)")

    @property
    def most_missed(self) -> int:
        """The updates that stages without a flush may miss."""
        return max((1, *self.staleness))

    def problems(self, strategy: Strategy, shapes: Mapping[str, tuple[int, ...]]) -> Iterator[Problem]:
        """Yield each place where a legal strategy is outside the limits; `shapes` are those of the variables."""
        yield from self._step_problems(strategy)
        for name, partition in strategy.partitions.items():
            yield from self._partition_problems(partition, shapes[name], ("partitions", name))
        for position, message in enumerate(strategy.messages):
            yield from self._message_problems(message, ("messages", position))

    def _step_problems(self, strategy: Strategy) -> Iterator[Problem]:
        if strategy.overlap not in self.overlaps:
            yield _outside(("overlap",), strategy.overlap, self.overlaps)
        if strategy.shares and not self.shares and not are_even(strategy.shares):
            yield _outside(("shares",), "uneven", ("even",))
        if strategy.batching is not None and not self.batching:
            yield _outside(("batching",), in_words(strategy.batching), ("none",))
        if strategy.input is not None and not self.input:
            yield _outside(("input",), input_in_words(strategy.input), ("none",))
        if strategy.stages:
            yield from self._stage_problems(strategy)

    def _stage_problems(self, strategy: Strategy) -> Iterator[Problem]:
        if not self.stages:
            yield _outside(("stages",), f"{len(strategy.stages)} stages", ("none",))
        if strategy.schedule in UNFLUSHED and "stale" not in self.allow:
            yield _outside(("schedule",), strategy.schedule, FLUSHED)
        missed = most_missed(strategy.stages, strategy.microbatches, strategy.schedule, strategy.slack)
        if missed > self.most_missed:
            yield _outside(("microbatches",), f"a stage that misses {missed} updates", (f"up to {self.most_missed}",))

    def _message_problems(self, message: Message, path: Path) -> Iterator[Problem]:
        yield from self._synchroniser_problems(message.synchroniser, (*path, "synchroniser"))
        if message.codec is not None and "lossy" not in self.allow:
            yield _outside((*path, "codec"), message.codec.kind, (None,))
        elif message.codec is not None and message.codec not in self.codecs:
            yield _outside((*path, "codec"), message.codec, self.codecs)
        if message.slice_bytes is not None and message.slice_bytes not in self.slice_bytes:
            yield _outside((*path, "slice_bytes"), message.slice_bytes, self.slice_bytes)
        if message.lane >= self.max_lanes:
            yield _outside((*path, "lane"), message.lane, (f"0 to {self.max_lanes - 1}",))
        if message.priority >= self.max_priorities:
            yield _outside((*path, "priority"), message.priority, (f"0 to {self.max_priorities - 1}",))

    def _partition_problems(self, partition: Partition, shape: tuple[int, ...], path: Path) -> Iterator[Problem]:
        sizes = partition.sizes
        if len(sizes) > self.max_parts:
            yield _outside((*path, "sizes"), f"{len(sizes)} parts", (f"up to {self.max_parts}",))
        if not self.uneven_parts and sizes != even_sizes(shape[partition.axis], len(sizes)):
            yield _outside((*path, "sizes"), "uneven parts", ("even parts, larger ones first",))

    def _synchroniser_problems(self, synchroniser: Synchroniser, path: Path) -> Iterator[Problem]:
        if synchroniser.kind not in self.synchronisers:
            yield _outside(path, synchroniser.kind, self.synchronisers)
        for place, value, allowed in synchroniser.outside(self):
            yield _outside((*path, *place), value, allowed)


def _outside(path: Path, value: object, allowed: Sequence[object]) -> Problem:
    return Problem(what=f"{value} is outside the limits", rule=f"limits: {', '.join(map(str, allowed))}", path=path)
