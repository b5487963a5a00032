"""The tensors behind a plan's regions on one rank.

`view` gives the elements of an operation's regions as one flat tensor, the same memory every time, in the plan's order:
message by message, part behind part, each part row by row. Where that can be, it is the parameter's or the gradient's
own memory: a part that is alone in its message and lies in one piece. Gradients of whole variables that are merged
become views into their message's buffer, as DDP's do. What is left (a part along another axis, a part of a variable in
a merged message) is *staged*: it has a buffer of its own, which is filled and emptied by copying.

Contents whose size is known at run time only (rows, factors) are kept by `put` and `get`.

Where parameters are taken some iterations late, several iterations are under way at a time. What belongs to one of them
(gradients, what is encoded of them, parameters on their way home) then has as many buffers, used in turn (see `lags`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeAlias

import torch

from autosync.plan.types import Plan, RegionKind
from autosync.runtime.engine.device import used_here
from autosync.runtime.memory.element_ranges import write_range
from autosync.runtime.memory.layout import Layout, lags
from autosync.runtime.memory.unused_variables import NOTHING, Firsts
from autosync.strategy.parts import Part

Home: TypeAlias = Literal["own", "merged", "staged"]
"""Where a part's gradient lies: in the gradient itself, in its message's buffer as a view, or in a copy there."""


class Memory:
    """One rank's buffers. `contributes` is false on a rank that has no gradients of its own, a mere server."""

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
        self._shapes = [part.shape for part in plan.parts]
        self._layout = Layout(plan)
        self._lags = lags(plan)
        self._buffers: dict[tuple[RegionKind, int, str, int], torch.Tensor] = {}
        self._staged: dict[tuple[RegionKind, int, int], torch.Tensor] = {}
        self._seen: dict[tuple[int, int], torch.Tensor] = {}
        self._gradients: dict[tuple[int, int], torch.Tensor] = {}
        self._contents: dict[tuple[int, int], Any] = {}
        # What is taken some iterations later is kept as long.
        self._num_kept = 2 + max(self._lags, default=0)
        self._norms: dict[int, torch.Tensor] = {}
        self._firsts = Firsts(plan, self._device)

    @property
    def device(self) -> torch.device:
        """Where all of this rank's tensors are."""
        return self._device

    # Gradients.

    def take_gradient(self, name: str, gradient: torch.Tensor, iteration: int = 0) -> torch.Tensor:
        """A variable's gradient is complete: bring it to where its transfers find it. The gradient that users see now.

        It is the same tensor, or a view into a message's buffer that has its numbers.
        """
        seen = gradient
        given = gradient.detach() if gradient.requires_grad else gradient
        for index in self._parts_of[name]:
            home = self._homes[index]
            if home == "own":
                seen = seen.contiguous()
                flat = _cut(seen, self._plan.parts[index]).detach().view(-1)
                self._gradients[index, self._turn("grad", index, iteration)] = flat
                self._firsts.mark(index, flat)
                continue
            flat = self._staging("grad", index, iteration)
            place = self._as_seen(index, iteration, flat)
            if home == "merged":
                seen = place
            if place is not gradient:
                place.copy_(_cut(given, self._plan.parts[index]))
            self._firsts.mark(index, flat)
        return seen

    def _as_seen(self, index: int, iteration: int, flat: torch.Tensor) -> torch.Tensor:
        """What is staged of a part's gradient in the part's shape: the same tensor every time, unless the script has
        made another of it.
        """
        key = (index, self._turn("grad", index, iteration))
        place = self._seen.get(key)
        if place is None or place.data_ptr() != flat.data_ptr() or not _is_plain(place, self._shapes[index]):
            place = self._seen[key] = flat.view(self._shapes[index])
        return place

    def take_nothing(self, name: str, iteration: int = 0) -> torch.Tensor:
        """This rank has no gradient of a variable: what it contributes, as the gradient that users see now."""
        nothing = torch.full_like(
            self._parameters[name], NOTHING, requires_grad=False, memory_format=torch.contiguous_format
        )
        seen = nothing
        for index in self._parts_of[name]:
            part = self._plan.parts[index]
            if self._homes[index] == "own":
                self._gradients[index, self._turn("grad", index, iteration)] = _cut(nothing, part).view(-1)
                continue
            flat = self._staging("grad", index, iteration).fill_(NOTHING)
            if self._homes[index] == "merged":
                seen = flat.view(part.shape)
        return seen

    def mark_used(self, region: int, flat: torch.Tensor) -> None:
        """Say of a gradient that was worked out here that it is one."""
        place = self._plan.regions[region]
        if place.num_elements == self._plan.parts[place.part].num_elements:
            self._firsts.mark(place.part, flat)
        else:
            flat.add_(0.0)

    def return_gradient(self, name: str, gradient: torch.Tensor) -> None:
        """Bring what is staged of a variable's finished gradient back to the tensor that users see."""
        for index in self._parts_of[name]:
            if self._homes[index] == "staged":
                part = self._plan.parts[index]
                _cut(gradient, part).copy_(self._staging("grad", index).view(part.shape))

    def staged_variables(self) -> list[str]:
        """The variables of which `return_gradient` has something to bring back."""
        return [name for name, parts in self._parts_of.items() if any(self._homes[p] == "staged" for p in parts)]

    # Flat views.

    def view(self, regions: Sequence[int], iteration: int = 0) -> torch.Tensor:
        """The elements (or bytes) of an operation's regions, one behind the other, without copying."""
        first, last = self._plan.regions[regions[0]], self._plan.regions[regions[-1]]
        if first.kind == "norm":
            return self.norms(iteration)[first.start : last.stop]
        if first.kind == "grad" and self._contributes and self._homes[first.part] == "own":
            return self._gradients[first.part, self._turn("grad", first.part, iteration)][first.start : last.stop]
        if first.kind == "param" and self._is_in_place(first.part):
            part = self._plan.parts[first.part]
            return _cut(self._parameters[part.variable.name].data, part).view(-1)[first.start : last.stop]
        turn = self._turn(first.kind, first.part, iteration)
        buffer = self._buffer(first.kind, self._message_of[first.part], first.dtype, turn)
        if self._layout.has(regions[0]):
            return buffer[self._layout.start(regions[0]) : self._layout.stop(regions[-1])]
        return buffer[self._offset[first.part] + first.start : self._offset[last.part] + last.stop]

    def place(self, region: int) -> tuple[int, int]:
        """Where the bytes of an encoded region begin and end, among those of its message."""
        return self._layout.start(region), self._layout.stop(region)

    def norms(self, iteration: int) -> torch.Tensor:
        """An iteration's sums of squares of gradients, zero at first: of those that are shared, of a worker's own."""
        found = self._norms.get(iteration)
        if found is None:
            # Several threads may come first: the dictionary lets one of them win.
            found = self._norms.setdefault(iteration, torch.zeros(2, dtype=torch.float64, device=self._device))
            self._norms.pop(iteration - self._num_kept, None)
        return found

    def load(self, regions: Sequence[int]) -> None:
        """Fill what is staged of `param` regions from the parameters."""
        for index in regions:
            region = self._plan.regions[index]
            self.load_range(region.part, region.start, region.stop)

    def load_range(self, part: int, start: int, stop: int) -> None:
        """Fill elements of a part (by position) from its parameter, if it is staged."""
        if not self._is_in_place(part):
            self._staging("param", part)[start:stop].copy_(self.parameter_part(part).reshape(-1)[start:stop])

    def store(self, regions: Sequence[int]) -> None:
        """Bring what is staged of `param` regions to the parameters."""
        for index in regions:
            region = self._plan.regions[index]
            self.store_range(region.part, region.start, region.stop)

    def store_range(self, part: int, start: int, stop: int) -> None:
        """Bring elements of a part (by position) to its parameter, if it is staged."""
        if self._is_in_place(part):
            return
        write_range(self.parameter_part(part), start, self._staging("param", part)[start:stop])

    def begin_copy(self, kind: RegionKind, part: int) -> None:
        """Let a part's copy (`master`, `anchor`) begin with the values that its parameter has."""
        self.held_part(kind, part).copy_(self.parameter_part(part))

    def held_part(self, kind: RegionKind, index: int) -> torch.Tensor:
        """A part (by position) of the parameter, or this rank's copy of it, in the part's shape."""
        if kind == "param":
            return self.parameter_part(index)
        return self._staging(kind, index).view(self._plan.parts[index].shape)

    def parameter(self, name: str) -> torch.Tensor:
        """The user's parameter."""
        return self._parameters[name]

    def parameter_part(self, index: int) -> torch.Tensor:
        """A part (by position) of the user's parameter: its very elements, in its shape.

        What is written there autograd does not hear of: to a script a parameter changes when it calls `step()`.
        """
        part = self._plan.parts[index]
        return _cut(self._parameters[part.variable.name].data, part)

    # Contents of a size that is known at run time only.

    def put(self, region: int, iteration: int, content: Any) -> None:
        """Keep a content until it is dropped, or some iterations later."""
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
        """Let go of what belongs to iterations: others of the same numbers will come."""
        self._contents.clear()
        self._norms.clear()

    # Where things lie.

    def _home(self, index: int) -> Home:
        part = self._plan.parts[index]
        if len(self._plan.messages[self._message_of[index]]) > 1:
            return "merged" if part.name.whole else "staged"
        # Of a contiguous tensor: nothing but axes of size 1 before the one that the part is cut along.
        in_one_piece = part.name.whole or all(size == 1 for size in part.variable.shape[: part.axis])
        return "own" if in_one_piece else "staged"

    def _is_in_place(self, index: int) -> bool:
        """Whether a part's parameter is worked on where it is."""
        part = self._plan.parts[index]
        return self._homes[index] == "own" and self._parameters[part.variable.name].is_contiguous()

    def _turn(self, kind: RegionKind, part: int, iteration: int) -> int:
        """Which of the buffers that are used in turn is an iteration's."""
        lag = self._lags[self._message_of[part]]
        if kind in ("grad", "encoded"):
            return iteration % (lag + 1)
        # A receive may be posted as soon as an iteration begins, when the oldest is still being taken.
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
            # Several threads may come first: the dictionary lets one of them win.
            made = torch.zeros(size, dtype=getattr(torch, dtype), device=self._device)
            buffer = self._buffers.setdefault(key, made)
        return buffer


def _is_plain(tensor: torch.Tensor, shape: tuple[int, ...]) -> bool:
    return tensor.shape == shape and tensor.is_contiguous() and not tensor.requires_grad


def _cut(tensor: torch.Tensor, part: Part) -> torch.Tensor:
    return tensor if part.name.whole else tensor.narrow(part.axis, part.begin, part.end - part.begin)
