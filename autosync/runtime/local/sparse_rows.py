"""Rows of gradients: taken out of a gradient, packed for the wire, merged, and turned into a gradient again.

For a `rows` region, a rank first keeps (`Memory.put`) its own `Rows`, after a gather a list of the rows of all members,
and one `Rows` again when they are merged. Row indices are positions within the part, ascending and without duplicates.

A gradient that torch made sparse is returned to the user as a coalesced sparse one. This holds even where it travelled
as a dense one, because its optimizer may take nothing else; its touched rows are then those that are not zero.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch

from autosync.errors import OperationError
from autosync.plan.types import Plan
from autosync.runtime.local.engine_updates import engine_updates
from autosync.runtime.local.optimizer_facts import moves_touched_rows_alone
from autosync.runtime.memory.byte_views import as_bytes
from autosync.runtime.memory.regions import Memory
from autosync.runtime.memory.unused_variables import is_absent
from autosync.specs.model import Variable
from autosync.strategy.parts import Part

_INDEX_BYTES = 8

# Rows are searched in blocks that fit a core's cache, which takes half the time of searching all at once.
_NUM_SEARCHED_ELEMENTS = 1 << 18


class Rows(NamedTuple):
    """Rows of a matrix: their positions in ascending order, and their values."""

    indices: torch.Tensor
    values: torch.Tensor


_NO_ROW = -1
"""The position that marks a missing gradient: see `unused_variables`. No row has this number."""


def no_gradient_of(part: Part, *, like: torch.Tensor) -> Rows:
    """Return the contribution of a rank that has not used the part.

    A rank that has used it without touching any rows contributes no rows instead.
    """
    indices = torch.full((1,), _NO_ROW, dtype=torch.int64, device=like.device)
    return Rows(indices, like.new_zeros((1, part.shape[1])))


def is_no_gradient(rows: Rows) -> bool:
    """Whether these rows mark a missing gradient."""
    return len(rows.indices) == 1 and int(rows.indices) == _NO_ROW


# Packing for the wire.


def pack_rows(rows: Rows) -> torch.Tensor:
    """Pack rows into one buffer of bytes: first all positions, then all values."""
    return torch.cat([as_bytes(rows.indices), as_bytes(rows.values)])


def unpack_rows(buffer: torch.Tensor, part: Part, dtype: torch.dtype) -> Rows:
    """Unpack rows of a part: the inverse of `pack_rows`. The result may share the buffer's memory."""
    num_rows = len(buffer) // part.row_bytes
    if len(buffer) != num_rows * part.row_bytes:
        raise OperationError(f"{len(buffer)} bytes of rows of {part.name}, which are {part.row_bytes} bytes each")
    if buffer.data_ptr() % _INDEX_BYTES or buffer.storage_offset() % _INDEX_BYTES:
        buffer = buffer.clone()
    split = num_rows * _INDEX_BYTES
    values = buffer[split:].view(dtype).view(num_rows, part.shape[1])
    return Rows(buffer[:split].view(torch.int64), values)


# Arithmetic.


def merge_rows(contributions: Sequence[Rows], num_workers: int) -> Rows:
    """Return the average of each row over all workers. A row that a worker does not have counts as zero."""
    contributions = [one for one in contributions if not is_no_gradient(one)] or contributions[:1]
    if len(contributions) == 1:
        (only,) = contributions
        return Rows(only.indices, only.values / num_workers)
    indices = torch.cat([one.indices for one in contributions])
    unique, where = torch.unique(indices, sorted=True, return_inverse=True)
    dtype = contributions[0].values.dtype
    # A sum of float16 may be too large for the type, although the mean is not.
    wide = torch.float32 if dtype == torch.float16 else dtype
    merged = contributions[0].values.new_zeros((len(unique), contributions[0].values.shape[1]), dtype=wide)
    # The contributions are added one after another: a GPU adds duplicates of a row within one call in any order, and
    # each rank would get another sum.
    for one, rows in zip(contributions, torch.split(where, [len(one.indices) for one in contributions]), strict=True):
        merged.index_add_(0, rows, one.values.to(wide))
    return Rows(unique, merged.div_(num_workers).to(dtype))


