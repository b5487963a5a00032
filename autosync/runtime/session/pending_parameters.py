"""Parameters whose updates are under way: whatever reads or writes one waits until its update is done.

When transfers overlap the next forward pass, `step()` returns before the updates are made. One rule covers all that a
script may do then: any access to a parameter sees its finished value, or raises the error that kept it from finishing.

**How.** While a parameter's update is under way, the parameter has another class, which is a subclass of its own. torch
gives every function that gets such a tensor to the class first (`__torch_function__`): in a module's forward, in a
functional call, in a list for `torch._foreach_*`, as `p.data`, in an average of weights, on whatever thread. There the
access waits, the parameter gets its own class back, and the function is called as it was. What tells of shapes, types
and gradients alone does not wait: `zero_grad` comes right after the step.

**What torch does not tell of** is waited for earlier. C++ code can take a parameter past torch's Python interface: so a
module that is called waits for the parameters that it owns, and parameters of scripted modules are waited for in the
step itself. Other tensors can share a parameter's memory, as `p.data` that was kept: torch counts what holds a memory,
and a parameter that shares its memory is waited for in the step. So are all parameters once the process has compiled
code, which takes parameters as they are.
"""

from __future__ import annotations

import copy
import functools
import sys
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import nn

from autosync.runtime.session.hooks import Hook, takes_hooks

Wait = Callable[[int], None]
"""Waits until a variable (by position) is updated; raises what kept it from that."""

_ASKS_ATTRIBUTE = frozenset({
    "_backward_hooks", "_post_accumulate_grad_hooks", "_version", "device", "dtype", "grad", "grad_dtype", "grad_fn",
    "is_cpu", "is_cuda", "is_leaf", "is_meta", "is_mkldnn", "is_mps", "is_nested", "is_quantized", "is_sparse",
    "is_sparse_csr", "is_xpu", "itemsize", "layout", "name", "names", "nbytes", "ndim", "output_nr", "requires_grad",
    "retains_grad", "shape",
})  # fmt: skip
"""Properties of a tensor that say nothing of its values. What is in none of these lists waits."""

_ASKS = frozenset({
    "dim", "dim_order", "element_size", "empty_like", "full_like", "get_device", "has_names", "is_complex",
    "is_contiguous", "is_floating_point", "is_inference", "is_same_size", "is_signed", "ndimension", "nelement",
    "numel", "ones_like", "rand_like", "randn_like", "register_hook", "register_post_accumulate_grad_hook",
    "requires_grad_", "retain_grad", "size", "storage_offset", "stride", "zeros_like",
})  # fmt: skip
"""The same of functions."""

# Modules that hand the parameters of modules within them to torch's fast paths when they are not in training.
_REACH_WITHIN = (nn.MultiheadAttention, nn.TransformerEncoderLayer, nn.TransformerEncoder)

# What torch says holds the memory of a parameter that shares it with no other tensor: the parameter, and who asks.
_NUM_OWN_HOLDERS = 2

_PENDING: dict[int, tuple[Awaited, int]] = {}
"""The parameters whose updates are under way, by `id`: whose they are, and their position."""

_engine = threading.local()


def pass_this_thread() -> None:
    """The calling thread is an engine's: it makes the updates that others wait for."""
    _engine.passes = True


