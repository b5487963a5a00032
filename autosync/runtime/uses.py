"""Where in the forward pass a model uses each parameter first, so that a use can wait for the parameter's update.

Found by watching one forward pass: a parameter counts as used when a torch function gets it, or, for those that no
torch function gets (custom autograd functions hide them), when the module that owns it is called. Later passes wait at
the call of the module in which that was; what was not seen at all waits at the start of the pass.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

Hear = Callable[[tuple[int, ...]], None]


class Uses:
    """Calls `hear` with the variables that are about to be used, each once in a forward pass at the latest at its use.

    In the pass that is watched `hear` is called with all variables, at its start.
    """

    def __init__(self, model: nn.Module, variables: Mapping[str, nn.Parameter], hear: Hear) -> None:
        self._model = model
        self._hear = hear
        self._numbers = {id(parameter): number for number, parameter in enumerate(variables.values())}
        self._all = tuple(self._numbers.values())
        self._hooks: list[Any] = []
        self._watch: _Watch | None = None
        self._calls: list[nn.Module] = []
        self._first: dict[int, nn.Module] = {}
        self._owned: dict[int, nn.Module] = {}
        self._is_known = False
        self._start_watching()

    @property
    def is_known(self) -> bool:
        """Whether a pass has been watched."""
        return self._is_known

    def close(self) -> None:
        """Take the hooks away."""
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()
        if self._watch is not None:
            self._stop_watching()

    def _start_watching(self) -> None:
        # Functions, not methods: a deep copy of the model copies its hooks, and methods with all that they belong to.

        def enter(module: nn.Module, arguments: Any) -> None:
            self._enter(module, arguments)

        def leave(module: nn.Module, arguments: Any, result: Any) -> None:
            self._leave(module, arguments, result)

        for module in self._model.modules():
            self._hooks.append(module.register_forward_pre_hook(enter))
            self._hooks.append(module.register_forward_hook(leave, always_call=True))

    def _enter(self, module: nn.Module, _: Any) -> None:
        if not self._calls:
            if module is not self._model:
                return
            self._hear(self._all)
            self._watch = _Watch(self._see)
            self._watch.__enter__()  # type: ignore[no-untyped-call]
        self._calls.append(module)
        for parameter in module.parameters(recurse=False):
            number = self._numbers.get(id(parameter))
            if number is not None:
                self._owned.setdefault(number, module)

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
                self._first.setdefault(number, self._calls[-1])

    def _begin_waiting(self) -> None:
        """From the next pass on each module waits for what it was the first to use."""
        self._is_known = True
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()
        waiting: dict[nn.Module, list[int]] = {}
        for number in self._all:
            module = self._first.get(number) or self._owned.get(number) or self._model
            waiting.setdefault(module, []).append(number)
        for module, numbers in waiting.items():
            self._hooks.append(
                module.register_forward_pre_hook(_waiting_hook(self._hear, tuple(numbers)), prepend=True)
            )


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


def _waiting_hook(hear: Hear, numbers: tuple[int, ...]) -> Callable[[nn.Module, Any], None]:
    def wait(_: nn.Module, __: Any) -> None:
        hear(numbers)

    return wait
