"""The strategy: a complete answer to how a model's gradients are synchronised on a cluster.

A strategy has two main fields. `partitions` cut variables into parts along an axis. `messages` say which parts travel
together: each part is in exactly one message, and a message has one value for every other aspect (synchroniser with its
topology and placement, codec, priority, slice size, lane). So parts of one message cannot have different settings. How
far transfers may overlap compute is set for the whole step. So are the `shares` of the global batch that ranks compute
(see `strategy.shares`), the `stages` into which the model is cut (see `strategy.stages`), the settings with which ranks
read their `input` (see `specs.input_settings`), and the `batching` of a model whose graph changes (see
`specs.graph_batching`). The order in which messages and parts are written has no meaning; `priority` and `lane` set the
order of transfers.

Classes: `exact` keeps the mathematics of single-process training up to rounding, `lossy` has a codec that changes
gradients, `stale` uses parameters that miss updates (staleness above 0, averaging less often than every step, or
stages without a flush).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Literal

from pydantic import BeforeValidator

from autosync.documents import STRICT
from autosync.specs.graph_batching import GraphBatching
from autosync.specs.input_settings import GivenInput
from autosync.specs.model import ModelSpec
from autosync.strategy.codecs import Codec
from autosync.strategy.parts import Part, Partition, PartName, parts_of
from autosync.strategy.stages import UNFLUSHED, USUAL_SCHEDULE, ModelStage, PipelineSchedule
from autosync.strategy.synchronisers import any_synchroniser
from autosync.strategy.synchronisers.all_reduce import PLAIN
from autosync.strategy.synchronisers.base import Synchroniser
from autosync.units import exact_size, parse_size
from autosync.validation import Later

SCHEMA_KIND = "strategy"
SCHEMA_VERSION = 1

Overlap = Literal["backward", "forward"]
StrategyClass = Literal["exact", "lossy", "stale"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """Parts that travel together, and the settings of their transfers.

    `priority` decides between lanes that have transfers ready: 0 goes first. Within a `lane` messages go in the order
    in which their gradients become ready. `slice_bytes` cuts a long message into slices, so that others can overtake.
    """

    __pydantic_config__ = STRICT

    parts: tuple[str, ...]
    synchroniser: Annotated[Synchroniser, Later(any_synchroniser)] = PLAIN
    codec: Codec | None = None
    priority: int = 0
    lane: int = 0
    slice_bytes: Annotated[int | None, BeforeValidator(lambda text: text if text is None else parse_size(text))] = (
        field(default=None, metadata={"write": exact_size})
    )

    def __post_init__(self) -> None:
        if not self.parts:
            raise ValueError("a message without parts (at least one)")
        if self.priority < 0 or self.lane < 0:
            raise ValueError("priority and lane count from 0 (0 or more)")
        if self.slice_bytes is not None and self.slice_bytes < 1024:
            raise ValueError(f"slices of {self.slice_bytes} B are all overhead (1 KiB or more)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Strategy:
    """A strategy: how every variable is synchronised and how transfers are scheduled.

    `overlap` says how long a transfer may last: until backward returns, or into the next forward pass, until each
    parameter's next use. `shares` has the examples of the global batch that each worker rank computes; empty, all
    ranks compute equally many. `stages` say which ranks compute which layers; empty, each rank computes all of them.
    With stages, the global batch passes through them in `microbatches`, in the order of the `schedule`, with `slack`,
    and `recompute` lets backward passes compute activations again instead of keeping them. `send_units` is the time of
    a send in the `units` of stages. `input` has the settings of ranks' input pipelines; None leaves them to the
    script. `batching` is for models whose graph changes; None leaves it to the model.
    """

    __pydantic_config__ = STRICT

    name: str = ""
    overlap: Overlap = "backward"
    shares: tuple[int, ...] = ()
    stages: tuple[ModelStage, ...] = ()
    microbatches: int = 1
    schedule: PipelineSchedule = USUAL_SCHEDULE
    slack: int = 0
    send_units: int = 0
    recompute: bool = False
    input: GivenInput = None
    batching: GraphBatching | None = None
    partitions: Mapping[str, Partition] = field(default_factory=dict)
    messages: tuple[Message, ...]

    def __post_init__(self) -> None:
        if not self.name.isprintable():
            raise ValueError(f"{self.name!r} is no name of a strategy (one line, without control characters)")

    @property
    def classes(self) -> frozenset[StrategyClass]:
        """The classes of the strategy: `lossy`, `stale` or both, or else `exact`."""
        found: set[StrategyClass] = {"stale"} if self.stages and self.schedule in UNFLUSHED else set()
        for message in self.messages:
            if message.codec is not None:
                found.add("lossy")
            if message.synchroniser.is_stale:
                found.add("stale")
        return frozenset(found or {"exact"})

    @property
    def num_lanes(self) -> int:
        """The number of lanes that messages use. All code that counts a strategy's or a plan's lanes reads this."""
        return len({message.lane for message in self.messages})

    @property
    def is_exact(self) -> bool:
        return self.classes == {"exact"}


def all_parts(strategy: Strategy, model: ModelSpec) -> Mapping[str, Part]:
    """Return every part of every variable under a strategy, by name."""
    found: dict[str, Part] = {}
    for variable in model.variables:
        for part in parts_of(variable, strategy.partitions.get(variable.name)):
            found[str(part.name)] = part
    return found


def without(strategy: Strategy, names: Collection[str]) -> Strategy:
    """Return a strategy without some variables; a message of which nothing is left is left out."""
    if not names:
        return strategy
    kept = [
        tuple(part for part in one.parts if PartName.parse(part).variable not in names) for one in strategy.messages
    ]
    return replace(
        strategy,
        partitions={name: one for name, one in strategy.partitions.items() if name not in names},
        messages=tuple(replace(one, parts=parts) for one, parts in zip(strategy.messages, kept, strict=True) if parts),
    )