def rows_of(gradient: torch.Tensor) -> Rows:
    """Return the touched rows of a gradient: all rows of a sparse one, the rows of a dense one that are not zero."""
    if gradient.is_sparse:
        gradient = gradient.coalesce()
        return Rows(gradient.indices()[0], gradient.values())
    block = max(1, _NUM_SEARCHED_ELEMENTS // gradient.shape[1])
    largest = torch.cat([rows.abs().amax(1) for rows in torch.split(gradient, block)])
    indices = largest.nonzero().view(-1)
    return Rows(indices, gradient[indices])


def cut_rows(rows: Rows, part: Part) -> Rows:
    """Return a part's share of a variable's rows, with positions within the part."""
    if part.name.whole:
        return rows
    if part.axis == 1:
        return Rows(rows.indices, rows.values[:, part.begin : part.end])
    limits = rows.indices.new_tensor([part.begin, part.end])
    first, last = torch.searchsorted(rows.indices, limits).tolist()
    return Rows(rows.indices[first:last] - part.begin, rows.values[first:last])


def join_rows(pieces: Sequence[tuple[Part, Rows]]) -> Rows:
    """Join the rows of all parts of a variable, in the parts' order: the inverse of `cut_rows`."""
    (first, rows), *others = pieces
    if not others:
        return rows
    if first.axis == 0:
        indices = torch.cat([one.indices + part.begin for part, one in pieces])
        return Rows(indices, torch.cat([one.values for _, one in pieces]))
    if all(torch.equal(rows.indices, one.indices) for _, one in others):
        return Rows(rows.indices, torch.cat([one.values for _, one in pieces], dim=1))
    raise OperationError(f"parts of {first.variable.name} along axis 1 have different touched rows")


def sparse_tensor(rows: Rows, shape: Sequence[int]) -> torch.Tensor:
    """Return rows as a coalesced sparse tensor, of the kind that `nn.Embedding(sparse=True)` makes."""
    return torch.sparse_coo_tensor(
        rows.indices[None], rows.values, tuple(shape), check_invariants=False, is_coalesced=True
    )


# Optimizers.


def refuse_rows(class_name: str, options: Mapping[str, Any]) -> None:
    """Refuse an optimizer that also moves rows without gradients, so that rows cannot be updated alone."""
    if moves_touched_rows_alone(class_name):
        return
    match class_name:
        case "SparseAdam":
            return
        case "SGD":
            moving = [key for key in ("momentum", "weight_decay") if options.get(key)]
        case "Adagrad":
            moving = [key for key in ("weight_decay",) if options.get(key)]
        case _:
            moving = ["whatever it keeps of earlier steps"]
    if moving:
        raise OperationError(
            f"{class_name} with {' and '.join(moving)} moves rows that no batch touched, so rows cannot be updated "
            "alone (SparseAdam, Adagrad without weight decay and SGD without momentum and weight decay can)"
        )


# One rank's gradients.


class Sparse:
    """The gradients of one rank that are sparse or travel as rows.

    `variables` are their names. For these, call `take` instead of `Memory.take_gradient`, and `give_back` instead of
    `Memory.return_gradients` if the user's optimizer updates them.
    """

    def __init__(self, plan: Plan, memory: Memory) -> None:
        self._plan = plan
        self._memory = memory
        rows = {region.part: index for index, region in enumerate(plan.regions) if region.kind == "rows"}
        self._parts: dict[str, list[tuple[Part, int | None]]] = {}
        for index, part in enumerate(plan.parts):
            self._parts.setdefault(part.variable.name, []).append((part, rows.get(index)))
        self._variables: dict[str, Variable] = {
            part.variable.name: part.variable
            for index, part in enumerate(plan.parts)
            if part.variable.sparse or index in rows
        }
        # Gradients of variables that the engine updates are not returned to the user.
        self._returned = frozenset(self._variables) - engine_updates(plan).variables
        self._dense: dict[str, torch.Tensor] = {}

    @property
    def variables(self) -> frozenset[str]:
        return frozenset(self._variables)

    def take(self, name: str, gradient: torch.Tensor, iteration: int) -> None:
        """Store a variable's complete gradient where its transfers read it."""
        parts = self._parts[name]
        regions = [region for _, region in parts]
        if any(region is not None for region in regions):
            rows = rows_of(gradient)
            for part, region in parts:
                if region is not None:
                    self._memory.put(region, iteration, cut_rows(rows, part))
        if all(region is not None for region in regions):
            if not gradient.is_sparse and name in self._returned:
                self._dense[name] = gradient
        else:
            dense = gradient.to_dense() if gradient.is_sparse else gradient
            taken = self._memory.take_gradient(name, dense, iteration)
            if name in self._returned:
                self._dense[name] = taken

    def take_nothing(self, name: str, iteration: int) -> None:
        """Store this rank's contribution for a variable of which it has no gradient."""
        parts, parameter = self._parts[name], self._memory.parameter(name).detach()
        for part, region in parts:
            if region is not None:
                self._memory.put(region, iteration, no_gradient_of(part, like=parameter))
        if any(region is None for _, region in parts):
            taken = self._memory.take_nothing(name, iteration)
            if name in self._returned:
                self._dense[name] = taken

    def give_back(self, name: str, iteration: int) -> torch.Tensor | None:
        """Return the finished gradient for the user's optimizer: sparse if torch made it so, else the same tensor.

        Returns None if no rank has a gradient.
        """
        variable, parts = self._variables[name], self._parts[name]
        dense = self._dense.pop(name, None)
        if dense is None:
            found = [(part, self._memory.get(region, iteration)) for part, region in parts if region is not None]
            if is_no_gradient(found[0][1]):
                return None
            rows = sparse_tensor(join_rows(found), variable.shape)
            return rows if variable.sparse else rows.to_dense()
        if any(region is None for _, region in parts):
            self._memory.return_gradients({name: dense})
            if is_absent(dense.view(-1)):
                return None
        for part, region in parts:
            if region is not None:
                # The merged rows include those that this rank touched; elsewhere the gradient is zero and stays zero.
                rows = self._memory.get(region, iteration)
                if is_no_gradient(rows):
                    return None
                indices, values = rows
                target = dense if part.name.whole else dense.narrow(part.axis, part.begin, part.end - part.begin)
                target.index_copy_(0, indices, values)
        return sparse_tensor(rows_of(dense), variable.shape) if variable.sparse else dense
