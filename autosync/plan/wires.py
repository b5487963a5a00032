"""Wires: what of a slice travels, plain or encoded, and how a finished gradient is made of what arrived."""

from __future__ import annotations

import math
from typing import NamedTuple, TypedDict

from autosync.plan.builder import Builder, Piece, Slice
from autosync.plan.types import Algorithm, Collective, Edge, Groups
from autosync.specs.model import ITEM_BYTES
from autosync.strategy.representation import Cast, Codec, Int8, PowerSGD, Sign, TopK

POSITION_BYTES = 4
SCALE_BYTES = 4
VALUE_BYTES = 4


class Size(TypedDict):
    """How much travels."""

    num_elements: int
    item_bytes: int


class Wire(NamedTuple):
    """Regions that travel as one buffer, the gradients that they are or were encoded from, and what they wait for."""

    regions: tuple[int, ...]
    grads: tuple[int, ...]
    after: tuple[Edge, ...]
    num_elements: int
    item_bytes: int

    def size(self) -> Size:
        return Size(num_elements=self.num_elements, item_bytes=self.item_bytes)


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


def dense_wire(builder: Builder, index: int, codec: Codec | None, piece: Slice) -> Wire:
    """The gradient itself, or its cast to numbers of half the size."""
    after = builder.grads_ready(piece.pieces)
    grads = builder.regions_of("grad", piece.pieces)
    if codec is None:
        return Wire(grads, grads, after, piece.num_elements, builder.item_bytes(piece))
    assert isinstance(codec, Cast), "other codecs cannot be summed on the way"
    encoded = builder.regions_of("encoded", piece.pieces, codec.dtype)
    edge = _encode(builder, index, codec, grads, encoded, after, piece)
    return Wire(encoded, grads, (edge,), piece.num_elements, ITEM_BYTES[codec.dtype])


def gather_encoded(
    builder: Builder, index: int, codec: Codec, piece: Slice, groups: Groups, algorithm: Algorithm
) -> tuple[Wire, Edge]:
    """Encode everywhere and gather all contributions: at the root with `star`, else everywhere."""
    grads = builder.regions_of("grad", piece.pieces)
    encoded = builder.regions_of("encoded", piece.pieces, "uint8")
    edge = _encode(builder, index, codec, grads, encoded, builder.grads_ready(piece.pieces), piece)
    num_bytes = sum(encoded_bytes(codec, stop - start) for _, start, stop in piece.pieces)
    wire = Wire(encoded, grads, (edge,), num_bytes, 1)
    to_root = algorithm == "star"
    collective: Collective = "gather_v" if to_root else "all_gather_v"
    stage = 1 if to_root else 0
    gathered = builder.transfer(index, stage, collective, algorithm, groups, encoded, wire.after, **wire.size())
    return wire, gathered


def decoded(
    builder: Builder,
    index: int,
    codec: Codec | None,
    wire: Wire,
    groups: Groups,
    after: tuple[Edge, ...],
    piece: Slice,
    *,
    sharded: bool = False,
) -> Edge:
    """The averaged gradient out of what arrived on those ranks."""
    if codec is None:
        return builder.local(
            index, "average", groups, wire.grads, wire.grads, after, num_elements=piece.num_elements, sharded=sharded
        )
    num_contributions = 1 if isinstance(codec, Cast) else len(builder.workers[0])
    return builder.local(
        index,
        "decode",
        groups,
        wire.regions,
        wire.grads,
        after,
        num_elements=piece.num_elements * num_contributions,
        cost=f"decode:{codec.kind}",
        sharded=sharded,
        settings=codec,
    )


def power_sgd(
    builder: Builder, index: int, codec: PowerSGD, piece: Slice, algorithm: Algorithm
) -> tuple[tuple[Edge, ...], tuple[int, ...]]:
    """The left factor (gradient times the last right one), summed; the right one, summed; their product.

    The right factor is the gradient's transpose times the left one made orthogonal.
    """
    grads = builder.regions_of("grad", piece.pieces)
    sides = [_sides(builder, p) for p in piece.pieces]
    left = tuple(
        _factor(builder, "left", p, rows * codec.rank) for p, (rows, _) in zip(piece.pieces, sides, strict=True)
    )
    right = tuple(
        _factor(builder, "right", p, columns * codec.rank) for p, (_, columns) in zip(piece.pieces, sides, strict=True)
    )
    item_bytes = builder.item_bytes(piece)
    edge = _encode(builder, index, codec, grads, left, builder.grads_ready(piece.pieces), piece)
    num_left = sum(rows for rows, _ in sides) * codec.rank
    edge = builder.transfer(
        index, 0, "all_reduce", algorithm, builder.workers, left, (edge,), num_elements=num_left, item_bytes=item_bytes
    )
    edge = builder.local(
        index,
        "project",
        builder.workers,
        (*grads, *left),
        (*left, *right),
        (edge,),
        num_elements=piece.num_elements * codec.rank,
        cost="project:power_sgd",
        settings=codec,
    )
    num_right = sum(columns for _, columns in sides) * codec.rank
    edge = builder.transfer(
        index,
        1,
        "all_reduce",
        algorithm,
        builder.workers,
        right,
        (edge,),
        num_elements=num_right,
        item_bytes=item_bytes,
    )
    edge = builder.local(
        index,
        "decode",
        builder.workers,
        (*left, *right),
        grads,
        (edge,),
        num_elements=piece.num_elements * codec.rank,
        cost="decode:power_sgd",
        settings=codec,
    )
    return (edge,), grads


def _encode(
    builder: Builder,
    index: int,
    codec: Codec,
    grads: tuple[int, ...],
    outputs: tuple[int, ...],
    after: tuple[Edge, ...],
    piece: Slice,
) -> Edge:
    work = piece.num_elements * (codec.rank if isinstance(codec, PowerSGD) else 1)
    # What error feedback holds back goes from step to step. Elsewhere the parameter's way home keeps steps apart.
    is_stale = getattr(builder.strategy.messages[index].synchroniser, "staleness", 0) > 0
    before = (Edge("operation", len(builder.operations), 1),) if codec.error_feedback and is_stale else ()
    return builder.local(
        index,
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


def _factor(builder: Builder, kind: str, piece: Piece, num_elements: int) -> int:
    dtype = builder.parts[piece.part].variable.dtype
    return builder.region("left" if kind == "left" else "right", Piece(piece.part, 0, num_elements), dtype)
