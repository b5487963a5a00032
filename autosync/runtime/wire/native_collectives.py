"""Collectives of the backends' own, on groups that `Links` has made for them.

gloo has all-reduce, reduce and broadcast in the form that plans need. But its all-gather and its reduce-scatter need
chunks of equal size. If a plan asks for these two, `native` means our own ring, as in `plan.expansion`. NCCL has no
tagged messages from which rings could be made, so all transfers are its own collectives: shorter chunks get one more
element at the end, and contents are filled up to the length of the longest.

Waiting for a collective of NCCL makes the current stream wait, not the thread.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from autosync.errors import OperationError
from autosync.plan.expansion import chunk_bounds
from autosync.plan.types import Collective, Plan, Transfer
from autosync.runtime.wire.links import Links, NativeKey, said

NATIVE: frozenset[Collective] = frozenset({"all_reduce", "reduce", "broadcast"})
"""Collectives that gloo carries out itself."""

ResultT = TypeVar("ResultT")

# Contents begin at multiples of this, so that numbers of any type can be read in place.
_ALIGNMENT_BYTES = 16


def is_native(transfer: Transfer) -> bool:
    """Whether gloo carries out a transfer itself, and so needs a group of its own for its members and lane."""
    return transfer.algorithm == "native" and transfer.collective in NATIVE


def native_groups(plan: Plan) -> list[NativeKey]:
    """Return the groups of a plan's native collectives, in an order that is the same on all ranks.

    On NCCL every transfer is native, and a set of members has one group for all lanes.
    """
    keys: dict[NativeKey, Any] = {}
    for operation in plan.operations:
        if isinstance(operation, Transfer) and (plan.backend == "nccl" or is_native(operation)):
            lane = 0 if plan.backend == "nccl" else operation.lane
            keys.update(dict.fromkeys((group, lane) for group in operation.groups if len(group) > 1))
    return list(keys)


def run_native(collective: Collective, group: Any, buffer: torch.Tensor) -> None:
    """Take part in a collective of a `Links.native` group with a flat, contiguous buffer; the first member is the root.

    Returns when the buffer holds the result. An error does not say which member failed: see `naming`.
    """
    if buffer.numel():
        _told(collective, lambda: _OF_BUFFERS[collective](group, buffer))


def run_native_content(
    collective: Collective, group: Any, content: torch.Tensor, device: torch.device
) -> list[torch.Tensor]:
    """Take part in a collective of flat bytes of any lengths; return what `Exchange` returns for it, on `device`."""
    return _told(collective, lambda: _OF_CONTENTS[collective](group, content.to(device)))


@contextlib.contextmanager
def naming(links: Links, members: Sequence[int]) -> Iterator[None]:
    """Name all members of a collective in its error: of the one that failed, gloo names an address at most."""
    try:
        yield
    except OperationError as error:
        raise OperationError(f"{error} (among {links.names(members)})") from error
    links.heard_at = time.perf_counter()


def _told(collective: Collective, run: Callable[[], ResultT]) -> ResultT:
    try:
        return run()
    except RuntimeError as error:
        raise OperationError(f"native {collective}: {said(error)}") from error


# Collectives of buffers.


def _all_reduce(group: Any, buffer: torch.Tensor) -> None:
    group.allreduce(buffer).wait()


def _reduce(group: Any, buffer: torch.Tensor) -> None:
    group.reduce(buffer, 0).wait()


def _broadcast(group: Any, buffer: torch.Tensor) -> None:
    group.broadcast(buffer, 0).wait()


def _reduce_scatter(group: Any, buffer: torch.Tensor) -> None:
    chunks = _evened(buffer, group.size())
    total = chunks.new_empty(len(chunks) // group.size())
    group._reduce_scatter_base(total, chunks, dist.ReduceScatterOptions()).wait()  # noqa: SLF001 - groups have it by no other name
    mine = _chunk(buffer, group)
    mine.copy_(total[: len(mine)])


def _all_gather(group: Any, buffer: torch.Tensor) -> None:
    mine = _chunk(buffer, group)
    longest = -(-len(buffer) // group.size())
    contribution = buffer.new_zeros(longest)
    contribution[: len(mine)] = mine
    chunks = buffer.new_empty(longest * group.size())
    group._allgather_base(chunks, contribution).wait()  # noqa: SLF001 - the same
    _undo_evened(chunks, buffer, group.size())


def _chunk(buffer: torch.Tensor, group: Any) -> torch.Tensor:
    bounds = chunk_bounds(len(buffer), group.size())
    return buffer[bounds[group.rank()] : bounds[group.rank() + 1]]


def _evened(buffer: torch.Tensor, num_chunks: int) -> torch.Tensor:
    """Return the chunks of `chunk_bounds` padded to equal length, or the buffer itself if they are equal already."""
    size, num_longer = divmod(len(buffer), num_chunks)
    if not num_longer:
        return buffer
    rows = buffer.new_zeros(num_chunks, size + 1)
    for theirs, ours in zip(_by_length(rows, num_longer), _split(buffer, num_chunks), strict=True):
        theirs.copy_(ours)
    return rows.view(-1)


def _undo_evened(chunks: torch.Tensor, buffer: torch.Tensor, num_chunks: int) -> None:
    num_longer = len(buffer) % num_chunks
    rows = chunks.view(num_chunks, -1)
    for theirs, ours in zip(_by_length(rows, num_longer), _split(buffer, num_chunks), strict=True):
        ours.copy_(theirs)


def _by_length(rows: torch.Tensor, num_longer: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the used elements of the longer chunks, and those of the other chunks."""
    return rows[:num_longer], rows[num_longer:, : rows.shape[1] - (1 if num_longer else 0)]


