"""Wires: what of a slice travels, plain or encoded, and how a finished gradient is made of what arrived."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal, NamedTuple

from autosync.plan.builder import Buffer, Builder, Piece, Slice
from autosync.plan.types import Algorithm, Collective, Edge, Groups
from autosync.specs.model import ITEM_BYTES
from autosync.strategy.representation import Cast, Codec, Int8, PowerSGD, Sign, TopK

POSITION_BYTES = 4
SCALE_BYTES = 4
VALUE_BYTES = 4


class Wire(NamedTuple):
    """What travels, the gradients that it is or was encoded from, and what it waits for."""

    buffer: Buffer
    grads: tuple[int, ...]
    after: tuple[Edge, ...]


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


def dense_wire(builder: Builder, codec: Codec | None, piece: Slice) -> Wire:
    """The gradient itself, or its cast to numbers of half the size."""
    after = builder.grads_ready(piece.pieces)
    grads = builder.regions_of("grad", piece.pieces)
    if codec is None:
        return Wire(Buffer(grads, piece.num_elements, piece.item_bytes), grads, after)
    assert isinstance(codec, Cast), "other codecs cannot be summed on the way"
    encoded = builder.regions_of("encoded", piece.pieces, codec.dtype)
    edge = _encode(builder, codec, grads, encoded, after, piece)
    return Wire(Buffer(encoded, piece.num_elements, ITEM_BYTES[codec.dtype]), grads, (edge,))


def gather_encoded(
    builder: Builder, codec: Codec, piece: Slice, groups: Groups, algorithm: Algorithm
) -> tuple[Wire, Edge]:
    """Encode everywhere and gather all contributions: at the root with `star`, else everywhere."""
    grads = builder.regions_of("grad", piece.pieces)
    encoded = builder.regions_of("encoded", piece.pieces, "uint8")
    edge = _encode(builder, codec, grads, encoded, builder.grads_ready(piece.pieces), piece)
    num_bytes = sum([encoded_bytes(codec, stop - start) for _, start, stop in piece.pieces])
    wire = Wire(Buffer(encoded, num_bytes, 1), grads, (edge,))
    to_root = algorithm == "star"
    collective: Collective = "gather_v" if to_root else "all_gather_v"
    stage = 1 if to_root else 0
    return wire, builder.transfer(piece.message, stage, collective, algorithm, groups, wire.buffer, wire.after)


def decoded(
    builder: Builder,
    codec: Codec | None,
    wire: Wire,
    groups: Groups,
    after: tuple[Edge, ...],
    piece: Slice,
    *,
    sharded: bool = False,
) -> Edge:
    """The averaged gradient out of what arrived on those ranks."""
    grads, num_elements = wire.grads, piece.num_elements
    if codec is None:
        return builder.local(
            piece.message, "average", groups, grads, grads, after, num_elements=num_elements, sharded=sharded
        )
    num_contributions = 1 if isinstance(codec, Cast) else len(builder.workers[0])
    return builder.local(
        piece.message,
        "decode",
        groups,
        wire.buffer.regions,
        grads,
        after,
        num_elements=num_elements * num_contributions,
        cost=f"decode:{codec.kind}",
        sharded=sharded,
        settings=codec,
    )


def power_sgd(
    builder: Builder, codec: PowerSGD, piece: Slice, algorithm: Algorithm
) -> tuple[tuple[Edge, ...], tuple[int, ...]]:
    """The left factor (gradient times the last right one), summed; the right one, summed; their product.

    The right factor is the gradient's transpose times the left one made orthogonal.
    """
    message, workers, work = piece.message, builder.workers, piece.num_elements * codec.rank
    grads = builder.regions_of("grad", piece.pieces)
    sides = [_sides(builder, p) for p in piece.pieces]
    left = _factors(builder, "left", piece, [rows * codec.rank for rows, _ in sides])
    right = _factors(builder, "right", piece, [columns * codec.rank for _, columns in sides])
    edge = _encode(builder, codec, grads, left.regions, builder.grads_ready(piece.pieces), piece)
    edge = builder.transfer(message, 0, "all_reduce", algorithm, workers, left, (edge,))
    edge = builder.local(
        message,
        "project",
        workers,
        (*grads, *left.regions),
        (*left.regions, *right.regions),
        (edge,),
        num_elements=work,
        cost="project:power_sgd",
        settings=codec,
    )
    edge = builder.transfer(message, 1, "all_reduce", algorithm, workers, right, (edge,))
    edge = builder.local(
        message,
        "decode",
        workers,
        (*left.regions, *right.regions),
        grads,
        (edge,),
        num_elements=work,
        cost="decode:power_sgd",
        settings=codec,
    )
    return (edge,), grads


def _encode(
    builder: Builder,
    codec: Codec,
    grads: tuple[int, ...],
    outputs: tuple[int, ...],
    after: tuple[Edge, ...],
    piece: Slice,
) -> Edge:
    work = piece.num_elements * (codec.rank if isinstance(codec, PowerSGD) else 1)
    # What error feedback holds back goes from step to step. Elsewhere the parameter's way home keeps steps apart.
    is_stale = getattr(builder.strategy.messages[piece.message].synchroniser, "staleness", 0) > 0
    before = (Edge("operation", len(builder.operations), 1),) if codec.error_feedback and is_stale else ()
    return builder.local(
        piece.message,
        "encode",
        builder.workers,
        grads,
        outputs,
        (*after, *before),
        num_elements=work,
        cost=f"encode:{codec.kind}",
        settings=codec,
    )


def _sides(builder: Builder, piece: Piece) -> tuple[int, int]:
    """Rows and columns of a part seen as a matrix: its first axis against all others."""
    part = builder.parts[piece.part]
    rows = part.shape[0]
    return rows, part.num_elements // rows


def _factors(builder: Builder, kind: Literal["left", "right"], piece: Slice, sizes: Sequence[int]) -> Buffer:
    """One side's factor of each piece, a whole part's matrix."""
    pieces = [Piece(whole.part, 0, size) for whole, size in zip(piece.pieces, sizes, strict=True)]
    return Buffer(builder.regions_of(kind, pieces), sum(sizes), piece.item_bytes)
