"""Updates that the engine makes, by an optimizer of the user's class, on the pieces that a rank has of each message.

A *piece* is the share of a part that a rank updates. A piece that is a whole variable is updated in the user's
parameter, with the state that the user's optimizer keeps for it, so that their `state_dict` stays right. Any other
piece (a shard, a part, a slice) is updated in the rank's flat memory and has its own state, which starts as the same
piece of the user's state. This needs an elementwise optimizer, which the rules of strategies ensure: then updating the
pieces is the same as updating the whole. Rows are updated in the parameter itself, by a sparse gradient.

After an update, both the parameters and the memory's views of them have the values of the new step, as far as the rank
has them and transfers move them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from autosync.plan.shards import own_shard
from autosync.plan.types import Local, Plan, RegionKind, Transfer
from autosync.runtime.local.engine_optimizer import EngineOptimizer
from autosync.runtime.local.optimizer_facts import (
    UNSCALED,
    GroupOptions,
    StepScale,
)
from autosync.runtime.local.sparse_rows import is_no_gradient, refuse_rows, rows_of, sparse_tensor
from autosync.runtime.memory.kept_state import PieceState, Place, cut_entry
from autosync.runtime.memory.layout import lags
from autosync.runtime.memory.regions import Memory
from autosync.runtime.memory.unused_variables import absent_among

# Below this size, calls cost more than arithmetic, and torch updates many tensors at once faster, even on a CPU.
_SMALL_NUM_ELEMENTS = 8192
# For these, torch rounds differently when it updates many tensors at once: the learning rate is a float32 there.
_ROUNDS_OTHERWISE = (torch.optim.ASGD,)


@dataclass(slots=True, kw_only=True)
class _Piece:
    """Elements `start` to `stop` of a part, at position `at` in the operation's buffer. Our optimizer updates `value`.

    `is_alias`: the piece is a whole variable, and is updated in the user's parameter.
    """

    part: int
    name: str
    start: int
    stop: int
    at: int
    group: int
    is_alias: bool
    value: torch.nn.Parameter

    @property
    def num_elements(self) -> int:
        return self.stop - self.start


class EngineUpdate:
    """One update operation, on a rank that does all of it or a shard."""

    def __init__(self, plan: Plan, index: int, rank: int, *, memory: Memory, optimizer: EngineOptimizer) -> None:
        operation = plan.operations[index]
        assert isinstance(operation, Local), "updates are local"
        self._plan = plan
        self._operation = operation
        self._memory = memory
        self._source = optimizer
        self._kind: RegionKind = plan.regions[operation.outputs[0]].kind
        self._are_rows = plan.regions[operation.inputs[0]].kind == "rows"
        # Such an optimizer takes only sparse gradients, and leaves rows without a gradient alone.
        self._is_lazy = issubclass(optimizer.kind, torch.optim.SparseAdam)
        late = lags(plan)[operation.message]
        optimizer.options.num_kept = max(optimizer.options.num_kept, 2 * late + 2)
        self._is_moved = _is_moved(plan, operation, rank)
        self._window = _window_of(plan, operation, rank)
        # Elements that no optimizer holds are not updated, but moved with the rest.
        self._bystanders: list[tuple[int, int, int]] = []
        self._pieces = list(self._cut())
        self._flat = [piece for piece in self._pieces if not piece.is_alias]
        self._aliases = [piece for piece in self._pieces if piece.is_alias]
        self._optimizer, self._group_of = self._make_optimizer()
        self._states_from = -1
        self._users_entries: list[Any] = [None] * len(self._aliases)

    # The updated pieces.

    def _cut(self) -> Iterator[_Piece]:
        position = 0
        for part_index, first, size in joined_regions(self._plan, self._operation.outputs):
            start, stop = max(position, self._window.start), min(position + size, self._window.stop)
            part = self._plan.parts[part_index]
            group = self._source.group_of.get(part.variable.name)
            if start < stop and group is None:
                self._bystanders.append((part_index, first + start - position, first + stop - position))
            elif start < stop and group is not None:
                is_whole = part.name.whole and stop - start == part.num_elements
                yield _Piece(
                    part=part_index,
                    name=part.variable.name,
                    start=first + start - position,
                    stop=first + stop - position,
                    at=start,
                    group=group,
                    is_alias=is_whole and self._kind == "param",
                    value=torch.nn.Parameter(self._memory.parameter(part.variable.name).detach().new_empty(0)),
                )
            position += size

    def _make_optimizer(self) -> tuple[torch.optim.Optimizer | None, list[tuple[int, bool]]]:
        """Make our optimizer; for each of its groups, return the user's group and whether parameters are small."""
        if not self._pieces:
            return None, []
        members: dict[tuple[int, bool], list[torch.nn.Parameter]] = {}
        self._bind_values()
        for piece in self._pieces:
            # The script may have set attributes on the parameter for its optimizer to read.
            piece.value.__dict__ = self._memory.parameter(piece.name).__dict__
            key = (piece.group, piece.num_elements <= _SMALL_NUM_ELEMENTS)
            members.setdefault(key, []).append(piece.value)
        groups = [(self._source.groups[group], values) for (group, _), values in members.items()]
        return self._source.make(groups), list(members)

    def _bind_values(self) -> None:
        """Point our parameters to their values, which move when the script gives a parameter new memory."""
        for piece in self._aliases:
            original = self._memory.parameter(piece.name)
            if piece.value.data_ptr() != original.data_ptr() or piece.value.shape != original.shape:
                piece.value.data = original.data
        if self._are_rows:
            for piece in self._flat:
                piece.value.data = self._memory.held_part(self._kind, piece.part)
        elif self._flat:
            values = self._memory.view(self._operation.outputs)
            for piece in self._flat:
                value = values[piece.at : piece.at + piece.num_elements]
                # torch 2.13 on CPU adds a sparse gradient to the wrong place of a vector that is a part of another
                # tensor (the offset counts twice). A column does not have this problem.
                piece.value.data = value.view(-1, 1) if self._is_lazy else value

    # The update.

    @torch.no_grad()
    def run(self, iteration: int, scale: float) -> None:
        """Update with the options noted for the iteration, after multiplying the gradients by `scale`."""
        if self._optimizer is None:
            self._settle()
            return
        step = self._source.options.of(iteration)
        self._load()
        if step.scale.is_skipped:
            self._settle()
            return
        self._apply_options(step.groups)
        self._bind_values()
        self._bind_states()
        if self._are_rows:
            self._bind_rows(iteration)
            _step(self._optimizer)
        else:
            gradients = self._bind_gradients(iteration, scale)
            before = gradients._version  # noqa: SLF001 - torch counts changes there
            _step(self._optimizer)
            if gradients._version != before:  # noqa: SLF001 - the same
                self._source.changed_gradients = iteration
        for piece in self._pieces:
            piece.value.grad = None
        self._share_new_states()
        self._settle()

    def scale(self, iteration: int) -> StepScale:
        """Return how the script has scaled and clipped the iteration's gradients."""
        return UNSCALED if self._optimizer is None else self._source.options.of(iteration).scale

    def _load(self) -> None:
        """Copy the parameters into flat memory, because they may have changed (by a loaded checkpoint, say)."""
        if self._kind == "param" and not self._are_rows:
            for piece in self._flat:
                self._memory.load_range(piece.part, piece.start, piece.stop)

    def _apply_options(self, options: Sequence[GroupOptions]) -> None:
        assert self._optimizer is not None, "there is something to update"
        for ours, (group, is_small) in zip(self._optimizer.param_groups, self._group_of, strict=True):
            ours.update(options[group])
            if self._are_rows:
                refuse_rows(self._source.kind.__name__, ours)
                ours.update({key: False for key in ("foreach", "fused") if key in ours})
            elif (
                is_small
                and not issubclass(self._source.kind, _ROUNDS_OTHERWISE)
                and "foreach" in ours
                and ours["foreach"] is None
                and not _is_bound_to_one(ours)
            ):
                ours["foreach"] = True

    def _bind_gradients(self, iteration: int, scale: float) -> torch.Tensor:
        """Give our parameters the gradients of an iteration; return the tensor that these are parts of."""
        # By `data`, changes through other tensors with this memory are not counted in it.
        gradients = self._memory.view(self._operation.inputs, iteration).data
        places = [slice(piece.at, piece.at + piece.num_elements) for piece in self._pieces]
        absent = absent_among(gradients, places)
        if scale != 1.0:
            gradients[self._window].mul_(scale)
        for piece, place, is_absent in zip(self._pieces, places, absent, strict=True):
            # Like the user's optimizer, ours leaves alone variables without a gradient.
            gradient = None if is_absent else gradients[place].view(piece.value.shape)
            piece.value.grad = None if gradient is None else self._as_taken(gradient)
        return gradients

    def _as_taken(self, gradient: torch.Tensor) -> torch.Tensor:
        """Return a gradient in the form that the optimizer takes: dense, or sparse as torch would have made it."""
        if self._is_lazy and gradient.dim() == 2:
            return sparse_tensor(rows_of(gradient), gradient.shape)
        return gradient

    def _bind_rows(self, iteration: int) -> None:
        """Give our parameters the gradients of rows, which are alone in their message and are not clipped."""
        rows = self._memory.get(self._operation.inputs[0], iteration)
        for piece in self._pieces:
            piece.value.grad = None if is_no_gradient(rows) else sparse_tensor(rows, piece.value.shape)

    def _settle(self) -> None:
        """Copy updated values to the other place where they are read: the parameter, or the memory for transfers."""
        if self._kind != "param" or self._are_rows:
            return
        for piece in self._flat:
            self._memory.store_range(piece.part, piece.start, piece.stop)
        if self._is_moved:
            for piece in self._aliases:
                self._memory.load_range(piece.part, piece.start, piece.stop)
            for part, start, stop in self._bystanders:
                self._memory.load_range(part, start, stop)

    def sharing(self) -> Iterator[str]:
        """Yield the variable of each piece that is updated in the memory of the user's parameter."""
        for piece in self._pieces:
            memory = self._memory.parameter(piece.name).untyped_storage().data_ptr()
            if piece.value.untyped_storage().data_ptr() == memory:
                yield piece.name

    # States.

    @property
    def aliases(self) -> frozenset[str]:
        """The variables whose state the engine shares with the user's optimizer."""
        return frozenset(piece.name for piece in self._aliases)

    def piece_states(self) -> Iterator[PieceState]:
        """Yield the states that are kept here and not in the user's optimizer."""
        if self._kind == "param":
            yield from self._states_of(self._flat)

    def all_states(self) -> Iterator[PieceState]:
        """Yield the states of everything that is updated here, a server's own copies included. Call `bind` first."""
        yield from self._states_of(self._pieces)

    def _states_of(self, pieces: Sequence[_Piece]) -> Iterator[PieceState]:
        for piece in pieces:
            entry = None if self._optimizer is None else self._optimizer.state.get(piece.value)
            if entry:
                yield PieceState(piece.part, piece.start, piece.stop, piece.value.shape, entry)

    def bind(self) -> None:
        """Take over the state that the user has loaded or changed, at once and not only at the next update."""
        if self._optimizer is not None:
            self._bind_values()
            self._bind_states()

    def load_states(self, entries: Mapping[str, Mapping[str, Any]]) -> None:
        """Continue from states of whole variables by name, on a rank that has no optimizer of the user's."""
        if self._optimizer is not None:
            self._bind_values()
            for piece in self._pieces:
                self._load_state(piece, entries.get(piece.name, {}))

    def _load_state(self, piece: _Piece, entry: Mapping[str, Any]) -> None:
        """Set a piece's state from the state of its whole variable."""
        assert self._optimizer is not None, "there is something to update"
        part = self._plan.parts[piece.part]
        place = Place.of(part, piece.start, piece.stop)
        self._optimizer.state[piece.value] = cut_entry(entry, place, part.variable.shape, piece.value.shape)

    def _bind_states(self) -> None:
        """Continue from the user's states: share the entries of whole variables, and cut the others into pieces."""
        entries = self._source.entries
        if entries is None:
            return
        assert self._optimizer is not None, "there is something to update"
        number_of_states = entries.follow()
        for number, piece in enumerate(self._aliases):
            entry = entries.get(self._memory.parameter(piece.name))
            if entry is None:
                self._optimizer.state.pop(piece.value, None)
            elif entry is not self._users_entries[number]:
                self._optimizer.state[piece.value] = entry
            self._users_entries[number] = entry
        if number_of_states != self._states_from and not entries.is_kept:
            # This is the first time, or the user has loaded a state.
            self._states_from = number_of_states
            self._load_flat({piece.name for piece in self._flat})

    def reload(self, names: Collection[str]) -> None:
        """Continue from the state that the user's optimizer has of these variables."""
        if self._optimizer is not None:
            self._bind_values()
            self._bind_states()
            self._load_flat(names)

    def _load_flat(self, names: Collection[str]) -> None:
        entries = self._source.entries
        assert entries is not None, "asked for where the user's optimizer is"
        for piece in self._flat:
            if piece.name in names:
                self._load_state(piece, entries.get(self._memory.parameter(piece.name)) or {})

    def _share_new_states(self) -> None:
        """Give the user's optimizer the states that were made for whole variables, as the same objects."""
        entries = self._source.entries
        if entries is None:
            return
        assert self._optimizer is not None, "there is something to update"
        for number, piece in enumerate(self._aliases):
            if self._users_entries[number] is None and piece.value in self._optimizer.state:
                entry = self._optimizer.state[piece.value]
                self._users_entries[number] = entry
                entries.put(self._memory.parameter(piece.name), entry)


