"""The gradient that users find while theirs is the engine's: it has a shape and a type, and refuses all else."""

from __future__ import annotations

from typing import Any

import torch

from autosync.errors import OperationError


class SealedGradient(torch.Tensor):
    """Stands for a variable's gradient from the end of backward to the update, and takes no memory."""

    variable: str

    @classmethod
    def __torch_function__(cls, function: Any, _: Any, arguments: Any = (), options: Any = None) -> Any:
        """Properties can be read; whatever would compute with the gradient, or change it, is refused."""
        if getattr(function, "__name__", "") == "__get__":
            with torch._C.DisableTorchFunctionSubclass():  # noqa: SLF001 - the documented way to define such classes
                return function(*arguments, **(options or {}))
        name = next((one.variable for one in _flat(arguments) if isinstance(one, cls)), "a variable")
        raise OperationError(
            f"the gradient of {name} belongs to the engine until its update, and no rank may hold the whole of it "
            "(clipping and loss scaling must be declared in the task that is tuned)"
        )

    def __repr__(self, **_: Any) -> str:  # type: ignore[override]
        return f"<the gradient of {self.variable}, which is the engine's until its update>"


def sealed(name: str, parameter: torch.Tensor) -> SealedGradient:
    """The sealed gradient of a parameter."""
    made = parameter.detach().new_zeros(()).expand(parameter.shape).as_subclass(SealedGradient)
    made.variable = name
    return made


def _flat(values: Any) -> Any:
    for value in values:
        if isinstance(value, list | tuple):
            yield from _flat(value)
        else:
            yield value
