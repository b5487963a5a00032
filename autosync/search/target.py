"""The target of a search: our engine, or stock DDP, which can express a small part of all strategies.

The domain of stock DDP has lists of bucket caps and, if lossy strategies are allowed, one codec for all messages.
Its strategies are ordinary ones: simulators, records and bundles need no special case.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from autosync.errors import DoesNotApplyError
from autosync.plan.lowering import lower
from autosync.plan.types import Plan
from autosync.search.node_memory import NodeMemory
from autosync.specs.cluster import ClusterSpec
from autosync.specs.model import ModelSpec
from autosync.strategy import legality
from autosync.strategy.codecs import Cast, Codec, PowerSGD
from autosync.strategy.emit.ddp import WEIGHED, as_ddp_fills, why_not_ddp
from autosync.strategy.emit.hooks import TORCH_COMPRESSION_RATE
from autosync.strategy.presets.buckets import ready_buckets
from autosync.strategy.presets.common import is_sparse_to_ddp
from autosync.strategy.presets.lossy import is_worth_factors
from autosync.strategy.representation import Message, Strategy, all_parts
from autosync.strategy.space.limits import InexactClass, Limits
from autosync.strategy.synchronisers.all_reduce import AllReduce

Target = Literal["autosync", "ddp"]

MAX_CAPS = 64
"""The largest number of caps in a list; the last cap repeats."""
SMALLEST_CAP_BYTES = 16 * 1024
RANKS = (1, 2, 4)
P_HOOK = 0.5
"""The chance that a sample has a codec where codecs are allowed."""


def check_target(target: Target, model: ModelSpec) -> None:
    """Raise DoesNotApplyError if the target can express no strategy of a model."""
    if target == "ddp" and model.weighs:
        raise DoesNotApplyError(f"--target ddp for {model.name}", rule=WEIGHED, hint="leave out --target")


def ddp_limits(allow: Sequence[InexactClass]) -> Limits:
    """Return the limits of the space around the strategies that stock DDP can express."""
    return Limits(
        allow=tuple(one for one in allow if one == "lossy"),
        overlaps=("backward",),
        synchronisers=("all_reduce", "sparse_gather"),
        topologies=("native",),
        hierarchical=False,
        codecs=(Cast(dtype="float16"), Cast(dtype="bfloat16"), *(PowerSGD(rank=rank) for rank in RANKS)),
        max_parts=1,
        slice_bytes=(),
        max_lanes=1,
        max_priorities=1,
        shares=False,
        stages=False,
        batching=False,
        input=False,
    )


@dataclass(frozen=True, kw_only=True)
class DdpDomain:
    """The strategies that stock DDP can express: a `Domain`, see `search.proposers.interface`.

    All fit into the nodes' memory. A strategy is a list of caps, the last of which repeats, and a codec. A sample has
    one cap, or a first cap and another one, or caps that grow or shrink, or unrelated caps.
    """

    model: ModelSpec
    cluster: ClusterSpec
    allow: tuple[InexactClass, ...] = ()
    plan_of: Callable[[Strategy], Plan] | None = None
    """Lowers a strategy: a study passes the function of its preparer."""

    def sample(self, rng: random.Random) -> Strategy:
        """Return a strategy with one of the patterns. Sizes are drawn evenly over orders of magnitude."""
        cap = self._cap(rng)
        match rng.randrange(4):
            case 0:
                caps = [cap]
            case 1:
                caps = [self._cap(rng), cap]
            case 2:
                growth = math.exp(rng.uniform(-1, 1))
                caps = [max(int(cap * growth**k), SMALLEST_CAP_BYTES) for k in range(rng.randint(2, 12))]
            case _:
                caps = [self._cap(rng) for _ in range(rng.randint(2, 12))]
        return self._strategy(caps, self._codec(rng))

    def mutate(self, strategy: Strategy, rng: random.Random) -> Strategy:
        """Return the strategy after one change.

        A cap grows or shrinks, two buckets merge, one splits, a boundary moves, or the codec changes.
        """
        caps, codec = self._caps(strategy), _codec_of(strategy)
        position = rng.randrange(len(caps))
        match rng.randrange(6 if "lossy" in self.allow else 5):
            case 0 if len(caps) > 1:
                position = rng.randrange(len(caps) - 1)
                caps[position : position + 2] = [caps[position] + caps[position + 1]]
            case 1 if len(caps) < MAX_CAPS:
                share = rng.uniform(0.2, 0.8)
                caps[position : position + 1] = [int(caps[position] * share), int(caps[position] * (1 - share))]
            case 2 if len(caps) > 1:
                position = rng.randrange(len(caps) - 1)
                moved = int(caps[position] * rng.uniform(0.1, 0.7))
                caps[position : position + 2] = [caps[position] - moved, caps[position + 1] + moved]
            case 3:
                factor = math.exp(rng.uniform(-0.7, 0.7))
                caps = [int(cap * factor) for cap in caps]
            case 5:
                codec = self._codec(rng)
            case _:
                caps[position] = int(caps[position] * math.exp(rng.uniform(-1, 1)))
        return self._strategy(caps, codec)

    def crossover(self, first: Strategy, second: Strategy, rng: random.Random) -> Strategy:
        """Return the buckets of `first` up to some gradient, followed by those of `second`."""
        early, late = self._caps(first), self._caps(second)
        end = rng.randint(1, len(early))
        begun = sum(early[:end])
        passed, rest = 0, list(late)
        while len(rest) > 1 and passed + rest[0] <= begun:
            passed += rest.pop(0)
        return self._strategy([*early[:end], *rest], _codec_of(rng.choice((first, second))))

    def nearest(self, strategy: Strategy) -> Strategy:
        """Return the strategy itself, or one with buckets of the sizes of its messages."""
        return strategy if self.contains(strategy) else self._strategy(self._caps(strategy), None)

    def contains(self, strategy: Strategy) -> bool:
        if not strategy.classes <= {"exact", *self.allow}:
            return False
        if legality.problems(strategy, self.model, self.cluster):
            return False
        if why_not_ddp(strategy, self.model, self.cluster):
            return False
        plan_of = self.plan_of or (lambda strategy: lower(strategy, self.model, self.cluster))
        return NodeMemory(self.model, self.cluster).fits(plan_of(strategy))

    def _strategy(self, caps: Sequence[int], codec: Codec | None) -> Strategy:
        limits = [max(cap, 1) for cap in caps[:MAX_CAPS]]
        messages = ready_buckets(
            as_ddp_fills(self.model),
            limits,
            AllReduce(),
            stands_alone=lambda v: is_sparse_to_ddp(v, self.model, self.cluster),
        )
        if any(not isinstance(message.synchroniser, AllReduce) for message in messages):
            # torch's hook would encode their rows too.
            codec = None
        encoded = (part for message in messages for part in self._encoded(message, codec))
        return Strategy(messages=tuple(encoded))

    def _encoded(self, message: Message, codec: Codec | None) -> list[Message]:
        """Return the messages of a bucket with the codec: the part that it encodes, and the rest unchanged."""
        if codec is None:
            return [message]
        if not isinstance(codec, PowerSGD):
            return [replace(message, codec=codec)]
        rank, rate = codec.rank, TORCH_COMPRESSION_RATE
        worth = [n for n in message.parts if is_worth_factors(self.model.variable(n), rank=rank, rate=rate)]
        plain = tuple(name for name in message.parts if name not in worth)
        found = [replace(message, parts=tuple(worth), codec=codec)] if worth else []
        return [*found, replace(message, parts=plain)] if plain else found

    def _caps(self, strategy: Strategy) -> list[int]:
        """Return the sizes of the strategy's messages in the order of their gradients."""
        parts = all_parts(strategy, as_ddp_fills(self.model))
        dense = [message for message in strategy.messages if isinstance(message.synchroniser, AllReduce)]
        ordered = sorted(dense or strategy.messages, key=lambda m: min(parts[name].order for name in m.parts))
        sizes = [sum(parts[name].num_bytes for name in message.parts) for message in ordered]
        return sizes[:MAX_CAPS]

    def _cap(self, rng: random.Random) -> int:
        largest = max(self.model.num_bytes, 2 * SMALLEST_CAP_BYTES)
        return int(math.exp(rng.uniform(math.log(SMALLEST_CAP_BYTES), math.log(largest))))

    def _codec(self, rng: random.Random) -> Codec | None:
        if "lossy" not in self.allow or rng.random() >= P_HOOK:
            return None
        cast = Cast(dtype="bfloat16" if self.cluster.backend == "nccl" else "float16")
        codecs: list[Codec] = [cast, *(PowerSGD(rank=rank) for rank in RANKS)]
        return rng.choice(codecs)


def _codec_of(strategy: Strategy) -> Codec | None:
    """Return the one codec of a strategy that stock DDP can express."""
    codecs = (message.codec for message in strategy.messages if isinstance(message.codec, Cast | PowerSGD))
    return next(codecs, None)
