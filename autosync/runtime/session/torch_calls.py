"""Reads the calls of torch's functions that a class of tensors gets, as arguments of `__torch_function__`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch


def gives_itself(function: Any) -> bool:
    """Whether a function reads a property that is the same real tensor, without a graph or as its real part."""
    owner = getattr(function, "__self__", None)
    return function.__name__ == "__get__" and (owner is torch.Tensor.data or owner is torch.Tensor.real)


def only_lays_out(name: str, arguments: Any, options: Any) -> bool:
    """Whether a function only gives a model another memory layout, which leaves sealed gradients as they are."""
    if name == "__set__":
        return len(arguments) == 2 and arguments[0] is arguments[1]
    if name == "cpu":
        return bool(arguments[0].device.type == "cpu")
    if name != "to":
        return False
    dtype, device = arguments[0].dtype, arguments[0].device
    return not any(
        (isinstance(one, str | torch.device) and torch.device(one) not in (device, torch.device(device.type)))
        or (isinstance(one, torch.dtype) and one != dtype)
        for one in (*arguments[1:], *(options or {}).values())
    )


def replaced(values: Any, by: Mapping[int, torch.Tensor | None]) -> Any:
    """Return arguments with other tensors in place of some."""
    if isinstance(values, dict):
        return {key: replaced(value, by) for key, value in values.items()}
    if isinstance(values, list | tuple):
        return type(values)(replaced(value, by) for value in values)
    return by.get(id(values), values)


def order_of_norm(arguments: Any, options: Any) -> float:
    """Return the order that a call of `linalg.vector_norm` or `_foreach_norm` asks for."""
    return float(arguments[1] if len(arguments) > 1 else (options or {}).get("ord", 2.0))


def plainly(function: Any, arguments: Any, options: Any) -> Any:
    """Call a function as if its tensors were of no class of ours."""
    with torch._C.DisableTorchFunctionSubclass():  # noqa: SLF001 - the documented way to define such classes
        return function(*arguments, **(options or {}))


def flat(values: Any) -> Iterator[Any]:
    """Yield values, and in place of lists and tuples their values."""
    for value in values:
        if isinstance(value, list | tuple):
            yield from flat(value)
        else:
            yield value
