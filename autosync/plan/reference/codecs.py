"""The codecs of the reference: encode a region for the wire, and decode it."""

from __future__ import annotations

from typing import Any

import numpy as np

from autosync.plan.reference.workload import Array
from autosync.plan.wires import num_kept
from autosync.strategy.codecs import Cast, Codec, Int8, Sign, TopK


def encode(codec: Codec, values: Array) -> Any:
    """Return what is sent for the values of one region."""
    match codec:
        case Cast(dtype="float16"):
            return values.astype(np.float16).astype(np.float64)
        case Cast():
            return _bfloat16(values)
        case Int8():
            return _int8(values, codec.block)
        case TopK():
            kept = np.argsort(-np.abs(values), kind="stable")[: num_kept(codec, len(values))]
            return kept, values[kept].astype(np.float32)
        case Sign():
            return values >= 0, np.float32(np.mean(np.abs(values)))
    raise ValueError(f"{codec.kind} does not encode vectors")


def decode(codec: Codec, content: Any, num_elements: int) -> Array:
    """Return the values that the content of a wire stands for."""
    match codec:
        case Cast():
            return np.asarray(content, dtype=np.float64)
        case Int8():
            levels, scales = content
            return np.asarray(levels * np.repeat(scales, codec.block)[:num_elements], dtype=np.float64)
        case TopK():
            kept, values = content
            dense = np.zeros(num_elements)
            dense[kept] = values
            return dense
        case Sign():
            signs, scale = content
            return np.where(signs, np.float64(scale), -np.float64(scale))
    raise ValueError(f"{codec.kind} does not encode vectors")


def orthogonal(matrix: Array) -> Array:
    """Return orthonormal columns that span the columns of the matrix."""
    return np.asarray(np.linalg.qr(matrix)[0], dtype=np.float64)


def _bfloat16(values: Array) -> Array:
    bits = values.astype(np.float32).view(np.uint32)
    rounded = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) & np.uint32(0xFFFF0000)
    return rounded.view(np.float32).astype(np.float64)


def _int8(values: Array, block: int) -> tuple[Array, Array]:
    padded = np.zeros(-(-len(values) // block) * block)
    padded[: len(values)] = values
    scales = np.abs(padded.reshape(-1, block)).max(axis=1).astype(np.float32).astype(np.float64) / 127
    by_value = np.repeat(np.where(scales > 0, scales, 1), block)[: len(values)]
    return np.rint(values / by_value), scales
