"""Sealed gradients: users find them in place of gradients that belong to the engine.

A sealed gradient has a shape and a type. Between backward and step, whatever reads or changes it gets a copy of the
gradient, if this rank has the whole of it (`whole_gradients`); else it is refused. `zero_grad` may drop it: then the
parameter has no gradient. It may set it to zero as well: then sealed zeros stand in its place, because they are zeros
in the next step if no rank uses their variable. And torch's own functions may do to it what the task declares for all
gradients, clipping and loss scaling, without a wait for every gradient: see `clipping_and_scaling`.

One object stands for a variable's gradients of all passes. If the script holds it when the gradient of another pass
comes, it keeps a copy of the old one for good, and a new object takes its place.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

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


class Sealing(Protocol):
    """What a seal asks of the seals of its model."""

    declared: Declared
    whole: WholeGradients

    @property
    def zeros(self) -> Mapping[str, SealedGradient]:
        """The seals that stand for zeros."""

    def norm(self, gradients: Sequence[SealedGradient]) -> torch.Tensor:
        """Return the norm of all gradients."""


class SealedGradient(torch.Tensor):
    """Stands for a variable's gradient from the end of backward until it is dropped. It takes no memory."""

    variable: str
    is_zero: bool
    # Of an earlier pass than the last one: the gradient of that pass, if this rank had the whole of it.
    is_past: bool = False
    kept: torch.Tensor | None = None
    parameter: weakref.ref[torch.Tensor]
    whose: weakref.ref[Sealing]

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
        if any(one.is_past for one in given):
            return _with_kept(function, given, arguments, options)
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
        if any(one.was_zeroed for one in given):
            raise OperationError(
                f"the gradient of {given[0].variable} was set to zero after backward, and only the next backward pass "
                f"may use it; here {name} does (zero_grad() with its default set_to_none=True leaves no gradient)"
            )
        if given and _is_declared(name, given[0].seals.declared):
            return _as_declared(function, name, given, arguments, options)
        whole = {id(one): one.read() for one in _sealed(arguments, options)}
        if whole and name != "__set__" and all(one is not None for one in whole.values()):
            return function(*replaced(arguments, whole), **replaced(options or {}, whole))
        raise OperationError(
            f"the gradient of {given[0].variable if given else 'a variable'} belongs to the engine until its update, "
            "and this rank does not have the whole of it now (clipping and loss scaling must be declared in the task "
            "that is tuned)"
        )

    @property
    def seals(self) -> Sealing:
        """The seals of its model."""
        found = self.whose()
        if found is None:
            raise OperationError(f"the gradient of {self.variable} is left over from training that has ended")
        return found

    @property
    def was_zeroed(self) -> bool:
        """Whether the script has set this gradient to zero."""
        parameter = self.parameter()
        found = None if parameter is None else parameter.grad
        return self.is_zero or (isinstance(found, SealedGradient) and found.is_zero)

    def read(self) -> torch.Tensor | None:
        """Return a copy of the gradient, the same one each time; None if this rank does not have the whole of it."""
        return self.kept if self.is_past else self.seals.whole.read(self.variable)

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
            whole = {id(one): one.gradients[0].read() for one in given}
            norms = {key: None if one is None else torch.linalg.vector_norm(one) for key, one in whole.items()}
            if all(one is not None for one in norms.values()):
                return function(*replaced(arguments, norms), **replaced(options or {}, norms))
        raise OperationError(
            f"the norm of the gradient of {first.variable} by itself: it is the engine's until its update, and no "
            "rank may hold the whole of it (clip_grad_norm_ gives the norm of all gradients together)"
        )

    def __repr__(self, **_: Any) -> str:  # type: ignore[override]
        return f"<the norm of {len(self.gradients)} gradients that are the engine's>"


def is_there(gradient: torch.Tensor | None) -> bool:
    """Whether a parameter has a gradient that came from a backward pass, not sealed zeros."""
    return gradient is not None and not (isinstance(gradient, SealedGradient) and gradient.is_zero)


def _with_kept(function: Any, given: Sequence[SealedGradient], arguments: Any, options: Any) -> Any:
    """Call a function with the gradients of earlier passes that the script has held."""
    kept = {id(one): one.kept for one in given if one.is_past}
    for one in given:
        if one.is_past and one.kept is None:
            raise OperationError(
                f"the gradient of {one.variable} is that of an earlier backward pass. It belongs to the engine until "
                "its update, and this rank has not got the whole of it (strategies in which the user's optimizer "
                "updates, as preset ddp, leave gradients to the script)"
            )
    return function(*replaced(arguments, kept), **(options or {}))


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
