"""The seals of one model: where its sealed gradients stand from backward to the next pass."""

from __future__ import annotations

import weakref
from collections.abc import Collection, Iterable, Mapping, Sequence

import torch

from autosync.errors import OperationError
from autosync.runtime.session.clipping_and_scaling import Declared
from autosync.runtime.session.held_objects import HeldObjects
from autosync.runtime.session.sealed_gradients import SealedGradient, is_there
from autosync.runtime.session.whole_gradients import WholeGradients


class Seals:
    """The sealed gradients of the engine's variables.

    From backward to the step, the engine has the real gradients. After the step the seals stay until the script drops
    them, as DDP's gradients do: a backward pass cannot add to gradients that were not zeroed. A variable in none of the
    `optimizer`'s groups gets no seal after the step, because nothing would zero it.
    """

    def __init__(
        self,
        parameters: Mapping[str, torch.nn.Parameter],
        optimizer: torch.optim.Optimizer,
        declared: Declared,
        whole: WholeGradients,
    ) -> None:
        self.declared = declared
        self.whole = whole
        self._parameters = parameters
        self._all = {name: self._sealed(name, parameter) for name, parameter in parameters.items()}
        self._held = HeldObjects(self._all)
        self.zeros = {name: self._sealed(name, parameter, is_zero=True) for name, parameter in parameters.items()}
        updated = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
        self._updated = {name: None for name, parameter in parameters.items() if id(parameter) in updated}
        self._lifted: list[str] = []
        self._lifted_zeros: set[str] = set()
        # Whether a backward pass has added to gradients that no rank has completely.
        self.are_spoilt = False

    def _sealed(self, name: str, parameter: torch.Tensor, *, is_zero: bool = False) -> SealedGradient:
        made = parameter.detach().new_zeros(()).expand(parameter.shape).as_subclass(SealedGradient)
        made.variable = name
        made.is_zero = is_zero
        made.parameter = weakref.ref(parameter)
        made.whose = weakref.ref(self)
        return made

    def norm(self, gradients: Sequence[SealedGradient]) -> torch.Tensor:
        """Return the norm of all gradients, in the widest of their types; refuse any other set of gradients."""
        given = {id(one) for one in gradients}
        for name, seal in self._all.items():
            if id(seal) not in given:
                raise OperationError(
                    f"the norm of some gradients without that of {name}: the task clips that of all of them together"
                )
        if len(given) > len(self._all):
            raise OperationError("the norm of several models' gradients: each task clips that of its own")
        dtype = gradients[0].dtype
        for one in gradients:
            dtype = torch.promote_types(dtype, one.dtype)
        return torch.tensor(self.declared.norm(), dtype=dtype, device=gradients[0].device)

    def seal(self) -> None:
        """Seal all gradients, when backward has returned."""
        self._lifted_zeros.clear()
        for name, parameter in self._parameters.items():
            parameter.grad = self._all[name]

    def remove(self, names: Collection[str] | None = None) -> None:
        """Remove the seals when a step begins, so that the user's optimizer skips them; refuse changed gradients.

        `names` are the variables that the optimizer holds, if there are several optimizers.
        """
        for name in self._parameters if names is None else names:
            parameter = self._parameters[name]
            if parameter.grad is not self._all[name] and not self._take_replaced(name, parameter.grad):
                kept = "set to zero" if parameter.grad is self.zeros[name] else "replaced"
                done = "thrown away" if parameter.grad is None else kept
                raise OperationError(
                    f"the gradient of {name} was {done} after backward, when the engine had it to update with "
                    "(zero_grad comes before backward; gradients are changed by operations that the task declares)"
                )
            parameter.grad = None

    def _take_replaced(self, name: str, gradient: torch.Tensor | None) -> bool:
        """Have the engine update with a gradient that the script has put in the place of its own, if it can."""
        if isinstance(gradient, SealedGradient) and gradient.is_past:
            gradient = gradient.kept
        if gradient is None or isinstance(gradient, SealedGradient) or gradient.is_sparse:
            return False
        whole = self.whole.read(name)
        if whole is None:
            return False
        whole.copy_(gradient)
        return True

    def part_from_held(self) -> None:
        """Let seals that the script holds keep the gradients of their pass, because those of another one come.

        If the script has set a gradient to zero, the next pass adds to it in place, so its object is that of both.
        """
        self.lift()
        for name in self._held.names():
            if name not in self._lifted_zeros:
                self._all[name].kept = self.whole.read(name)
                self._all[name].is_past = True
                self._all[name] = self._sealed(name, self._parameters[name])

    def put_back(self, names: Collection[str] | None = None) -> None:
        """Put the seals back after the step of all optimizers, or of the optimizer that holds `names`."""
        for name in self._updated if names is None else names:
            if name in self._updated:
                self._parameters[name].grad = self._all[name]

    def lift(self) -> None:
        """Take the seals off when a backward pass begins, because nothing can be added to them."""
        for name, parameter in self._parameters.items():
            if parameter.grad is self._all[name]:
                parameter.grad = None
                self._lifted.append(name)
            elif parameter.grad is self.zeros[name]:
                parameter.grad = None
                self._lifted_zeros.add(name)
        if not self._lifted:
            self.are_spoilt = False

    def spoil(self) -> bool:
        """Note that gradients come; return whether they would be added to existing ones that no rank has completely.

        This does no harm if the script drops all of them before they are used, as in the turn of another model.
        """
        self.are_spoilt = bool(self._lifted)
        return self.are_spoilt

    def refuse_lifted(self) -> None:
        """Refuse gradients that are only to accumulate, if sealed gradients are there already."""
        if self._lifted:
            raise OperationError(self._added_to(self._lifted[0]))

    def taken_zeros(self) -> frozenset[str]:
        """Return the variables whose gradients are zeros when a pass begins; the caller puts real zeros there."""
        self.lift()
        taken = frozenset(self._lifted_zeros)
        self._lifted_zeros.clear()
        return taken

    def refuse_zeroed(self) -> None:
        """Refuse a step after gradients were set to zero: it may change parameters, unlike a step without gradients."""
        if any(parameter.grad is self.zeros[name] for name, parameter in self._parameters.items()):
            raise OperationError(
                f"the gradient of {next(iter(self._parameters))} was set to zero after backward, and the optimizer "
                "steps: momentum and decay would move the parameter, and the engine has no such gradient to update "
                "with (zero_grad() with its default set_to_none=True leaves parameters as they are)"
            )

    def refuse_spoilt(self) -> None:
        """Refuse the use of gradients that were added to others and are still there."""
        if self.are_spoilt and not self.are_gone():
            raise OperationError(self._added_to(next(iter(self._parameters))))

    def _added_to(self, name: str) -> str:
        return (
            f"the gradient of {name} was there already when a backward pass added to it, and nothing can be added: the "
            "whole of it is where the variable is updated (call optimizer.zero_grad() before backward)"
        )

    def are_gone(self) -> bool:
        """Whether the script has dropped all sealed gradients."""
        return not any(is_there(parameter.grad) for parameter in self._parameters.values())

    def restore(self) -> None:
        """Put the seals back after a backward pass that brought no gradients, or unusable ones."""
        if self.are_spoilt:
            self.seal()
        for name in self._lifted:
            self._parameters[name].grad = self._all[name]
        self._lifted.clear()
        for name in self._lifted_zeros:
            if self._parameters[name].grad is None:
                self._parameters[name].grad = self.zeros[name]
        self._lifted_zeros.clear()

    def clear(self) -> list[str]:
        """Remove all seals; return the variables that had one."""
        found = []
        for name, parameter in self._parameters.items():
            if parameter.grad is self._all[name] or parameter.grad is self.zeros[name]:
                parameter.grad = None
                found.append(name)
        return found

    def leave_zeros(self, names: Iterable[str]) -> None:
        """Give variables zeros where stock DDP has a gradient, when training has ended and the seals are removed.

        The script has set it to zero, or does so before the next backward pass. If no rank uses the variable then,
        momentum and decay move it, but only if there is a gradient.
        """
        for name in self.whole.were_there(names):
            self._parameters[name].grad = torch.zeros_like(self._parameters[name], requires_grad=False)
