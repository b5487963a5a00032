"""The part of a recorded pass that one stage makes, as a program that any microbatch can run through."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import nn

from autosync.runtime.stages.boundary_bytes import BoundaryBytes
from autosync.runtime.stages.counted_targets import counted_targets
from autosync.runtime.stages.left_products import LeftProducts, make_leaving
from autosync.specs.profile.linear_calls import can_leave
from autosync.specs.profile.tape import Tape
from autosync.strategy.stages import ModelStage


@dataclass(slots=True, kw_only=True)
class PassedMicrobatch:
    """What a stage keeps of a microbatch from its forward pass to its backward pass.

    `leaves` are the received values whose gradients go back, `ends` the values that are sent on and get gradients.
    `again` makes the forward pass another time; it is None if this one has kept its activations. `left` takes what the
    backward pass leaves for later, if it is split.
    """

    leaves: dict[int, torch.Tensor] = field(default_factory=dict)
    ends: dict[int, torch.Tensor] = field(default_factory=dict)
    sent: dict[int, torch.Tensor] = field(default_factory=dict)
    loss: torch.Tensor | None = None
    again: Callable[[], PassedMicrobatch] | None = None
    left: LeftProducts = field(default_factory=LeftProducts)


class StageBoundary(Protocol):
    """What crosses the boundary between two stages."""

    def pack(self, values: Mapping[int, torch.Tensor], *, backward: bool = False) -> torch.Tensor: ...
    def unpack(self, buffer: torch.Tensor, *, backward: bool = False) -> Mapping[int, torch.Tensor]: ...


class StageWork(Protocol):
    """The passes of one stage. `arriving` and `leaving` are its boundaries, where it has a stage before or after it.

    A forward pass that keeps no activations is made again by the backward pass.
    """

    @property
    def arriving(self) -> StageBoundary | None: ...
    @property
    def leaving(self) -> StageBoundary | None: ...
    def forward(
        self, batch: Sequence[torch.Tensor], received: Mapping[int, torch.Tensor], *, keeps: bool
    ) -> PassedMicrobatch: ...
    def backward(
        self, passed: PassedMicrobatch, gradients: Mapping[int, torch.Tensor], *, scale: float
    ) -> Mapping[int, torch.Tensor]: ...
    def weights(self, left: LeftProducts) -> None: ...
    def with_parameters(self, replaced: Mapping[nn.Parameter, nn.Parameter]) -> StageWork:
        """Return the stage that computes with other parameters in the places of these."""


class StageProgram:
    """One stage of a recorded pass. `arriving` and `leaving` say what crosses its boundaries (None: there is none).

    If it splits its backward passes, they leave gradients of weights for `weights`. With `copies_batch`, it copies what
    it uses of a microbatch, which may change before the backward pass. `targets` are those of the loss, if the last
    stage has any that can be counted.
    """

    def __init__(
        self,
        tape: Tape,
        begin: int,
        end: int,
        *,
        arriving: BoundaryBytes | None,
        last: bool,
        splits_backward: bool = False,
        copies_batch: bool = False,
    ) -> None:
        self.arriving = arriving
        self.leaving = None if last else BoundaryBytes(tape, tape.crossing(end))
        self.uses = {name for name, uses in tape.uses.items() if any(begin <= segment < end for segment in uses)}
        self._calls = [call for call in tape.calls if begin <= call.segment < end]
        self._batch = tape.batch
        self._copied = {number for call in self._calls for number in call.inputs} if copies_batch else set[int]()
        self._loss = tape.loss if last else -1
        self.targets = counted_targets(tape) if last else None
        changed = {storage for segment, storage in tape.changes if begin <= segment < end}
        received = () if arriving is None else arriving.values
        self._changed = {number for number in received if tape.values[number].storage in changed}
        self._drops = self._last_uses()
        self._leaves = [splits_backward and can_leave(call) for call in self._calls]

    def _last_uses(self) -> list[list[int]]:
        """Return the values that no later call needs, after each call."""
        needed = set(() if self.leaving is None else self.leaving.values) | {self._loss}
        drops: list[list[int]] = []
        for call in reversed(self._calls):
            numbers = {*call.inputs, *(value for _, value in call.results)}
            drops.append([number for number in numbers if number not in needed])
            needed |= numbers
        return drops[::-1]

    @property
    def parameters(self) -> list[nn.Parameter]:
        """The parameters that the stage uses, each as often as it does: the model's, and those of teachers."""
        return [leaf for call in self._calls for leaf in call.leaves if isinstance(leaf, nn.Parameter)]

    def forward(
        self, batch: Sequence[torch.Tensor], received: Mapping[int, torch.Tensor], *, keeps: bool = True
    ) -> PassedMicrobatch:
        """Pass a microbatch forward. `batch` has its tensors, `received` what has crossed the boundary before."""
        batch = [one.clone() if number in self._copied else one for number, one in zip(self._batch, batch, strict=True)]
        if keeps:
            return self._pass(batch, received)
        drawn = torch.random.get_rng_state()
        with torch.no_grad():
            passed = self._pass(batch, received)

        def again() -> PassedMicrobatch:
            # Dropout draws the same numbers as before, and what comes later is drawn as without this pass.
            now = torch.random.get_rng_state()
            torch.random.set_rng_state(drawn)
            try:
                return self._pass(batch, received)
            finally:
                torch.random.set_rng_state(now)

        return PassedMicrobatch(sent=passed.sent, loss=passed.loss, again=again)

    def _pass(self, batch: Sequence[torch.Tensor], received: Mapping[int, torch.Tensor]) -> PassedMicrobatch:
        passed = PassedMicrobatch()
        values: dict[int, torch.Tensor] = dict(zip(self._batch, batch, strict=True))
        for number, tensor in received.items():
            assert self.arriving is not None, "a stage that receives has a boundary before it"
            leaf = tensor
            if number in self.arriving.with_gradient:
                leaf = passed.leaves[number] = tensor.detach().requires_grad_()
            # A leaf of autograd cannot be changed in place.
            values[number] = leaf.clone() if number in self._changed else leaf
        for call, leaves, drops in zip(self._calls, self._leaves, self._drops, strict=True):
            values.update(make_leaving(call, values, passed.left) if leaves else call.make(values))
            for number in drops:
                del values[number]
        if self.leaving is not None:
            passed.sent = {number: values[number].detach() for number in self.leaving.values}
            passed.ends = {number: values[number] for number in self.leaving.with_gradient}
        else:
            passed.loss = values[self._loss]
        return passed

    def backward(
        self, passed: PassedMicrobatch, gradients: Mapping[int, torch.Tensor], *, scale: float
    ) -> dict[int, torch.Tensor]:
        """Pass a microbatch backward; return the gradients of what was received. The loss is scaled by `scale`."""
        if passed.again is not None:
            passed = passed.again()
        if passed.loss is not None:
            torch.autograd.backward((passed.loss,), (torch.full_like(passed.loss, scale),))
        else:
            pairs = [(end, gradients[number]) for number, end in passed.ends.items() if end.requires_grad]
            if pairs:
                torch.autograd.backward([end for end, _ in pairs], [gradient for _, gradient in pairs])
        return {
            number: torch.zeros_like(leaf) if leaf.grad is None else leaf.grad for number, leaf in passed.leaves.items()
        }

    def weights(self, left: LeftProducts) -> None:
        """Compute the gradients of weights that a backward pass has left."""
        left.accumulate()

    def with_parameters(self, replaced: Mapping[nn.Parameter, nn.Parameter]) -> StageProgram:
        """Return the stage that computes with other parameters in the places of these."""
        found = copy.copy(self)
        found._calls = [  # noqa: SLF001 - a copy of this object
            call._replace(
                leaves=tuple(
                    replaced.get(leaf, leaf) if isinstance(leaf, nn.Parameter) else leaf for leaf in call.leaves
                )
            )
            for call in self._calls
        ]
        return found


def stage_programs(
    tape: Tape, stages: Sequence[ModelStage], *, splits_backward: bool = False, copies_batch: bool = False
) -> list[StageProgram]:
    """Return the programs of all stages."""
    begins = [stage.before for stage in stages]
    ends = [*begins[1:], len(tape.modules)]
    programs: list[StageProgram] = []
    for number, (begin, end) in enumerate(zip(begins, ends, strict=True)):
        arriving = programs[-1].leaving if programs else None
        is_last = number == len(stages) - 1
        programs.append(
            StageProgram(
                tape,
                begin,
                end,
                arriving=arriving,
                last=is_last,
                splits_backward=splits_backward,
                copies_batch=copies_batch,
            )
        )
    return programs
