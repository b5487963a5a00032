"""Codecs: turn gradients into bytes for the wire and back, with torch's own kernels.

A region's bytes are as many as `wires.encoded_bytes` says, and regions follow one another. Numbers of four bytes come
before those of one byte: int8 sends the largest magnitude of each block (the scale is a 127th of it), then one byte for
each number; top-k sends positions, then values; sign sends the mean magnitude, then one bit for each number. Receivers
sum the decoded values in the order of the group's members, so that all get the same sum.

A NaN or an infinity is never encoded: it would come out as an ordinary number, or spoil what error feedback keeps. Each
codec looks for it where it must show: in the half-sized numbers, in the largest numbers of the blocks, in the mean;
top-k looks at all numbers.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator

import torch

from autosync.errors import OperationError
from autosync.plan.wires import POSITION_BYTES, SCALE_BYTES, num_kept
from autosync.runtime.memory.byte_views import as_bytes
from autosync.strategy.codecs import Codec, Int8, Sign, TopK

_LEVELS = 127
_LOADING = threading.Lock()

# One of this many numbers is sampled. It is odd, so that the samples fall on different columns of rows of usual
# lengths.
_SAMPLED = 61

# The eight signs that each byte stands for; the lowest bit holds the first.
_SIGNS = ((torch.arange(256)[:, None] >> torch.arange(8)) & 1) * 2.0 - 1
_BITS = 2.0 ** torch.arange(8)


def wide(dtype: torch.dtype) -> torch.dtype:
    """Return the type that codecs compute in: at least float32, because less would lose what error feedback keeps."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def encode(codec: Codec, values: torch.Tensor, out: torch.Tensor, *, name: str) -> None:
    """Encode a region's values into bytes. `name` is the variable's, for the error if a value is not finite."""
    match codec:
        case Int8():
            _encode_int8(codec, values, out, name)
        case TopK():
            magnitudes = refuse_not_finite(values.abs(), codec, name)
            kept = _largest(magnitudes, num_kept(codec, len(values)))
            _write(out, kept.int(), refuse_not_finite(values[kept].float(), codec, name))
        case Sign():
            scale = refuse_not_finite(values.abs().mean().float().view(1), codec, name)
            bits = values.new_zeros(math.ceil(len(values) / 8) * 8, dtype=torch.float32)
            bits[: len(values)] = values >= 0
            # The sums are of different powers of two below 256, which float32 holds exactly.
            _write(out, scale, torch.mv(bits.view(-1, 8), _BITS.to(bits.device)).to(torch.uint8))
        case _:
            raise ValueError(f"{codec.kind} does not make bytes")


def add_decoded(codec: Codec, content: torch.Tensor, total: torch.Tensor, *, sign: int = 1) -> None:
    """Add the decoded values of a region's bytes to `total`; with `sign` -1, subtract them."""
    match codec:
        case Int8():
            _add_int8(codec, content, total, sign)
        case TopK():
            split = POSITION_BYTES * num_kept(codec, len(total))
            values = _read(content[split:], torch.float32)
            total.index_add_(0, sent_positions(codec, content, len(total)), values.to(total.dtype), alpha=sign)
        case Sign():
            scale = float(_read(content[:SCALE_BYTES], torch.float32))
            signs = _SIGNS.to(total.device).index_select(0, content[SCALE_BYTES:].int()).view(-1)[: len(total)]
            total.add_(signs, alpha=sign * scale)
        case _:
            raise ValueError(f"{codec.kind} does not make bytes")


def sent_positions(codec: TopK, content: torch.Tensor, num_elements: int) -> torch.Tensor:
    """Return the positions, within a region, of the numbers that top-k has sent of it."""
    return _read(content[: POSITION_BYTES * num_kept(codec, num_elements)], torch.int32)


def load_linear_algebra(device: torch.device) -> None:
    """Make torch load its linear algebra for a GPU: threads that call it for the first time together would fail."""
    if device.type == "cuda":
        with _LOADING:
            orthogonal(torch.eye(1, device=device))


