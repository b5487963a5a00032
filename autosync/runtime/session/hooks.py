"""Hooks on users' objects: copies of the objects do not carry them along, and compiled code does not trace them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch

from autosync.specs.profile.inert_hook import as_nothing


class Hook:
    """Calls a function with the arguments that it gets. A copy of it, deep or by pickling, does nothing.

    In compiled code it breaks the compiled graph, and calls `within_compiled` instead if that is given.
    """

    __slots__ = ("_apart", "_function")

    def __init__(self, function: Callable[..., Any], *, within_compiled: Callable[..., Any] | None = None) -> None:
        self._function = function
        self._apart: Any = torch.compiler.disable(within_compiled or function)  # type: ignore[no-untyped-call]

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        if torch.compiler.is_compiling():
            return self._apart(*arguments, **options)
        return self._function(*arguments, **options)

    def __reduce__(self) -> tuple[Any, ...]:
        return as_nothing()


def takes_hooks(module: torch.nn.Module) -> bool:
    """Whether torch can put hooks on a module; on scripted modules it cannot."""
    return not isinstance(module, torch.jit.ScriptModule)


def when_loaded(module: torch.nn.Module, names: Iterable[str], hear: Callable[[str], None]) -> list[Any]:
    """Call `hear` with the names of parameters before they are loaded. Return the hooks that do so."""
    by_owner: dict[str, list[str]] = {}
    for name in names:
        owner = name.rpartition(".")[0]
        while owner and not takes_hooks(module.get_submodule(owner)):
            owner = owner.rpartition(".")[0]
        by_owner.setdefault(owner, []).append(name)

    def told(owned: list[str]) -> Hook:
        def tell(*_: Any) -> None:
            for name in owned:
                hear(name)

        return Hook(tell)

    return [
        module.get_submodule(owner).register_load_state_dict_pre_hook(told(owned))  # type: ignore[no-untyped-call]
        for owner, owned in by_owner.items()
    ]
