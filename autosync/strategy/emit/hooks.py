"""Finds torch's communication hook for the codecs of messages; a hook sees whole buckets."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from autosync.specs.model import ModelSpec, Variable, variables_by_name
from autosync.strategy.codecs import Cast, PowerSGD
from autosync.strategy.presets.common import in_ready_order
from autosync.strategy.presets.lossy import is_worth_factors
from autosync.strategy.representation import Message

TORCH_COMPRESSION_RATE = 2.0
"""`min_compression_rate` of torch's PowerSGD, which compresses only gradients that it can shrink by this factor."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CommunicationHook:
    """The hook of all-reduced messages and the buckets that it sees, or the reason why torch has no such hook."""

    codec: Cast | PowerSGD | None = None
    messages: tuple[Message, ...]
    reason: str = ""


def hook_of(messages: Sequence[Message], model: ModelSpec, backend: str) -> CommunicationHook:
    """Return the hook with which DDP encodes as these messages do."""
    codecs = {message.codec for message in messages}
    found = CommunicationHook(messages=tuple(messages))
    if codecs <= {None}:
        return found
    known = {codec for codec in codecs if codec is not None}
    codec = next(iter(known))
    if len(known) > 1:
        return replace(found, reason="messages have several codecs, and a DDP has one hook")
    if isinstance(codec, PowerSGD):
        return _power_sgd(messages, codec, model)
    if not isinstance(codec, Cast):
        return replace(found, reason=f"torch has no hook that does what the codec {codec.kind} does")
    if codec.error_feedback:
        return replace(found, reason="torch's hooks that cast feed no errors back")
    if codec.dtype == "bfloat16" and backend != "nccl":
        return replace(found, reason=f"torch has its hook that casts to bfloat16 on NCCL only, and this is {backend}")
    if None in codecs:
        plain = next(message for message in messages if message.codec is None)
        return replace(found, reason=f"{plain.parts[0]} travels as it is, and torch's hook casts every bucket")
    return replace(found, codec=codec)


def _power_sgd(messages: Sequence[Message], codec: PowerSGD, model: ModelSpec) -> CommunicationHook:
    """Return the hook of PowerSGD if it compresses the same variables as these messages.

    torch's PowerSGD decides by itself which variables of a bucket to compress; it all-reduces the others together.
    """
    known = variables_by_name(model)
    for message in messages:
        for name in message.parts:
            worth = is_worth_factors(known[name], rank=codec.rank, rate=TORCH_COMPRESSION_RATE)
            if worth != (message.codec is not None):
                how = "compresses" if worth else "does not compress"
                reason = f"torch's PowerSGD of rank {codec.rank} {how} {name}"
                return CommunicationHook(messages=tuple(messages), reason=reason)
    return CommunicationHook(codec=codec, messages=_joined(messages, model))


def _joined(messages: Sequence[Message], model: ModelSpec) -> tuple[Message, ...]:
    """Join messages that overlap in the order of gradients, as DDP's buckets mix compressed and other gradients.

    Gradients of each dtype have buckets of their own.
    """
    known = variables_by_name(model)
    of_dtypes: dict[str, list[Message]] = {}
    for message in messages:
        of_dtypes.setdefault(known[message.parts[0]].dtype, []).append(message)
    return tuple(itertools.chain.from_iterable(_joined_alike(some, known) for some in of_dtypes.values()))


def _joined_alike(messages: Sequence[Message], known: Mapping[str, Variable]) -> list[Message]:
    """Join messages of one dtype."""

    def span(message: Message) -> tuple[int, int]:
        ready = [known[name].ready for name in message.parts]
        return min(ready), max(ready)

    found: list[Message] = []
    end = -1
    for message in sorted(messages, key=span):
        first, last = span(message)
        if found and first < end:
            parts = in_ready_order(known[name] for name in (*found[-1].parts, *message.parts))
            found[-1] = replace(found[-1], parts=tuple(variable.name for variable in parts))
        else:
            found.append(message)
        end = max(end, last)
    return found