def _step(optimizer: torch.optim.Optimizer) -> None:
    """Make a step without running hooks that the script has put on all optimizers of the process."""
    step: Any = type(optimizer).step
    getattr(step, "__wrapped__", step)(optimizer)


def _is_bound_to_one(options: Mapping[str, Any]) -> bool:
    return bool(options.get("fused") or options.get("differentiable") or isinstance(options.get("lr"), torch.Tensor))


def joined_regions(plan: Plan, regions: Sequence[int]) -> list[tuple[int, int, int]]:
    """Return regions as (part, start, size), and join slices of a variable that directly follow one another."""
    joined: list[tuple[int, int, int]] = []
    for index in regions:
        region = plan.regions[index]
        if joined:
            part, start, size = joined[-1]
            if (part, start + size) == (region.part, region.start):
                joined[-1] = (part, start, size + region.num_elements)
                continue
        joined.append((region.part, region.start, region.num_elements))
    return joined


def _window_of(plan: Plan, operation: Local, rank: int) -> slice:
    """Return the elements of the operation's buffer that the rank updates: all of them, or its shard."""
    num_elements = sum(plan.regions[index].num_elements for index in operation.outputs)
    return own_shard(operation, rank, num_elements)


def _is_moved(plan: Plan, operation: Local, rank: int) -> bool:
    """Whether one of this rank's transfers moves what the operation has updated."""
    message = operation.message
    outputs = set(operation.outputs)
    return any(
        other.message == message
        and isinstance(other, Transfer)
        and not outputs.isdisjoint(other.regions)
        and any(rank in group for group in other.groups)
        for other in plan.operations
    )