def orthogonal(matrix: torch.Tensor) -> torch.Tensor:
    """Return orthonormal columns that span the columns of the matrix."""
    basis: torch.Tensor = torch.linalg.qr(matrix)[0]
    return basis


def refuse_not_finite(found: torch.Tensor, codec: Codec, name: str) -> torch.Tensor:
    """Return the numbers unchanged; raise an error that names the variable if one of them is not finite."""
    least, most = torch.aminmax(found)
    if not (torch.isfinite(least) and torch.isfinite(most)):
        raise OperationError(
            f"the gradient of {name} has a NaN or an infinity, or is too large for what {codec.kind} sends: it cannot "
            "be encoded (clip it, lower the learning rate, or train by a strategy without a codec)"
        )
    return found


def _largest(magnitudes: torch.Tensor, count: int) -> torch.Tensor:
    """Return the positions of the largest magnitudes, in any order.

    torch takes long to select a small share of many numbers. So numbers below a limit that a sample suggests are left
    out first; if too few remain, the sample was misleading and all numbers are used.
    """
    sample = magnitudes[::_SAMPLED]
    share = math.ceil(1.25 * count * len(sample) / len(magnitudes)) + _SAMPLED
    if 4 * share < len(sample):
        least = torch.topk(sample, share, sorted=False).values.min()
        found = (magnitudes >= least).nonzero().view(-1)
        if len(found) >= count:
            return found[torch.topk(magnitudes[found], count, sorted=False).indices]
    return torch.topk(magnitudes, count, sorted=False).indices


def _encode_int8(codec: Int8, values: torch.Tensor, out: torch.Tensor, name: str) -> None:
    largest = torch.cat([block.abs().amax(1) for block in _blocks(values, codec.block)]).float()
    refuse_not_finite(largest, codec, name)
    scales = _scales(largest, values.dtype)
    divisors = torch.where(scales > 0, scales, 1.0)
    _write(out, largest)
    levels, position = out[len(largest) * SCALE_BYTES :].view(torch.int8), 0
    for block, into in zip(_blocks(values, codec.block), _blocks(levels, codec.block), strict=True):
        by_row = divisors[position : position + len(block), None]
        # For the very smallest numbers the scale is rounded coarsely, and a level could exceed what a byte holds.
        into.copy_((block / by_row).round_().clamp_(-_LEVELS, _LEVELS))
        position += len(block)


def _add_int8(codec: Int8, content: torch.Tensor, total: torch.Tensor, sign: int) -> None:
    split = SCALE_BYTES * math.ceil(len(total) / codec.block)
    scales = _scales(_read(content[:split], torch.float32), total.dtype)
    levels, position = content[split:].view(torch.int8), 0
    for block, into in zip(_blocks(levels, codec.block), _blocks(total, codec.block), strict=True):
        into.addcmul_(block.to(total.dtype), scales[position : position + len(block), None], value=sign)
        position += len(block)


def _scales(largest: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    return largest.to(dtype) / _LEVELS


def _blocks(numbers: torch.Tensor, block: int) -> Iterator[torch.Tensor]:
    """Yield all whole blocks, one in each row; then the remaining numbers, if there are any."""
    whole = len(numbers) // block * block
    if whole:
        yield numbers[:whole].view(-1, block)
    if whole < len(numbers):
        yield numbers[whole:].view(1, -1)


def _write(out: torch.Tensor, *parts: torch.Tensor) -> None:
    """Write numbers of several types one after another into a buffer of bytes, without alignment."""
    position = 0
    for part in parts:
        written = as_bytes(part)
        out[position : position + len(written)] = written
        position += len(written)


def _read(content: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """View bytes as numbers: in place if they are aligned, else in a copy."""
    if content.storage_offset() % dtype.itemsize or content.data_ptr() % dtype.itemsize:
        content = content.clone()
    return content.view(dtype)
