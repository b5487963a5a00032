"""Sealed gradients: users find them in place of gradients that belong to the engine.

A sealed gradient has a shape and a type. Between backward and step, whatever reads or changes it gets a copy of the
gradient, if this rank has the whole of it (`whole_gradients`); else it is refused. `zero_grad` may drop it: then the
parameter has no gradient. It may set it to zero as well: then sealed zeros stand in its place, because they are zeros
in the next step if no rank uses their variable. And torch's own functions may do to it what the task declares for all
gradients, clipping and loss scaling, without a wait for every gradient: see `clipping_and_scaling`.
"""

from __future__ import annotations

import weakref
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import torch

from autosync.errors import OperationError
from autosync.runtime.session.clipping_and_scaling import Declared
from autosync.runtime.session.torch_calls import flat, gives_itself, only_lays_out, order_of_norm, plainly, replaced
from autosync.runtime.session.whole_gradients import WholeGradients

_DROPPED_BY = frozenset({"zero_", "_foreach_zero_"})
_CHANGES_NOTHING = frozenset({"detach_", "requires_grad_"})
_NORM = "linalg_vector_norm"
_NORMS = frozenset({_NORM, "_foreach_norm"})
_MULTIPLIES = frozenset({"mul_", "_foreach_mul_"})
_ASKS = frozenset({"dim", "is_complex", "is_floating_point", "numel", "size", "_has_compatible_shallow_copy_type"})
_CONVERTS = frozenset({"to", "type", "float", "double", "half", "bfloat16", "cpu", "cuda"})
_UNSCALES = "_amp_foreach_non_finite_check_and_unscale_"


class SealedGradient(torch.Tensor):
    """Stands for a variable's gradient from the end of backward until it is dropped. It takes no memory."""

    variable: str
    is_zero: bool
    parameter: weakref.ref[torch.Tensor]
    whose: weakref.ref[Seals]

    @classmethod
    def __torch_function__(cls, function: Any, _: Any, arguments: Any = (), options: Any = None) -> Any:
        """Allow reads of properties, dropping, and what the task declares; refuse every other use of the gradient."""
        name = getattr(function, "__name__", "")
        if gives_itself(function):
            return arguments[0]
        if name == "__get__" or name in _ASKS:
            found = plainly(function, arguments, options)
            if not isinstance(found, torch.Tensor):
                return found
        given = [one for one in flat(arguments) if isinstance(one, cls)]
        if name in _CHANGES_NOTHING or only_lays_out(name, arguments, options):
            return arguments[0]
        if name in _DROPPED_BY:
            for one in given:
                one.become_zero()
            rest = [one for one in flat(arguments) if not isinstance(one, cls)]
            return function(rest) if rest else None
        if name in _CONVERTS:
            raise OperationError(
                f"{given[0].variable} is to have another type or place, and the engine trains it as it was when "
                "training began (release(model) first, and parallelize with a bundle for the model as it is then)"
            )
        if any(one.is_zero for one in given):
            raise OperationError(
                f"the gradient of {given[0].variable} was set to zero after backward, and only the next backward pass "
                f"may use it; here {name} does (zero_grad() with its default set_to_none=True leaves no gradient)"
            )
        if given and _is_declared(name, given[0].seals.declared):
            return _as_declared(function, name, given, arguments, options)
        whole = {id(one): one.seals.whole.read(one.variable) for one in _sealed(arguments, options)}
        if whole and name != "__set__" and all(one is not None for one in whole.values()):
            return function(*replaced(arguments, whole), **replaced(options or {}, whole))
        raise OperationError(
            f"the gradient of {given[0].variable if given else 'a variable'} belongs to the engine until its update, "
            "and this rank does not have the whole of it now (clipping and loss scaling must be declared in the task "
            "that is tuned)"
        )

    @property
    def seals(self) -> Seals:
        """The `Seals` of its model."""
        found = self.whose()
        if found is None:
            raise OperationError(f"the gradient of {self.variable} is left over from training that has ended")
        return found

    def become_zero(self) -> None:
        """Leave the parameter with sealed zeros."""
        parameter = self.parameter()
        if parameter is not None and parameter.grad is self:
            parameter.grad = self.seals.zeros[self.variable]

    def __repr__(self, **_: Any) -> str:  # type: ignore[override]
        return f"<the gradient of {self.variable}, which is the engine's until its update>"


