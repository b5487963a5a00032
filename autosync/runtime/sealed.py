"""The gradient that users find while theirs is the engine's: it has a shape and a type, and refuses all else.

It may be thrown away, by `zero_grad` of either kind: then the parameter has none.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from typing import Any

import torch

from autosync.errors import OperationError

_DROPPED_BY = frozenset({"zero_", "_foreach_zero_"})
_CHANGES_NOTHING = frozenset({"detach_", "requires_grad_"})


class SealedGradient(torch.Tensor):
    """Stands for a variable's gradient from the end of backward until it is thrown away, and takes no memory."""

    variable: str
    parameter: weakref.ref[torch.Tensor]

    @classmethod
    def __torch_function__(cls, function: Any, _: Any, arguments: Any = (), options: Any = None) -> Any:
        """Properties can be read; whatever would compute with the gradient, or change it, is refused."""
        name = getattr(function, "__name__", "")
        if name == "__get__":
            with torch._C.DisableTorchFunctionSubclass():  # noqa: SLF001 - the documented way to define such classes
                return function(*arguments, **(options or {}))
        given = [one for one in _flat(arguments) if isinstance(one, cls)]
        if name in _CHANGES_NOTHING:
            return arguments[0]
        if name in _DROPPED_BY:
            for one in given:
                one.drop()
            rest = [one for one in _flat(arguments) if not isinstance(one, cls)]
            return function(rest) if rest else None
        raise OperationError(
            f"the gradient of {given[0].variable if given else 'a variable'} belongs to the engine until its update, "
            "and no rank may hold the whole of it (clipping and loss scaling must be declared in the task that is "
            "tuned)"
        )

    def drop(self) -> None:
        """Leave the parameter without a gradient."""
        parameter = self.parameter()
        if parameter is not None and parameter.grad is self:
            parameter.grad = None

    def __repr__(self, **_: Any) -> str:  # type: ignore[override]
        return f"<the gradient of {self.variable}, which is the engine's until its update>"


def sealed(name: str, parameter: torch.Tensor) -> SealedGradient:
    """The sealed gradient of a parameter."""
    made = parameter.detach().new_zeros(()).expand(parameter.shape).as_subclass(SealedGradient)
    made.variable = name
    made.parameter = weakref.ref(parameter)
    return made


class Seals:
    """What users find for the gradients of the engine's variables.

    Between backward and step the engine has them: there they are sealed, or, if `are_hidden`, None. After the step they
    are sealed until somebody throws them away, as DDP's are there until then: nothing is added to what was not zeroed.
    What is in none of the `optimizer`'s groups nobody zeroes.
    """

    def __init__(
        self, parameters: Mapping[str, torch.nn.Parameter], optimizer: torch.optim.Optimizer, *, are_hidden: bool
    ) -> None:
        self._parameters = parameters
        self._are_hidden = are_hidden
        self._all = {name: sealed(name, parameter) for name, parameter in parameters.items()}
        updated = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
        self._updated = [name for name, parameter in parameters.items() if id(parameter) in updated]
        self._lifted: list[str] = []

    def seal(self) -> None:
        """Backward has returned."""
        for name, parameter in self._parameters.items():
            parameter.grad = None if self._are_hidden else self._all[name]

    def remove(self) -> None:
        """The step begins: the user's optimizer skips a parameter without a gradient. What was changed is refused."""
        for name, parameter in self._parameters.items():
            if parameter.grad is not (None if self._are_hidden else self._all[name]):
                done = "thrown away" if parameter.grad is None else "replaced"
                raise OperationError(
                    f"the gradient of {name} was {done} after backward, when the engine had it to update with "
                    "(zero_grad comes before backward; gradients are changed by operations that the task declares)"
                )
        self.clear()

    def put_back(self) -> None:
        """The step is done."""
        for name in self._updated:
            self._parameters[name].grad = self._all[name]

    def lift(self) -> None:
        """A backward pass has begun, which could not add to seals."""
        for name, parameter in self._parameters.items():
            if parameter.grad is self._all[name]:
                parameter.grad = None
                self._lifted.append(name)

    def refuse_lifted(self) -> None:
        """Gradients come: they would be added to those that there were."""
        if self._lifted:
            raise OperationError(
                f"the gradient of {self._lifted[0]} is that of the last step, to which nothing can be added: it is "
                "where the variable is updated (call optimizer.zero_grad() before backward)"
            )

    def restore(self) -> None:
        """A backward pass has ended that brought no gradients."""
        for name in self._lifted:
            self._parameters[name].grad = self._all[name]
        self._lifted.clear()

    def clear(self) -> None:
        """Leave no seals."""
        for name, parameter in self._parameters.items():
            if parameter.grad is self._all[name]:
                parameter.grad = None


def _flat(values: Any) -> Any:
    for value in values:
        if isinstance(value, list | tuple):
            yield from _flat(value)
        else:
            yield value
