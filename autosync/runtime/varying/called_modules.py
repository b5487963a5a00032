"""Predicts the parameters that a step uses: those of the modules that its forward passes call.

Some parameters are used without a call of their module: a weight that another module reads, or one in a scripted or
compiled module, in which hooks do not run. The first step that uses such a parameter shows it. From then on it is
predicted whenever the nearest module around it that was called is called again, or in every step if there is none.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import torch

from autosync.runtime.session.hooks import takes_hooks


class CalledModules:
    """Notes which modules of a model were called since `forget`, and predicts the use of some parameters (by name)."""

    def __init__(self, model: torch.nn.Module, parameters: Mapping[str, torch.nn.Parameter]) -> None:
        names = {id(parameter): name for name, parameter in parameters.items()}
        # The numbers of modules that were called, and what a call of each predicts.
        self._called: set[int] = set()
        self._predicts: list[set[str]] = []
        self._always: set[str] = set()
        self._numbers: dict[str, int] = {}
        self._hooks: list[Any] = []
        for path, module in model.named_modules():
            found = {names[id(one)] for one in module.parameters(recurse=False) if id(one) in names}
            if takes_hooks(module):
                self._numbers[path] = len(self._predicts)
                self._hooks.append(module.register_forward_pre_hook(_Call(self._called, len(self._predicts))))
                self._predicts.append(found)
            else:
                for name in found:
                    self._predict_around(name, self._numbers.values())

    def names(self) -> set[str]:
        """Return the parameters that are predicted to be used."""
        return self._always.union(*(self._predicts[number] for number in self._called))

    def learn(self, names: Collection[str]) -> None:
        """Learn from parameters that were used since `forget`, although they were not predicted."""
        for name in names:
            self._predict_around(name, self._called)

    def forget(self) -> None:
        """Forget the calls, because a step's gradients are there."""
        self._called.clear()

    def close(self) -> None:
        """Remove the hooks."""
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()

    def _predict_around(self, name: str, numbers: Collection[int]) -> None:
        """Predict a parameter with the calls of the nearest module around it that is among `numbers`."""
        path = name.rpartition(".")[0]
        while self._numbers.get(path) not in numbers:
            if not path:
                self._always.add(name)
                return
            path = path.rpartition(".")[0]
        self._predicts[self._numbers[path]].add(name)


class _Call:
    """A hook that notes a call of its module. A copy of it notes nothing, and neither does compiled code.

    A reentrant checkpoint calls modules without gradients first, so calls in training count whether they have them.
    """

    __slots__ = ("_called", "_number")

    def __init__(self, called: set[int] | None = None, number: int = 0) -> None:
        self._called = called
        self._number = number

    def __call__(self, module: torch.nn.Module, _: Any) -> None:
        if torch.compiler.is_compiling() or self._called is None:
            return
        if module.training or torch.is_grad_enabled():
            self._called.add(self._number)

    def __reduce__(self) -> tuple[type[_Call], tuple[()]]:
        return _Call, ()
