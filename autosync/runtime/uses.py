"""Where in the forward pass a model uses each parameter, so that a use can wait for the parameter's update.

Found by watching one forward pass: a parameter counts as used when a torch function gets it, or, for those that no
torch function gets (custom autograd functions hide them), when a module that owns it is called. Later passes wait at
the call of every module in which that was, and of every module that owns it, for modules can be called apart. What was
not seen at all waits at the start of the pass. A module that called the first user waits for nothing in its stead.

What is compiled cannot be watched within: where a pass calls such modules, later passes wait for everything at their
start. A hook within is a break in the compiled graph, which is slow, and right.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from autosync.runtime.hooks import Hook

Hear = Callable[[tuple[int, ...]], None]


class Uses:
    """Calls `hear` with the variables that are about to be used, in every forward pass before their use.

    In the pass that is watched `hear` is called with all variables, at its start.
    """

    def __init__(self, model: nn.Module, variables: Mapping[str, nn.Parameter], hear: Hear) -> None:
        self._model = model
        self._hear = hear
        self._numbers = {id(parameter): number for number, parameter in enumerate(variables.values())}
        self._all = tuple(self._numbers.values())
        self._hooks: dict[nn.Module, Any] = {}
        self._leaving: list[Any] = []
        self._watch: _Watch | None = None
        self._calls: list[nn.Module] = []
        self._called: set[nn.Module] = set()
        self._first_calls: dict[int, tuple[nn.Module, ...]] = {}
        self._users: dict[int, set[nn.Module]] = {}
        self._awaited: dict[nn.Module, tuple[int, ...]] = {}
        self._has_compiled = False
        self._is_known = False
        self._start_watching()

    @property
    def is_known(self) -> bool:
        """Whether a pass has been watched."""
        return self._is_known

    def close(self) -> None:
        """Take the hooks away."""
        for hook in (*self._hooks.values(), *self._leaving):
            hook.remove()
        self._hooks.clear()
        self._leaving.clear()
        if self._watch is not None:
            self._stop_watching()

    def _start_watching(self) -> None:
        for module in self._model.modules():
            enter = Hook(self._enter, within_compiled=self._enter_compiled)
            self._hooks[module] = module.register_forward_pre_hook(enter, prepend=True)
            self._leaving.append(module.register_forward_hook(Hook(self._leave), always_call=True))

    def _enter_compiled(self, module: nn.Module, arguments: Any) -> None:
        self._has_compiled = True
        self._enter(module, arguments)

    def _enter(self, module: nn.Module, _: Any) -> None:
        if self._is_known:
            # Compiled code may have kept a hook that is gone; there is nothing to wait for.
            self._hear(self._awaited[module])
            return
        if not self._calls:
            if module is not self._model:
                return
            self._hear(self._all)
            self._watch = _Watch(self._see)
            self._watch.__enter__()  # type: ignore[no-untyped-call]
        self._called.add(module)
        self._calls.append(module)

    def _leave(self, module: nn.Module, _: Any, result: Any) -> None:
        if not self._calls:
            return
        self._calls.pop()
        if module is self._model and not self._calls:
            self._stop_watching()
            # A pass that raised has no result, and has not shown everything.
            if result is not None:
                self._begin_waiting()

    def _stop_watching(self) -> None:
        if self._watch is not None:
            self._watch.__exit__(None, None, None)  # type: ignore[no-untyped-call]
            self._watch = None

    def _see(self, tensors: Iterable[Any]) -> None:
        for tensor in tensors:
            number = self._numbers.get(id(tensor))
            if number is not None and self._calls:
                self._first_calls.setdefault(number, tuple(self._calls))
                self._users.setdefault(number, set()).add(self._calls[-1])

    def _begin_waiting(self) -> None:
        """From the next pass on each module waits for what it uses or owns, and the model for all else."""
        seen = set(self._first_calls)
        for module in self._model.modules():
            owned = {self._numbers[id(p)] for p in module.parameters(recurse=False) if id(p) in self._numbers}
            used = {number for number, users in self._users.items() if module in users}
            self._awaited[module] = tuple(
                n for n in self._all if n in owned | used and not self._calls_first(module, n)
            )
            if module in self._called:
                seen.update(owned)
        if self._has_compiled:
            seen.clear()
        at_start = [number for number in self._all if number not in seen]
        self._awaited[self._model] = tuple(dict.fromkeys([*at_start, *self._awaited[self._model]]))
        for hook in self._leaving:
            hook.remove()
        self._leaving.clear()
        for module in [module for module in self._hooks if not self._awaited[module]]:
            self._hooks.pop(module).remove()
        self._is_known = True

    def _calls_first(self, module: nn.Module, number: int) -> bool:
        """Whether a module is not itself the first user of a variable, but the caller of it."""
        *callers, first = self._first_calls.get(number, (module,))
        return module in callers and module is not first


class _Watch(TorchFunctionMode):
    """Tells of the tensors that torch functions get."""

    def __init__(self, see: Callable[[Iterable[Any]], None]) -> None:
        super().__init__()
        self._see = see

    def __torch_function__(
        self, function: Any, _: Any, arguments: tuple[Any, ...] = (), options: dict[str, Any] | None = None
    ) -> Any:
        options = options or {}
        self._see(_flat((*arguments, *options.values())))
        return function(*arguments, **options)


def _flat(values: Iterable[Any]) -> Iterable[Any]:
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, list | tuple):
            yield from _flat(value)
