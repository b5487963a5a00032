"""Wires: what of a slice travels, plain or encoded, and how a finished gradient is made of what arrived."""

from __future__ import annotations

import math
from typing import NamedTuple

from autosync.plan.steps import (
    ELEMENTS,
    GRADIENTS,
    Amount,
    Draft,
    Kept,
    Kinds,
    LocalStep,
    Site,
    TransferStep,
    Wait,
    Waits,
)
from autosync.plan.types import Algorithm, Groups, RegionKind
from autosync.specs.model import ITEM_BYTES
from autosync.strategy.codecs import Cast, Codec, Int8, PowerSGD, Sign, TopK

POSITION_BYTES = 4
SCALE_BYTES = 4
VALUE_BYTES = 4


class Wire(NamedTuple):
    """What travels: regions of a kind, how much of it, in items of how many bytes (0: the message's own); and when.

    `kept` are the regions that it needs.
    """

    kept: tuple[Kept, ...]
    kind: RegionKind
    amount: Amount
    item_bytes: int
    waits: Waits


def encoded_bytes(codec: Codec, num_elements: int) -> int:
    """Bytes of so many encoded elements, where a codec works on vectors."""
    match codec:
        case Cast():
            return num_elements * ITEM_BYTES[codec.dtype]
        case Int8():
            return num_elements + SCALE_BYTES * math.ceil(num_elements / codec.block)
        case TopK():
            return (VALUE_BYTES + POSITION_BYTES) * num_kept(codec, num_elements)
        case Sign():
            return math.ceil(num_elements / 8) + SCALE_BYTES
    raise ValueError(f"{codec.kind} encodes matrices")


def num_kept(codec: TopK, num_elements: int) -> int:
    """How many of so many elements top-k keeps: at least one."""
    return max(1, math.ceil(codec.ratio * num_elements))


def is_summable(codec: Codec | None) -> bool:
    """Whether what travels can be summed on the way."""
    return codec is None or isinstance(codec, Cast)


def wire_of(site: Site, draft: Draft, codec: Codec | None, *, is_stale: bool = False) -> Wire:
    """The gradient itself, its cast to numbers of half the size, or what a codec makes of it."""
    if codec is None:
        return Wire((Kept("grad"),), "grad", ELEMENTS, 0, (GRADIENTS,))
    encoded = _encode(site, draft, codec, "encoded", is_stale=is_stale)
    if isinstance(codec, Cast):
        kept = (Kept("grad"), Kept("encoded", codec.dtype))
        return Wire(kept, "encoded", ELEMENTS, ITEM_BYTES[codec.dtype], (encoded,))
    return Wire((Kept("grad"), Kept("encoded", "uint8")), "encoded", Amount("encoded_bytes"), 1, (encoded,))


def decode(site: Site, codec: Codec | None, groups: Groups, waits: Waits, *, sharded: bool = False) -> LocalStep:
    """The averaged gradient out of what arrived on those ranks."""
    if codec is None:
        return LocalStep("average", groups, ("grad",), ("grad",), waits, sharded=sharded)
    num_contributions = 1 if isinstance(codec, Cast) else site.num_workers
    return LocalStep(
        "decode",
        groups,
        ("encoded",),
        ("grad",),
        waits,
        Amount("elements", num_contributions),
        cost=f"decode:{codec.kind}",
        sharded=sharded,
        settings=codec,
    )


def power_sgd(site: Site, draft: Draft, codec: PowerSGD, algorithm: Algorithm) -> tuple[tuple[Kept, ...], Wait]:
    """The left factor (gradient times the last right one), summed; the right one, summed; their product.

    The right factor is the gradient's transpose times the left one made orthogonal.
    """
    work = Amount("elements", codec.rank)
    sides: Kinds = ("left", "right")
    left, right = Amount("left_elements", codec.rank), Amount("right_elements", codec.rank)
    edge = _encode(site, draft, codec, "left")
    edge = draft.add(TransferStep("all_reduce", algorithm, site.workers, 0, ("left",), (edge,), left))
    edge = draft.add(
        LocalStep(
            "project",
            site.workers,
            ("grad", "left"),
            sides,
            (edge,),
            work,
            cost="project:power_sgd",
            settings=codec,
        )
    )
    edge = draft.add(TransferStep("all_reduce", algorithm, site.workers, 1, ("right",), (edge,), right))
    edge = draft.add(
        LocalStep("decode", site.workers, sides, ("grad",), (edge,), work, cost="decode:power_sgd", settings=codec)
    )
    return (Kept("grad"), Kept("left", amount=left), Kept("right", amount=right)), edge


def _encode(site: Site, draft: Draft, codec: Codec, output: RegionKind, *, is_stale: bool = False) -> Wait:
    # What error feedback holds back goes from step to step. Elsewhere the parameter's way home keeps steps apart.
    before = (draft.next(lag=1),) if codec.error_feedback and is_stale else ()
    return draft.add(
        LocalStep(
            "encode",
            site.workers,
            ("grad",),
            (output,),
            (GRADIENTS, *before),
            Amount("elements", codec.rank if isinstance(codec, PowerSGD) else 1),
            cost=f"encode:{codec.kind}",
            settings=codec,
        )
    )
