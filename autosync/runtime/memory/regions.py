"""The tensors behind a plan's regions on one rank.

`view` returns the elements of an operation's regions as one flat tensor, always the same memory, in the plan's order:
message by message, part by part, each part in row order. Where possible this is the parameter's or the gradient's own
memory: for a part that is contiguous and alone in its message. All other parts (in a shared message, or cut along a
later axis) are *staged*: they are copied into the message's buffer and out of it. So gradients are never views into a
buffer: a script may keep them, and the next backward pass does not change what it has kept.

Contents whose size is only known at run time (rows, factors) are stored by `put` and read by `get`.

If parameters are taken some iterations late, several iterations are under way at a time. The data of one iteration
(gradients, encoded gradients, parameters on their way) then has several buffers, which are used in turn (see `lags`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeAlias

import torch

from autosync.plan.types import Plan, RegionKind
from autosync.runtime.engine.device import used_here
from autosync.runtime.memory.early_division import parts_divided_early
from autosync.runtime.memory.element_ranges import write_range
from autosync.runtime.memory.layout import Layout, lags
from autosync.runtime.memory.staged_gradients import StagedGradient
from autosync.runtime.memory.unused_variables import NOTHING, Firsts
from autosync.strategy.parts import Part

Home: TypeAlias = Literal["own", "staged"]
"""The memory in which operations work on a part's gradient: its own, or a copy in its message's buffer."""


class Memory:
    """One rank's buffers. `contributes` is false on a rank without gradients of its own, which only serves."""

    def __init__(self, plan: Plan, parameters: Mapping[str, torch.Tensor], *, contributes: bool) -> None:
        self._plan = plan
        self._parameters = parameters
        self._contributes = contributes
        self._device = next(iter(parameters.values())).device if parameters else torch.device("cpu")
        self._is_on_gpu = self._device.type != "cpu"
        self._message_of: dict[int, int] = {}
        self._offset: dict[int, int] = {}
        self._size = [0] * len(plan.messages)
        position = {str(part.name): index for index, part in enumerate(plan.parts)}
        for message, names in enumerate(plan.messages):
            for name in names:
                index = position[name]
                self._message_of[index] = message
                self._offset[index] = self._size[message]
                self._size[message] += plan.parts[index].num_elements
        self._parts_of: dict[str, list[int]] = {}
        for index, part in enumerate(plan.parts):
            self._parts_of.setdefault(part.variable.name, []).append(index)
        self._homes = [self._home(index) for index in range(len(plan.parts))]
        self._layout = Layout(plan)
        self._lags = lags(plan)
        self._buffers: dict[tuple[RegionKind, int, str, int], torch.Tensor] = {}
        self._staged: dict[tuple[RegionKind, int, int], torch.Tensor] = {}
        self._gradients: dict[tuple[int, int], torch.Tensor] = {}
        self._contents: dict[tuple[int, int], Any] = {}
        # Contents that are taken some iterations later are kept for that long.
        self._num_kept = 2 + max(self._lags, default=0)
        self._norms: dict[int, torch.Tensor] = {}
        self._firsts = Firsts(plan, self._device)
        self._divided = parts_divided_early(plan)
        self._staged_gradients: dict[int, list[StagedGradient]] = {}

    @property
    def device(self) -> torch.device:
        """The device of all of this rank's tensors."""
        return self._device

    # Gradients.

    def take_gradient(self, name: str, gradient: torch.Tensor, iteration: int = 0) -> torch.Tensor:
        """Store a variable's complete gradient where its transfers read it; return the gradient that users see now.

        This is the same tensor, or a contiguous copy of it.
        """
        seen = gradient
        given = gradient.detach() if gradient.requires_grad else gradient
        for index in self._parts_of[name]:
            turns = self._places(index)
            if turns:
                turns[iteration % len(turns)].take(given)
                continue
            seen = seen.contiguous()
            flat = cut(seen, self._plan.parts[index]).detach().view(-1)
            self._gradients[index, self._turn("grad", index, iteration)] = flat
            if index in self._divided:
                flat.div_(self._plan.num_workers)
            self._firsts.mark(index, flat)
        return seen

    def _places(self, index: int) -> list[StagedGradient]:
        """Return a part's places in its message's buffers, by turn; none if its gradient stays in its own memory.

        They are made when a gradient first comes, because a gradient that travels as rows or factors may not need them.
        """
        turns = self._staged_gradients.get(index)
        if turns is None:
            num_turns = self._lags[self._message_of[index]] + 1 if self._homes[index] == "staged" else 0
            part, mark = self._plan.parts[index], self._firsts.of(index)
            divisor = self._plan.num_workers if index in self._divided else 1
            turns = [
                StagedGradient(part, self._staging("grad", index, turn), mark, divisor=divisor)
                for turn in range(num_turns)
            ]
            self._staged_gradients[index] = turns
        return turns

    def take_nothing(self, name: str, iteration: int = 0) -> torch.Tensor:
        """Store this rank's contribution for a variable without a gradient; return the gradient that users see now."""
        nothing = torch.full_like(
            self._parameters[name], NOTHING, requires_grad=False, memory_format=torch.contiguous_format
        )
        for index in self._parts_of[name]:
            if self._homes[index] == "own":
                flat = cut(nothing, self._plan.parts[index]).view(-1)
                self._gradients[index, self._turn("grad", index, iteration)] = flat
            else:
                self._staging("grad", index, iteration).fill_(NOTHING)
        return nothing

    def gradients_of(self, name: str, iteration: int) -> list[torch.Tensor]:
        """Return the gradients of a variable's parts where operations work on them, flat and without copying."""
        return [
            self._gradients[index, self._turn("grad", index, iteration)]
            if self._homes[index] == "own"
            else self._staging("grad", index, iteration)
            for index in self._parts_of[name]
        ]

    def release_gradient(self, name: str, iteration: int) -> None:
        """Keep the memory of a variable's last gradient no longer, because an iteration does not use the variable."""
        for index in self._parts_of[name]:
            self._gradients.pop((index, self._turn("grad", index, iteration)), None)

    def mark_used(self, region: int, flat: torch.Tensor) -> None:
        """Mark a gradient that was computed on this rank as used (see `unused_variables`)."""
        place = self._plan.regions[region]
        if place.num_elements == self._plan.parts[place.part].num_elements:
            self._firsts.mark(place.part, flat)
        else:
            flat.add_(0.0)

    def return_gradients(self, gradients: Mapping[str, torch.Tensor]) -> None:
        """Copy the staged parts of variables' finished gradients back to the tensors that users see."""
        places, finished = [], []
        for name, gradient in gradients.items():
            given = gradient.detach() if gradient.requires_grad else gradient
            for index in self._parts_of[name]:
                turns = self._places(index)
                if turns:
                    places.append(cut(given, self._plan.parts[index]))
                    finished.append(turns[0].shaped)
        if places:
            # One call instead of one for each part.
            torch._foreach_copy_(places, finished)

    def staged_variables(self) -> list[str]:
        """Return the variables for which `return_gradients` has something to copy."""
        return [name for name, parts in self._parts_of.items() if any(self._homes[p] == "staged" for p in parts)]

    # Flat views.

    def view(self, regions: Sequence[int], iteration: int = 0) -> torch.Tensor:
        """Return the elements (or bytes) of an operation's regions as one flat tensor, without copying."""
        first, last = self._plan.regions[regions[0]], self._plan.regions[regions[-1]]
        if first.kind == "norm":
            return self.norms(iteration)[first.start : last.stop]
        if first.kind == "grad" and self._contributes and self._homes[first.part] == "own":
            return self._gradients[first.part, self._turn("grad", first.part, iteration)][first.start : last.stop]
        if first.kind == "param" and self._is_in_place(first.part):
            part = self._plan.parts[first.part]
            return cut(self._parameters[part.variable.name].data, part).view(-1)[first.start : last.stop]
        turn = self._turn(first.kind, first.part, iteration)
        buffer = self._buffer(first.kind, self._message_of[first.part], first.dtype, turn)
        if self._layout.has(regions[0]):
            return buffer[self._layout.start(regions[0]) : self._layout.stop(regions[-1])]
        return buffer[self._offset[first.part] + first.start : self._offset[last.part] + last.stop]

    def views(self, regions: Sequence[int], iteration: int) -> list[torch.Tensor]:
        """Return the elements of some of an operation's regions, in one flat tensor where they lie together."""
        found: list[list[int]] = []
        for index in regions:
            if found and self._follows(index, found[-1][-1]):
                found[-1].append(index)
            else:
                found.append([index])
        return [self.view(together, iteration) for together in found]

    def _follows(self, region: int, before: int) -> bool:
        """Whether a region begins where another one ends, in the buffer of a message."""
        one, other = self._plan.regions[region], self._plan.regions[before]
        return self._offset[one.part] + one.start == self._offset[other.part] + other.stop

    def place(self, region: int) -> tuple[int, int]:
        """Return where an encoded region begins and ends among the bytes of its message."""
        return self._layout.start(region), self._layout.stop(region)

    def norms(self, iteration: int) -> torch.Tensor:
        """Return an iteration's two sums of squares, initially zero: of shared gradients and of a worker's own."""
        found = self._norms.get(iteration)
        if found is None:
            # Several threads may come here first; `setdefault` lets one of them win.
            found = self._norms.setdefault(iteration, torch.zeros(2, dtype=torch.float64, device=self._device))
            self._norms.pop(iteration - self._num_kept, None)
        return found

    def load(self, regions: Sequence[int]) -> None:
        """Copy the parameters into the staged parts of `param` regions."""
        for index in regions:
            region = self._plan.regions[index]
            self.load_range(region.part, region.start, region.stop)

    def load_range(self, part: int, start: int, stop: int) -> None:
        """Copy elements of a part (by position) from its parameter, if the part is staged."""
        if not self._is_in_place(part):
            self._staging("param", part)[start:stop].copy_(self.parameter_part(part).reshape(-1)[start:stop])

    def store(self, regions: Sequence[int]) -> None:
        """Copy the staged parts of `param` regions to the parameters."""
        for index in regions:
            region = self._plan.regions[index]
            self.store_range(region.part, region.start, region.stop)

    def store_range(self, part: int, start: int, stop: int) -> None:
        """Copy elements of a part (by position) to its parameter, if the part is staged."""
        if self._is_in_place(part):
            return
        write_range(self.parameter_part(part), start, self._staging("param", part)[start:stop])

    def begin_copy(self, kind: RegionKind, part: int) -> None:
        """Start a part's copy (`master`, `anchor`) with the values of its parameter."""
        self.held_part(kind, part).copy_(self.parameter_part(part))

    def held_part(self, kind: RegionKind, index: int) -> torch.Tensor:
        """Return a part (by position) of the parameter, or this rank's copy of it, in the part's shape."""
        if kind == "param":
            return self.parameter_part(index)
        return self._staging(kind, index).view(self._plan.parts[index].shape)

    def parameter(self, name: str) -> torch.Tensor:
        """Return one of the user's parameters by name."""
        return self._parameters[name]

    def parameter_part(self, index: int) -> torch.Tensor:
        """Return a part (by position) of the user's parameter, in the part's shape and in the parameter's own memory.

        Autograd does not notice writes to it: for a script, a parameter changes when the script calls `step()`.
        """
        part = self._plan.parts[index]
        return cut(self._parameters[part.variable.name].data, part)

    # Contents of a size that is known at run time only.

    def put(self, region: int, iteration: int, content: Any) -> None:
        """Keep a content until it is dropped, or for some iterations."""
        self._contents[region, iteration] = content
        self._contents.pop((region, iteration - self._num_kept), None)

    def get(self, region: int, iteration: int) -> Any:
        content = self._contents[region, iteration]
        if self._is_on_gpu:
            used_here(content)
        return content

    def drop(self, region: int, iteration: int) -> None:
        self._contents.pop((region, iteration), None)

    def forget(self) -> None:
        """Drop everything that belongs to an iteration, because iteration numbers will be used again."""
        self._contents.clear()
        self._norms.clear()

    # Places of parts and regions.

    def _home(self, index: int) -> Home:
        part = self._plan.parts[index]
        if len(self._plan.messages[self._message_of[index]]) > 1:
            return "staged"
        # In a contiguous tensor, a part is in one piece if all axes before the axis of the cut have size 1.
        in_one_piece = part.name.whole or all(size == 1 for size in part.variable.shape[: part.axis])
        return "own" if in_one_piece else "staged"

    def _is_in_place(self, index: int) -> bool:
        """Whether the engine works on a part's parameter directly, without staging."""
        part = self._plan.parts[index]
        return self._homes[index] == "own" and self._parameters[part.variable.name].is_contiguous()

    def _turn(self, kind: RegionKind, part: int, iteration: int) -> int:
        """Return the number of the buffer that an iteration uses; iterations use the buffers in turn."""
        lag = self._lags[self._message_of[part]]
        if kind in ("grad", "encoded"):
            return iteration % (lag + 1)
        # A receive may be posted as soon as an iteration begins, while the oldest buffer is still being read.
        return iteration % (lag + 2) if kind == "incoming" else 0

    def _staging(self, kind: RegionKind, index: int, iteration: int = 0) -> torch.Tensor:
        turn = self._turn(kind, index, iteration)
        found = self._staged.get((kind, index, turn))
        if found is None:
            part = self._plan.parts[index]
            buffer = self._buffer(kind, self._message_of[index], part.variable.dtype, turn)
            found = buffer[self._offset[index] : self._offset[index] + part.num_elements]
            self._staged[kind, index, turn] = found
        return found

    def _buffer(self, kind: RegionKind, message: int, dtype: str, turn: int) -> torch.Tensor:
        key = (kind, message, dtype, turn)
        buffer = self._buffers.get(key)
        if buffer is None:
            size = self._layout.size(kind, message, dtype) or self._size[message]
            # Several threads may come here first; `setdefault` lets one of them win.
            made = torch.zeros(size, dtype=getattr(torch, dtype), device=self._device)
            buffer = self._buffers.setdefault(key, made)
        return buffer


def cut(tensor: torch.Tensor, part: Part) -> torch.Tensor:
    """Return the part of a variable's tensor, without copying."""
    return tensor if part.name.whole else tensor.narrow(part.axis, part.begin, part.end - part.begin)
