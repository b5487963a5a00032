"""Predicts the parameters that a step uses: those of the modules that its forward passes call.

Some parameters are used without a call of their module: a weight that another module reads, a scripted or compiled
module, in which hooks do not run. The first step that uses such a parameter shows it, and from then on it is predicted
in every step.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, TypeAlias

import torch

from autosync.runtime.session.hooks import takes_hooks

_Names: TypeAlias = tuple[str, ...]


class CalledModules:
    """Notes which of some parameters (by name) belong to modules that were called since `forget`."""

    def __init__(self, model: torch.nn.Module, parameters: Mapping[str, torch.nn.Parameter]) -> None:
        names = {id(parameter): name for name, parameter in parameters.items()}
        self._called: set[_Names] = set()
        self._always: set[str] = set()
        self._hooks: list[Any] = []
        owned: set[str] = set()
        for module in model.modules():
            found = tuple(names[id(one)] for one in module.parameters(recurse=False) if id(one) in names)
            if found and takes_hooks(module):
                owned.update(found)
                self._hooks.append(module.register_forward_pre_hook(_Call(self._called, found)))
        self._always.update(name for name in parameters if name not in owned)

    def names(self) -> set[str]:
        """Return the parameters that are predicted to be used."""
        return self._always.union(*self._called)

    def add(self, names: Collection[str]) -> None:
        """Predict some parameters in every step from now on."""
        self._always.update(names)

    def forget(self) -> None:
        """Forget the calls, because a step's gradients are there."""
        self._called.clear()

    def close(self) -> None:
        """Remove the hooks."""
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()


class _Call:
    """A hook that notes a call of its module. A copy of it notes nothing, and neither does compiled code.

    A reentrant checkpoint calls modules without gradients first, so calls in training count whether they have them.
    """

    __slots__ = ("_called", "_names")

    def __init__(self, called: set[_Names] | None = None, names: _Names = ()) -> None:
        self._called = called
        self._names = names

    def __call__(self, module: torch.nn.Module, _: Any) -> None:
        if torch.compiler.is_compiling() or self._called is None:
            return
        if module.training or torch.is_grad_enabled():
            self._called.add(self._names)

    def __reduce__(self) -> tuple[type[_Call], tuple[()]]:
        return _Call, ()
