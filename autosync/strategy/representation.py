"""The strategy: a complete answer to how a model's gradients are synchronised on a cluster.

Two things make a strategy. `partitions` cut variables into parts along an axis. `messages` say what travels together:
each part is in exactly one message, and a message has one value for every other aspect (synchroniser with its topology
and placement, codec, priority, slice size, lane). So parts that travel as one cannot disagree, by construction. How far
transfers may overlap compute holds for the whole step. The order in which messages and parts are written has no
meaning; order is what `priority` and `lane` say.

Classes: `exact` keeps the mathematics of single-process training up to rounding, `lossy` has a codec that changes
gradients, `stale` uses parameters that miss updates (staleness above 0, or averaging less often than every step).
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from autosync.documents import STRICT
from autosync.units import exact_size, parse_size

SCHEMA_KIND = "strategy"
SCHEMA_VERSION = 1

Topology = Literal["native", "ring", "tree", "halving_doubling"]
ExchangeTopology = Literal["native", "ring", "halving_doubling"]
GatherTopology = Literal["native", "ring"]
Overlap = Literal["backward", "forward"]
StrategyClass = Literal["exact", "lossy", "stale"]

_PART = re.compile(r"(?P<variable>[^\[\]]+)(\[(?P<index>0|[1-9][0-9]*)\])?")


@dataclass(frozen=True, slots=True, kw_only=True)
class AllReduce:
    """Every rank gets the sum of all gradients and updates its own copy.

    `hierarchical` reduces within each node first and lets one share of each node meet the others over `topology`.
    """

    __pydantic_config__ = STRICT

    kind: Literal["all_reduce"] = "all_reduce"
    topology: Topology = "native"
    hierarchical: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class OuterOptimizer:
    """DiLoCo's outer step: Nesterov momentum on the averaged change of the parameters since the last average."""

    __pydantic_config__ = STRICT

    learning_rate: float = 0.7
    momentum: float = 0.9

    def __post_init__(self) -> None:
        if not (math.isfinite(self.learning_rate) and self.learning_rate > 0 and 0 <= self.momentum < 1):
            raise ValueError("no outer optimizer (learning_rate above 0, 0 <= momentum < 1)")