class SealedNorm(torch.Tensor):
    """The norm of some sealed gradients. Only the norm of all of them is known, which `clip_grad_norm_` asks for."""

    gradients: tuple[SealedGradient, ...]

    @classmethod
    def of(cls, gradients: Sequence[SealedGradient], order: float) -> SealedNorm:
        if order != 2.0:
            raise OperationError(
                f"the norm of order {order:g} of gradients that the engine clips by the norm of order 2"
            )
        made = torch.zeros((), dtype=gradients[0].dtype, device=gradients[0].device).as_subclass(cls)
        made.gradients = tuple(gradients)
        return made

    @classmethod
    def __torch_function__(cls, function: Any, _: Any, arguments: Any = (), options: Any = None) -> Any:
        """Allow norms to be stacked, and to have a norm if they cover all gradients; refuse everything else."""
        name = getattr(function, "__name__", "")
        if name == "to" or gives_itself(function):
            return arguments[0]
        if name == "__get__":
            found = plainly(function, arguments, options)
            if not isinstance(found, torch.Tensor):
                return found
        given = [one for one in flat(arguments) if isinstance(one, cls)]
        first = given[0].gradients[0]
        if name == "stack":
            if len(given) < len(arguments[0]):
                raise OperationError(
                    f"the norm of the gradient of {first.variable} together with that of others, and the task clips "
                    "the norm of the model's own gradients (clip the other parameters by themselves)"
                )
            return cls.of([gradient for one in given for gradient in one.gradients], 2.0)
        if name == _NORM and order_of_norm(arguments, options) == 2.0:
            return first.seals.norm(given[0].gradients)
        if all(len(one.gradients) == 1 for one in given):
            whole = {id(one): one.gradients[0].seals.whole.read(one.gradients[0].variable) for one in given}
            norms = {key: None if one is None else torch.linalg.vector_norm(one) for key, one in whole.items()}
            if all(one is not None for one in norms.values()):
                return function(*replaced(arguments, norms), **replaced(options or {}, norms))
        raise OperationError(
            f"the norm of the gradient of {first.variable} by itself: it is the engine's until its update, and no "
            "rank may hold the whole of it (clip_grad_norm_ gives the norm of all gradients together)"
        )

    def __repr__(self, **_: Any) -> str:  # type: ignore[override]
        return f"<the norm of {len(self.gradients)} gradients that are the engine's>"


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
        if gradient is None or isinstance(gradient, SealedGradient) or gradient.is_sparse:
            return False
        whole = self.whole.read(name)
        if whole is None:
            return False
        whole.copy_(gradient)
        return True

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


def is_there(gradient: torch.Tensor | None) -> bool:
    """Whether a parameter has a gradient that came from a backward pass, not sealed zeros."""
    return gradient is not None and not (isinstance(gradient, SealedGradient) and gradient.is_zero)


def _is_declared(name: str, declared: Declared) -> bool:
    """Whether a function does something that the task declares for all gradients."""
    return (declared.scales and name == _UNSCALES) or (declared.clips and name in _NORMS | _MULTIPLIES)


def _as_declared(function: Any, name: str, given: Sequence[SealedGradient], arguments: Any, options: Any) -> Any:
    if name == _UNSCALES:
        return _unscale(function, *arguments)
    if name in _MULTIPLIES:
        return _clip(function, given, arguments)
    order = order_of_norm(arguments, options)
    if name == _NORM:
        return SealedNorm.of(given, order)
    return [_norm_of(one, order) for one in arguments[0]]


def _norm_of(gradient: torch.Tensor, order: float) -> torch.Tensor:
    if isinstance(gradient, SealedGradient):
        return SealedNorm.of((gradient,), order)
    norm: torch.Tensor = torch.linalg.vector_norm(gradient, order)
    return norm


def _clip(function: Any, given: Sequence[SealedGradient], arguments: Any) -> Any:
    """Note that gradients are multiplied by a coefficient; do so with those among them that are the user's own."""
    for seals in dict.fromkeys(one.seals for one in given):
        if not seals.declared.clips:
            raise OperationError(f"the gradient of {given[0].variable}: one of the tasks does not declare clip_norm")
        seals.declared.clip(float(arguments[1]))
        seals.whole.scale(seals.declared.factor)
    if not isinstance(arguments[0], SealedGradient):
        rest = [one for one in arguments[0] if not isinstance(one, SealedGradient)]
        if rest:
            function(rest, arguments[1])
    return arguments[0]


def _unscale(function: Any, gradients: Sequence[torch.Tensor], found_inf: torch.Tensor, inverse: torch.Tensor) -> None:
    """Unscale an optimizer's gradients as a scaler does; some of them may be the user's own."""
    seals = [one for one in gradients if isinstance(one, SealedGradient)]
    for declared in dict.fromkeys(one.seals.declared for one in seals):
        if not declared.scales:
            raise OperationError(f"the gradient of {seals[0].variable}: one of the tasks does not declare loss_scaling")
        declared.unscale(found_inf, inverse)
    for one in seals:
        one.seals.whole.scale(one.seals.declared.factor)
    rest = [one for one in gradients if not isinstance(one, SealedGradient)]
    if rest:
        function(rest, found_inf, inverse)


def _sealed(arguments: Any, options: Any) -> list[SealedGradient]:
    return [one for one in flat((*arguments, *(options or {}).values())) if isinstance(one, SealedGradient)]
