"""Hooks on users' objects: copies of these do not take them along, and what is compiled does not look into them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch


class Hook:
    """Calls a function with the arguments that it gets. A copy of it, deep or by pickling, does nothing.

    Where it is called in compiled code, it breaks the compiled graph, and calls `within_compiled` if there is one.
    """

    __slots__ = ("_apart", "_function")

    def __init__(
        self, function: Callable[..., Any] | None = None, *, within_compiled: Callable[..., Any] | None = None
    ) -> None:
        self._function = function
        self._apart: Any = None
        if function is not None:
            self._apart = torch.compiler.disable(within_compiled or function)  # type: ignore[no-untyped-call]

    def __call__(self, *arguments: Any) -> Any:
        if self._function is None:
            return None
        if torch.compiler.is_compiling():
            return self._apart(*arguments)
        return self._function(*arguments)

    def __reduce__(self) -> tuple[type[Hook], tuple[()]]:
        return Hook, ()


def drained_by(module: torch.nn.Module, drain: Callable[[], None]) -> list[Any]:
    """Have `drain` called before a module's parameters are saved, loaded, copied or pickled; hooks to remove."""
    hooks: list[Any] = [
        module.register_state_dict_pre_hook(Hook(lambda *_: drain())),  # type: ignore[no-untyped-call]
        module.register_load_state_dict_pre_hook(Hook(lambda *_: drain())),  # type: ignore[no-untyped-call]
    ]
    return [*hooks, _Reduced(module, drain)]


def when_loaded(module: torch.nn.Module, names: Iterable[str], hear: Callable[[str], None]) -> list[Any]:
    """Have `hear` called with the names of parameters that are about to be loaded; hooks to remove."""
    by_owner: dict[str, list[str]] = {}
    for name in names:
        by_owner.setdefault(name.rpartition(".")[0], []).append(name)

    def told(owned: list[str]) -> Hook:
        def tell(*_: Any) -> None:
            for name in owned:
                hear(name)

        return Hook(tell)

    return [
        module.get_submodule(owner).register_load_state_dict_pre_hook(told(owned))  # type: ignore[no-untyped-call]
        for owner, owned in by_owner.items()
    ]


class _Reduced:
    """How a module is copied and pickled: `copy` and `pickle` both ask the object itself, before anything is read."""

    def __init__(self, module: torch.nn.Module, drain: Callable[[], None]) -> None:
        def reduce(protocol: Any) -> Any:
            drain()
            reduced: Any = type(module).__reduce_ex__(module, protocol)
            made, arguments, state, *rest = reduced
            if isinstance(state, dict):
                state = {key: value for key, value in state.items() if value is not reduce}
            return made, arguments, state, *rest

        self._attributes = module.__dict__
        self._attributes["__reduce_ex__"] = reduce

    def remove(self) -> None:
        self._attributes.pop("__reduce_ex__", None)
