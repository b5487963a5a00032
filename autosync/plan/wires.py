"""Wires: the form in which a slice travels (plain or encoded), and the steps that encode and decode it."""

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
from autosync.plan.types import Algorithm, Groups, RegionKind, Weights
from autosync.specs.model import ITEM_BYTES
from autosync.strategy.codecs import Cast, Codec, Int8, PowerSGD, Sign, TopK

POSITION_BYTES = 4
SCALE_BYTES = 4
VALUE_BYTES = 4


class Wire(NamedTuple):
    """The data that a transfer sends: regions of `kind`, of size `amount`, as soon as `waits` are met.

    `item_bytes` is the size of an item (0: that of the message's elements). `kept` lists the regions that are needed.
    """

    kept: tuple[Kept, ...]
    kind: RegionKind
    amount: Amount
    item_bytes: int
    waits: Waits


def encoded_bytes(codec: Codec, num_elements: int) -> int:
    """Return the bytes of `num_elements` encoded elements; raise ValueError for PowerSGD, which encodes matrices."""
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
    """Return how many of `num_elements` elements top-k keeps: at least one."""
    return max(1, math.ceil(codec.ratio * num_elements))


def is_summable(codec: Codec | None) -> bool:
    """Whether encoded gradients can be summed on their way."""
    return codec is None or isinstance(codec, Cast)


def wire_of(site: Site, draft: Draft, codec: Codec | None, *, is_stale: bool = False) -> Wire:
    """Return the wire of a gradient, and add the step that encodes it, if a codec is given."""
    if codec is None:
        return Wire((Kept("grad"),), "grad", ELEMENTS, 0, (GRADIENTS,))
    encoded = _encode(site, draft, codec, "encoded", is_stale=is_stale)
    if isinstance(codec, Cast):
        kept = (Kept("grad"), Kept("encoded", codec.dtype))
        return Wire(kept, "encoded", ELEMENTS, ITEM_BYTES[codec.dtype], (encoded,))
    return Wire((Kept("grad"), Kept("encoded", "uint8")), "encoded", Amount("encoded_bytes"), 1, (encoded,))


def decode(
    site: Site, codec: Codec | None, groups: Groups, waits: Waits, *, sharded: bool = False, weights: Weights = ()
) -> LocalStep:
    """Return the step that makes the averaged gradient from the data that arrived on these ranks."""
    if codec is None:
        return LocalStep("average", groups, ("grad",), ("grad",), waits, sharded=sharded, weights=weights)
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
        weights=weights,
    )


def power_sgd(site: Site, draft: Draft, codec: PowerSGD, algorithm: Algorithm) -> tuple[tuple[Kept, ...], Wait]:
    """Add the steps of PowerSGD: compute and sum the left factor, compute and sum the right factor, multiply both.

    The left factor is the gradient times the last right factor. The right factor is the transposed gradient times the
    left factor, whose columns were first made orthonormal.
    """
    work = Amount("elements", codec.rank)
    sides: Kinds = ("left", "right")
    left, right = Amount("left_elements", codec.rank), Amount("right_elements", codec.rank)
    edge = _encode(site, draft, codec, "left")
    meeting = site.ordered(site.workers, algorithm)
    edge = draft.add(TransferStep("all_reduce", algorithm, meeting, 0, ("left",), (edge,), left))
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
    edge = draft.add(TransferStep("all_reduce", algorithm, meeting, 1, ("right",), (edge,), right))
    edge = draft.add(
        LocalStep("decode", site.workers, sides, ("grad",), (edge,), work, cost="decode:power_sgd", settings=codec)
    )
    return (Kept("grad"), Kept("left", amount=left), Kept("right", amount=right)), edge


def _encode(site: Site, draft: Draft, codec: Codec, output: RegionKind, *, is_stale: bool = False) -> Wait:
    # Error feedback carries a residual from step to step, so steps must be in order. Without staleness they already
    # are: the next gradient needs the parameter of this step.
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