@dataclass(frozen=True, slots=True, kw_only=True)
class ParameterServer:
    """One node collects the gradients and answers.

    `server` is a node's name; `update` says whether the optimizer runs there and parameters come back, or runs on every
    worker and the averaged gradient comes back. With `local_proxy` the ranks of a node speak to the server through one
    of them. `sparse` moves touched rows only. With `staleness` s a worker may compute with parameters that miss the
    last s updates.
    """

    __pydantic_config__ = STRICT

    kind: Literal["parameter_server"] = "parameter_server"
    server: str
    update: Literal["server", "worker"] = "server"
    local_proxy: bool = False
    sparse: bool = False
    staleness: int = 0

    def __post_init__(self) -> None:
        if self.staleness < 0:
            raise ValueError(f"staleness {self.staleness} looks ahead (0 or more steps)")
        if self.staleness and self.update == "worker":
            raise ValueError("a stale server must hold the parameters (staleness needs update: server)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Sharded:
    """Reduce-scatter of gradients, the optimizer on each rank's shard, all-gather of parameters."""

    __pydantic_config__ = STRICT

    kind: Literal["sharded"] = "sharded"
    topology: ExchangeTopology = "native"


@dataclass(frozen=True, slots=True, kw_only=True)
class SparseGather:
    """Every rank gets every other rank's touched rows."""

    __pydantic_config__ = STRICT

    kind: Literal["sparse_gather"] = "sparse_gather"
    topology: GatherTopology = "native"


@dataclass(frozen=True, slots=True, kw_only=True)
class SufficientFactors:
    """Every rank gets the two factors of every other rank's gradient and multiplies them itself."""

    __pydantic_config__ = STRICT

    kind: Literal["sufficient_factors"] = "sufficient_factors"
    topology: GatherTopology = "native"


@dataclass(frozen=True, slots=True, kw_only=True)
class Periodic:
    """Each rank trains for itself; every `every` steps the parameters are averaged.

    With `outer` the averaged change is not taken as it is: an outer optimizer steps with it.
    """

    __pydantic_config__ = STRICT

    kind: Literal["periodic"] = "periodic"
    every: int
    topology: Topology = "native"
    outer: OuterOptimizer | None = None

    def __post_init__(self) -> None:
        if self.every < 1:
            raise ValueError(f"every {self.every} steps is never (1 or more)")


Synchroniser = Annotated[
    AllReduce | ParameterServer | Sharded | SparseGather | SufficientFactors | Periodic, Field(discriminator="kind")
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cast:
    """Numbers of half the size on the wire."""

    __pydantic_config__ = STRICT

    kind: Literal["cast"] = "cast"
    dtype: Literal["float16", "bfloat16"] = "bfloat16"
    error_feedback: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Int8:
    """One byte a number, and one scale for each `block` numbers."""

    __pydantic_config__ = STRICT

    kind: Literal["int8"] = "int8"
    block: int = 256
    error_feedback: bool = False

    def __post_init__(self) -> None:
        if self.block < 1:
            raise ValueError(f"a block of {self.block} numbers holds none (1 or more)")


@dataclass(frozen=True, slots=True, kw_only=True)
class TopK:
    """The share `ratio` of the numbers that are largest in magnitude, each with its position.

    With `momentum` each worker sends from a velocity of its own (`momentum` times the last one, plus the gradient)
    instead of the gradient, and what was sent is cleared from the velocity: the momentum correction and the factor
    masking of Deep Gradient Compression. It takes the place of the optimizer's momentum.
    """

    __pydantic_config__ = STRICT

    kind: Literal["top_k"] = "top_k"
    ratio: float = 0.01
    error_feedback: bool = True
    momentum: float = 0.0

    def __post_init__(self) -> None:
        if not 0 < self.ratio <= 1:
            raise ValueError(f"a ratio of {self.ratio} sends nothing or more than all (0 < ratio <= 1)")
        if not 0 <= self.momentum < 1:
            raise ValueError(f"{self.momentum} is no momentum (0 <= momentum < 1)")
        if self.momentum and not self.error_feedback:
            raise ValueError("a velocity that is not kept until it is sent (momentum needs error_feedback: true)")


@dataclass(frozen=True, slots=True, kw_only=True)
class PowerSGD:
    """A product of two thin matrices of rank `rank`, found by one power iteration a step."""

    __pydantic_config__ = STRICT

    kind: Literal["power_sgd"] = "power_sgd"
    rank: int = 4
    error_feedback: bool = True

    def __post_init__(self) -> None:
        if self.rank < 1:
            raise ValueError(f"rank {self.rank} approximates nothing (1 or more)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Sign:
    """One bit a number and one scale: the mean magnitude."""

    __pydantic_config__ = STRICT

    kind: Literal["sign"] = "sign"
    error_feedback: bool = True


Codec = Annotated[Cast | Int8 | TopK | PowerSGD | Sign, Field(discriminator="kind")]


@dataclass(frozen=True, slots=True, kw_only=True)
class Partition:
    """A variable cut along `axis` into parts of the given sizes."""

    __pydantic_config__ = STRICT

    axis: int = 0
    sizes: tuple[int, ...]

    def __post_init__(self) -> None:
        if not self.sizes or any(size < 1 for size in self.sizes):
            raise ValueError(f"sizes {list(self.sizes)} have an empty part (each part has 1 or more)")
        if self.axis < 0:
            raise ValueError(f"axis {self.axis} counts from the end (0 or more)")


@dataclass(frozen=True, slots=True)
class PartName:
    """A part of a variable: `fc.weight[2]`, or the whole of it: `fc.weight`."""

    variable: str
    index: int = 0
    whole: bool = True

    def __str__(self) -> str:
        return self.variable if self.whole else f"{self.variable}[{self.index}]"

    @staticmethod
    @functools.lru_cache(maxsize=65536)
    def parse(text: str) -> PartName:
        """Read `VARIABLE` or `VARIABLE[INDEX]`; searches read the same few over and over."""
        match = _PART.fullmatch(text) if len(text) <= 4096 else None
        if match is None:
            raise ValueError(f"{text!r} names no part (VARIABLE or VARIABLE[INDEX])")
        index = match["index"]
        return PartName(match["variable"], int(index) if index else 0, index is None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """Parts that travel as one, and how.

    `priority` decides among lanes that have something to send: 0 goes first. Within a `lane` messages go in a fixed
    order, that in which their gradients become ready. `slice_bytes` cuts a long message so that others can overtake.
    """

    __pydantic_config__ = STRICT

    parts: tuple[str, ...]
    synchroniser: Synchroniser = field(default_factory=AllReduce)
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
    """How every variable is synchronised and how transfers are scheduled.

    `overlap` says how long a transfer may take its time: until backward returns, or on into the next forward pass up to
    each parameter's next use.
    """

    __pydantic_config__ = STRICT

    name: str = ""
    overlap: Overlap = "backward"
    partitions: Mapping[str, Partition] = field(default_factory=dict)
    messages: tuple[Message, ...]

    @property
    def classes(self) -> frozenset[StrategyClass]:
        """`lossy` and `stale` where they hold; `exact` where neither does."""
        found: set[StrategyClass] = set()
        for message in self.messages:
            synchroniser = message.synchroniser
            if message.codec is not None:
                found.add("lossy")
            if isinstance(synchroniser, ParameterServer) and synchroniser.staleness > 0:
                found.add("stale")
            if isinstance(synchroniser, Periodic) and (synchroniser.every > 1 or synchroniser.outer):
                found.add("stale")
        return frozenset(found or {"exact"})

    @property
    def is_exact(self) -> bool:
        return self.classes == {"exact"}