class Awaited:
    """Has accesses to a model's parameters wait, from `begin` until each is updated.

    `holders` says how many tensors of the engine's own share a variable's memory. `hear` is told of each variable that
    something else than a module's call may have changed meanwhile. Where `is_finished`, updates are finished when
    `begin` is called, and accesses are only heard of until the model is called.
    """

    def __init__(
        self,
        model: nn.Module,
        variables: Mapping[str, nn.Parameter],
        wait: Wait,
        *,
        holders: Mapping[str, int],
        hear: Callable[[int], None] | None = None,
        is_finished: bool = False,
    ) -> None:
        self._parameters = list(variables.values())
        self._wait = wait
        self._hear = hear
        self._is_finished = is_finished
        self._holders = [_NUM_OWN_HOLDERS + holders.get(name, 0) for name in variables]
        self._lock = threading.RLock()
        self._is_compiled = hasattr(model, "_orig_mod")
        self._hears_of_compiling = False
        numbers = {id(parameter): number for number, parameter in enumerate(self._parameters)}
        self._scripted = {
            numbers[id(p)] for module in _scripted(model) for p in module.parameters() if id(p) in numbers
        }
        self._hooks: list[Any] = []
        for module in model.modules():
            reach = isinstance(module, _REACH_WITHIN)
            owned = [numbers[id(p)] for p in module.parameters(recurse=reach) if id(p) in numbers]
            if (owned or module is model) and takes_hooks(module):
                enter = functools.partial(self._enter, tuple(owned), module is model)
                hook = Hook(enter, within_compiled=functools.partial(self._enter_compiled, enter))
                self._hooks.append(module.register_forward_pre_hook(hook, prepend=True))

    def close(self) -> None:
        """Take the hooks away and give parameters their own classes back, updated or not."""
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()
        for parameter in self._parameters:
            _give_back(parameter)
        if self._hears_of_compiling:
            _callbacks().start_callbacks.remove(self._compiling)

    def shared(self) -> frozenset[int]:
        """The variables whose memory other tensors share, which can be read without a word. Nothing is under way."""
        return frozenset(
            number
            for number, (parameter, holders) in enumerate(zip(self._parameters, self._holders, strict=True))
            if _num_holders(parameter) > holders
        )

    def begin(self, shared: Collection[int] = ()) -> None:
        """The step is called: updates are under way. Those of the variables in `shared` are waited for now."""
        self._hear_of_compiling()
        if self._hear is not None:
            for number in shared:
                self._hear(number)
        if self._is_compiled:
            shared = range(len(self._parameters))
        for number, parameter in enumerate(self._parameters):
            if number in shared or number in self._scripted:
                self._wait(number)
            else:
                _PENDING[id(parameter)] = (self, number)
                parameter.__class__ = _awaited_class(type(parameter))

    def access(self, number: int) -> None:
        """The script gets a variable's parameter, to read it or to change it."""
        if self._hear is not None:
            self._hear(number)
        self.settle((number,))

    def settle(self, numbers: Iterable[int] | None = None) -> None:
        """Wait for variables; by default for all."""
        for number in range(len(self._parameters)) if numbers is None else numbers:
            parameter = self._parameters[number]
            if id(parameter) in _PENDING:
                with self._lock:
                    if id(parameter) in _PENDING:
                        self._wait(number)
                        _give_back(parameter)

    def _enter(self, owned: tuple[int, ...], is_model: bool, module: nn.Module, _: Any) -> None:  # noqa: FBT001 - bound in advance
        self.settle(None if is_model and (self._is_finished or not module.training) else owned)

    def _enter_compiled(self, enter: Callable[..., None], *arguments: Any) -> None:
        self._is_compiled = True
        enter(*arguments)

    def _hear_of_compiling(self) -> None:
        """Code that is compiled from now on must not find parameters of another class."""
        handler = None if self._hears_of_compiling else _callbacks()
        if handler is not None:
            handler.register_start_callback(self._compiling)
            self._hears_of_compiling = True

    def _compiling(self, *_: Any) -> None:
        self._is_compiled = True
        self.settle()


def _scripted(model: nn.Module) -> Iterator[nn.Module]:
    return (module for module in model.modules() if not takes_hooks(module))


def _callbacks() -> Any:
    """torch's list of who hears of compiling; None as long as nothing has asked to compile."""
    module = sys.modules.get("torch._dynamo.callback")
    return getattr(module, "callback_handler", None)


def _num_holders(parameter: torch.Tensor) -> int:
    count: int = torch._C._storage_Use_Count(parameter.untyped_storage()._cdata)  # noqa: SLF001 - torch has no other way to ask
    return count


def _give_back(parameter: torch.Tensor) -> None:
    if _PENDING.pop(id(parameter), None) is not None:
        parameter.__class__ = type(parameter).__mro__[2]


class _Waits:
    """What a parameter does while its update is under way: see the module's docstring."""

    __slots__ = ()

    @classmethod
    def __torch_function__(cls, function: Any, _: Any, arguments: Any = (), options: Any = None) -> Any:
        options = options or {}
        if getattr(_engine, "passes", False) or _only_asks(function):
            with torch._C.DisableTorchFunctionSubclass():  # noqa: SLF001 - the documented way to define such classes
                return function(*arguments, **options)
        if not _settle_among((*arguments, *options.values())):
            # It is in some container that we do not know.
            _settle_all()
        return function(*arguments, **options)

    def __deepcopy__(self, memo: Any) -> Any:
        _settle_among((self,))
        return copy.deepcopy(self, memo)

    def __reduce_ex__(self, protocol: Any) -> Any:
        _settle_among((self,))
        return self.__reduce_ex__(protocol)


def _only_asks(function: Any) -> bool:
    name = getattr(function, "__name__", "")
    if name in ("__get__", "__set__"):
        return getattr(getattr(function, "__self__", None), "__name__", "") in _ASKS_ATTRIBUTE
    return name in _ASKS


def _settle_among(values: Iterable[Any]) -> bool:
    """Wait for all parameters among some values; whether there was one."""
    found = False
    for value in values:
        if isinstance(value, torch.Tensor):
            pending = _PENDING.get(id(value))
            if pending is not None:
                one, number = pending
                one.access(number)
                found = True
        elif isinstance(value, list | tuple | set | frozenset):
            found |= _settle_among(value)
        elif isinstance(value, Mapping):
            found |= _settle_among(value.values())
    return found


def _settle_all() -> None:
    for one, number in list(_PENDING.values()):
        one.access(number)


@functools.cache
def _awaited_class(kind: type[torch.Tensor]) -> Any:
    """A subclass of a parameter's class, whose instances wait before they are used."""
    return type(f"Awaited{kind.__name__}", (_Waits, kind), {"__doc__": "A parameter whose update is under way."})