def _split(buffer: torch.Tensor, num_chunks: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the longer chunks of a buffer, which come first, and the other chunks."""
    size, num_longer = divmod(len(buffer), num_chunks)
    longest = size + 1 if num_longer else size
    split = num_longer * longest
    return buffer[:split].view(num_longer, longest), buffer[split:].view(num_chunks - num_longer, size)


_OF_BUFFERS: Mapping[Collective, Callable[[Any, torch.Tensor], None]] = {
    "all_reduce": _all_reduce,
    "reduce": _reduce,
    "broadcast": _broadcast,
    "reduce_scatter": _reduce_scatter,
    "all_gather": _all_gather,
}


# Collectives of contents, which first exchange their numbers of bytes.


def _all_gather_v(group: Any, content: torch.Tensor) -> list[torch.Tensor]:
    sizes = _sizes(group, content)
    contribution = _lengthened(content, max(sizes))
    gathered = contribution.new_empty(len(contribution) * group.size())
    if len(gathered):
        group._allgather_base(gathered, contribution).wait()  # noqa: SLF001 - groups have it by no other name
    return [chunk[:size] for chunk, size in zip(gathered.view(group.size(), -1), sizes, strict=True)]


def _gather_v(group: Any, content: torch.Tensor) -> list[torch.Tensor]:
    sizes = _sizes(group, content)
    contribution = _lengthened(content, max(sizes))
    found = [torch.empty_like(contribution) for _ in sizes] if group.rank() == 0 else []
    if len(contribution):
        options = dist.GatherOptions()
        options.rootRank = 0
        group.gather([found] if found else [], [contribution], options).wait()
    return [chunk[:size] for chunk, size in zip(found, sizes, strict=True)] if found else []


def _broadcast_v(group: Any, content: torch.Tensor) -> list[torch.Tensor]:
    size = torch.tensor([len(content)], device=content.device)
    group.broadcast(size, 0).wait()
    found = content if group.rank() == 0 else content.new_empty(int(size))
    if len(found):
        group.broadcast(found, 0).wait()
    return [found, *[content.new_empty(0)] * (group.size() - 1)]


def _sizes(group: Any, content: torch.Tensor) -> list[int]:
    mine = torch.tensor([len(content)], device=content.device)
    sizes = mine.new_empty(group.size())
    group._allgather_base(sizes, mine).wait()  # noqa: SLF001 - the same
    found: list[int] = sizes.tolist()
    return found


def _lengthened(content: torch.Tensor, num_bytes: int) -> torch.Tensor:
    whole = content.new_zeros(-(-num_bytes // _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES)
    whole[: len(content)] = content
    return whole


_OF_CONTENTS: Mapping[Collective, Callable[[Any, torch.Tensor], list[torch.Tensor]]] = {
    "all_gather_v": _all_gather_v,
    "gather_v": _gather_v,
    "broadcast": _broadcast_v,
}
