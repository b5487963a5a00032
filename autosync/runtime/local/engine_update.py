"""Updates that the engine makes: by an optimizer of the user's class, on what a rank has of each message.

What a rank has of a part is a *piece*. A piece that is a whole variable is updated where the user's parameter is,
with the state that the user's optimizer keeps for it, so that their `state_dict` stays right. Another piece (a shard, a
part, a slice) is updated in the rank's flat memory and has a state of its own, which starts as the piece of the user's.
Elementwise optimizers only, which the rules of strategies see to: so the piece's update is the piece of the update.
Rows are updated in the parameter itself, by a sparse gradient.

After an update both the parameters and the memory's views of them are those of the new step, as far as the rank has
them and transfers move them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from autosync.plan.expansion import chunk_bounds
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

# Below this size calls cost more than arithmetic, and torch's updates of many tensors at once are faster on a CPU too.
_SMALL_NUM_ELEMENTS = 8192
# Of these torch's updates of many tensors round otherwise than those of one: a rate is a float32 there.
_ROUNDS_OTHERWISE = (torch.optim.ASGD,)


@dataclass(slots=True, kw_only=True)
class _Piece:
    """Elements `start` to `stop` of a part, `at` in the operation's buffer; `value` is what our optimizer updates.

    `is_alias`: a whole variable, updated where the user's parameter is.
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
    """One update operation on a rank that has all of it, or a shard."""

    def __init__(self, plan: Plan, index: int, rank: int, *, memory: Memory, optimizer: EngineOptimizer) -> None:
        operation = plan.operations[index]
        assert isinstance(operation, Local), "updates are local"
        self._plan = plan
        self._operation = operation
        self._memory = memory
        self._source = optimizer
        self._kind: RegionKind = plan.regions[operation.outputs[0]].kind
        self._are_rows = plan.regions[operation.inputs[0]].kind == "rows"
        # It takes nothing but sparse gradients, and leaves alone what has none.
        self._is_lazy = issubclass(optimizer.kind, torch.optim.SparseAdam)
        late = lags(plan)[operation.message]
        optimizer.options.num_kept = max(optimizer.options.num_kept, 2 * late + 2)
        self._is_moved = _is_moved(plan, operation, rank)
        self._window = _window_of(plan, operation, rank)
        # What no optimizer holds is not updated, but moved with the rest.
        self._bystanders: list[tuple[int, int, int]] = []
        self._pieces = list(self._cut())
        self._flat = [piece for piece in self._pieces if not piece.is_alias]
        self._aliases = [piece for piece in self._pieces if piece.is_alias]
        self._optimizer, self._group_of = self._make_optimizer()
        self._states_from = -1
        self._users_entries: list[Any] = [None] * len(self._aliases)

    # What is updated.

    def _cut(self) -> Iterator[_Piece]:
        position = 0
        for part_index, first, size in _joined(self._plan, self._operation.outputs):
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
        """Our optimizer, and for each of its groups: the user's group, and whether its parameters are small."""
        if not self._pieces:
            return None, []
        members: dict[tuple[int, bool], list[torch.nn.Parameter]] = {}
        self._bind_values()
        for piece in self._pieces:
            # What a script has written onto a parameter is there for its optimizer to read.
            piece.value.__dict__ = self._memory.parameter(piece.name).__dict__
            key = (piece.group, piece.num_elements <= _SMALL_NUM_ELEMENTS)
            members.setdefault(key, []).append(piece.value)
        groups = [(self._source.groups[group], values) for (group, _), values in members.items()]
        return self._source.make(groups), list(members)

    def _bind_values(self) -> None:
        """Point our parameters to where the values are, which is elsewhere if someone gave a parameter new memory."""
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
                # A sparse gradient of a vector is added to the wrong place where that is a part of another tensor
                # (torch 2.13 on CPU: the offset counts twice); that of a column is not.
                piece.value.data = value.view(-1, 1) if self._is_lazy else value

    # The update.

    @torch.no_grad()
    def run(self, iteration: int, scale: float) -> None:
        """Update with the options that were noted for the iteration; gradients are multiplied by `scale` first."""
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
        else:
            self._bind_gradients(iteration, scale)
        _step(self._optimizer)
        for piece in self._pieces:
            piece.value.grad = None
        self._share_new_states()
        self._settle()

    def scale(self, iteration: int) -> StepScale:
        """What the script has done to the iteration's gradients."""
        return UNSCALED if self._optimizer is None else self._source.options.of(iteration).scale

    def _load(self) -> None:
        """Whatever changed the parameters since the last update (a checkpoint that was loaded, say) holds."""
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

    def _bind_gradients(self, iteration: int, scale: float) -> None:
        gradients = self._memory.view(self._operation.inputs, iteration)
        places = [slice(piece.at, piece.at + piece.num_elements) for piece in self._pieces]
        absent = absent_among(gradients, places)
        if scale != 1.0:
            gradients[self._window].mul_(scale)
        for piece, place, is_absent in zip(self._pieces, places, absent, strict=True):
            # Like the user's own, our optimizer leaves alone what has no gradient.
            gradient = None if is_absent else gradients[place].view(piece.value.shape)
            piece.value.grad = None if gradient is None else self._as_taken(gradient)

    def _as_taken(self, gradient: torch.Tensor) -> torch.Tensor:
        """A gradient as the optimizer takes it: dense, or sparse as torch would have made it."""
        if self._is_lazy and gradient.dim() == 2:
            return sparse_tensor(rows_of(gradient), gradient.shape)
        return gradient

    def _bind_rows(self, iteration: int) -> None:
        """Rows are alone in their message, and are not clipped."""
        rows = self._memory.get(self._operation.inputs[0], iteration)
        for piece in self._pieces:
            piece.value.grad = None if is_no_gradient(rows) else sparse_tensor(rows, piece.value.shape)

    def _settle(self) -> None:
        """Bring new values from where they were updated to where else they are looked for."""
        if self._kind != "param" or self._are_rows:
            return
        for piece in self._flat:
            self._memory.store_range(piece.part, piece.start, piece.stop)
        if self._is_moved:
            for piece in self._aliases:
                self._memory.load_range(piece.part, piece.start, piece.stop)
            for part, start, stop in self._bystanders:
                self._memory.load_range(part, start, stop)

    # States.

    @property
    def aliases(self) -> frozenset[str]:
        """The variables whose state is where the user's optimizer has it."""
        return frozenset(piece.name for piece in self._aliases)

    def piece_states(self) -> Iterator[PieceState]:
        """The states that are kept here, and not where the user's optimizer has them."""
        if self._kind == "param":
            yield from self._states_of(self._flat)

    def all_states(self) -> Iterator[PieceState]:
        """The states of all that is updated here, of a server's own copies too. `bind` comes first."""
        yield from self._states_of(self._pieces)

    def _states_of(self, pieces: Sequence[_Piece]) -> Iterator[PieceState]:
        for piece in pieces:
            entry = None if self._optimizer is None else self._optimizer.state.get(piece.value)
            if entry:
                yield PieceState(piece.part, piece.start, piece.stop, piece.value.shape, entry)

    def bind(self) -> None:
        """Take what the user has loaded or changed, now and not with the next update."""
        if self._optimizer is not None:
            self._bind_values()
            self._bind_states()

    def load_states(self, entries: Mapping[str, Mapping[str, Any]]) -> None:
        """On a rank where nobody has an optimizer: go on from states of whole variables, by name."""
        if self._optimizer is not None:
            self._bind_values()
            for piece in self._pieces:
                self._load_state(piece, entries.get(piece.name, {}))

    def _load_state(self, piece: _Piece, entry: Mapping[str, Any]) -> None:
        """Go on from a whole variable's state."""
        assert self._optimizer is not None, "there is something to update"
        part = self._plan.parts[piece.part]
        place = Place.of(part, piece.start, piece.stop)
        self._optimizer.state[piece.value] = cut_entry(entry, place, part.variable.shape, piece.value.shape)

    def _bind_states(self) -> None:
        """Go on from the user's states: from the very entries for whole variables, from pieces of them for others."""
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
            # At first, and whenever the user has loaded a state.
            self._states_from = number_of_states
            self._load_flat({piece.name for piece in self._flat})

    def reload(self, names: Collection[str]) -> None:
        """Go on from what the user's optimizer has of these variables."""
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
        """Let the user's optimizer have the states that were made for whole variables, as the same objects."""
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
    """Make a step that hooks on all optimizers of the process, which are the script's, do not hear of."""
    step: Any = type(optimizer).step
    getattr(step, "__wrapped__", step)(optimizer)


def _is_bound_to_one(options: Mapping[str, Any]) -> bool:
    return bool(options.get("fused") or options.get("differentiable") or isinstance(options.get("lr"), torch.Tensor))


def _joined(plan: Plan, regions: Sequence[int]) -> list[tuple[int, int, int]]:
    """Regions as (part, start, size); those that go on where another ends are one: slices of a variable that meet."""
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
    """The elements of the operation's buffer that the rank updates: all, or its shard."""
    num_elements = sum(plan.regions[index].num_elements for index in operation.outputs)
    if not operation.sharded:
        return slice(0, num_elements)
    group = next(group for group in operation.groups if rank in group)
    bounds = chunk_bounds(num_elements, len(group))
    return slice(bounds[group.index(rank)], bounds[group.index(rank) + 1])


def _is_moved(plan: Plan, operation: Local, rank: int) -> bool:
    """Whether a transfer of this rank's moves what the operation has updated."""
    message = operation.message
    outputs = set(operation.outputs)
    return any(
        other.message == message
        and isinstance(other, Transfer)
        and not outputs.isdisjoint(other.regions)
        and any(rank in group for group in other.groups)
        for other in plan.operations
    )
