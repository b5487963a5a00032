"""Parameters whose updates are under way: anything that reads or writes one of them waits for its update.

When transfers overlap the next forward pass, `step()` returns before the updates are made. One rule covers everything
that a script may do then: any access to a parameter sees its finished value, or raises the error that prevented it.

**How.** While a parameter's update is under way, the parameter has another class, a subclass of its own. torch passes
every function that gets such a tensor to the class first (`__torch_function__`): in a module's forward, in a functional
call, in a list for `torch._foreach_*`, as `p.data`, in an average of weights, on any thread. There the access waits,
the parameter gets its own class back, and the function is called as it was. Functions that only ask for shapes, types
and gradients do not wait: `zero_grad` comes right after the step.

**Accesses that torch does not report** are waited for earlier. C++ code can read a parameter without torch's Python
interface. So a module that is called waits for the parameters that it owns, and the step itself waits for the
parameters of scripted modules. Other objects can share a parameter's memory, such as a `p.data` or a storage that was
kept: torch counts the tensors that hold a memory, Python counts the references to its storage, and the step waits for
parameters whose memory is shared. It waits for all parameters once the process has compiled code, which reads
parameters directly. The transforms of `torch.func` are watched where they take a tensor: see `functional_transforms`.
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

from autosync.runtime.session.functional_transforms import WatchedTransforms
from autosync.runtime.session.hooks import Hook, takes_hooks

Wait = Callable[[int], None]
"""Waits until a variable (by position) is updated; raises the error that prevented the update."""

_ASKS_ATTRIBUTE = frozenset({
    "_backward_hooks", "_post_accumulate_grad_hooks", "_version", "device", "dtype", "grad", "grad_dtype", "grad_fn",
    "is_cpu", "is_cuda", "is_leaf", "is_meta", "is_mkldnn", "is_mps", "is_nested", "is_quantized", "is_sparse",
    "is_sparse_csr", "is_xpu", "itemsize", "layout", "name", "names", "nbytes", "ndim", "output_nr", "requires_grad",
    "retains_grad", "shape",
})  # fmt: skip
"""Properties of a tensor that tell nothing of its values. Accesses that are not in these two lists wait."""

_ASKS = frozenset({
    "dim", "dim_order", "element_size", "empty_like", "full_like", "get_device", "has_names", "is_complex",
    "is_contiguous", "is_floating_point", "is_inference", "is_same_size", "is_signed", "ndimension", "nelement",
    "numel", "ones_like", "rand_like", "randn_like", "register_hook", "register_post_accumulate_grad_hook",
    "requires_grad_", "retain_grad", "size", "storage_offset", "stride", "zeros_like",
})  # fmt: skip
"""Functions that tell nothing of a tensor's values."""

# When not in training, these modules pass the parameters of modules within them to torch's fast paths.
_REACH_WITHIN = (nn.MultiheadAttention, nn.TransformerEncoderLayer, nn.TransformerEncoder)

_PENDING: dict[int, tuple[Awaited, int]] = {}
"""The parameters whose updates are under way, by `id`: the object that watches each of them, and its position."""

_engine = threading.local()


def pass_this_thread() -> None:
    """Mark the calling thread as the engine's, which makes the updates and must not wait for them."""
    _engine.passes = True


class Awaited:
    """Makes accesses to a model's parameters wait, from `begin` until each parameter is updated.

    `holders` counts the engine's own tensors that share a variable's memory. `came` is called with each variable
    that is updated, before the script gets it.
    """

    def __init__(
        self,
        model: nn.Module,
        variables: Mapping[str, nn.Parameter],
        wait: Wait,
        *,
        holders: Mapping[str, int],
        came: Callable[[int], None] = lambda _: None,
    ) -> None:
        self._parameters = list(variables.values())
        self._wait = wait
        self._came = came
        self._holders = [_num_own_holders() + holders.get(name, 0) for name in variables]
        self._memory = [parameter.untyped_storage().data_ptr() for parameter in self._parameters]
        self._lock = threading.RLock()
        self._is_compiled = hasattr(model, "_orig_mod")
        self._hears_of_compiling = False
        self._watched_transforms = WatchedTransforms(_settle_tensor)
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
        """Remove the hooks and give parameters their own classes back, updated or not."""
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()
        self._watched_transforms.close()
        for parameter in self._parameters:
            _give_back(parameter)
        if self._hears_of_compiling:
            _callbacks().start_callbacks.remove(self._compiling)
            self._hears_of_compiling = False

    def shared(self) -> frozenset[int]:
        """Return the variables whose memory other tensors share and may read unnoticed. No update may be under way."""
        return frozenset(
            number
            for number, parameter in enumerate(self._parameters)
            if _num_holders(parameter) > self._num_usual(number)
        )

    def _num_usual(self, number: int) -> int:
        """Return the number of a variable's usual holders. New memory may have none of the engine's tensors yet."""
        is_new = self._parameters[number].untyped_storage().data_ptr() != self._memory[number]
        return _num_own_holders() if is_new else self._holders[number]

    def begin(self, shared: Collection[int] = ()) -> None:
        """Start to watch parameters when the step is called; wait at once for the variables in `shared`."""
        self._hear_of_compiling()
        if self._is_compiled:
            shared = range(len(self._parameters))
        for number, parameter in enumerate(self._parameters):
            if number in shared or number in self._scripted:
                self._wait(number)
                self._came(number)
            else:
                _PENDING[id(parameter)] = (self, number)
                parameter.__class__ = _awaited_class(type(parameter))

    def settle(self, numbers: Iterable[int] | None = None) -> None:
        """Wait for variables, by default for all."""
        for number in range(len(self._parameters)) if numbers is None else numbers:
            parameter = self._parameters[number]
            if id(parameter) in _PENDING:
                with self._lock:
                    if id(parameter) in _PENDING:
                        self._wait(number)
                        _give_back(parameter)
                        self._came(number)

    def _enter(self, owned: tuple[int, ...], is_model: bool, module: nn.Module, _: Any) -> None:  # noqa: FBT001 - bound in advance
        self.settle(None if is_model and not module.training else owned)

    def _enter_compiled(self, enter: Callable[..., None], *arguments: Any) -> None:
        self._is_compiled = True
        enter(*arguments)

    def _hear_of_compiling(self) -> None:
        """Ask torch to report when code is compiled: compiled code must not find parameters of another class."""
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
    """Return torch's list of callbacks for compiling; None if nothing has asked to compile yet."""
    module = sys.modules.get("torch._dynamo.callback")
    return getattr(module, "callback_handler", None)


def _num_holders(tensor: torch.Tensor) -> int:
    """Return the number of holders of a tensor's memory: tensors, and references of Python code to the storage."""
    storage = tensor.untyped_storage()
    count: int = torch._C._storage_Use_Count(storage._cdata)  # noqa: SLF001 - torch has no other way to ask
    return count + sys.getrefcount(storage)


@functools.cache
def _num_own_holders() -> int:
    """Return `_num_holders` of a tensor whose memory no other object shares."""
    return _num_holders(torch.empty(1))


def _give_back(parameter: torch.Tensor) -> None:
    if _PENDING.pop(id(parameter), None) is not None:
        parameter.__class__ = type(parameter).__mro__[2]


class _Waits:
    """The behaviour of a parameter whose update is under way: see the module's docstring."""

    __slots__ = ()

    @classmethod
    def __torch_function__(cls, function: Any, _: Any, arguments: Any = (), options: Any = None) -> Any:
        options = options or {}
        if getattr(_engine, "passes", False) or _only_asks(function):
            with torch._C.DisableTorchFunctionSubclass():  # noqa: SLF001 - the documented way to define such classes
                return function(*arguments, **options)
        if not _settle_among((*arguments, *options.values())):
            # The parameter is in a container of a kind that we do not know.
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
    """Wait for all parameters among some values; return whether there was one."""
    found = False
    for value in values:
        if isinstance(value, torch.Tensor):
            pending = _PENDING.get(id(value))
            if pending is not None:
                one, number = pending
                one.settle((number,))
                found = True
        elif isinstance(value, list | tuple | set | frozenset):
            found |= _settle_among(value)
        elif isinstance(value, Mapping):
            found |= _settle_among(value.values())
    return found


def _settle_tensor(tensor: torch.Tensor) -> None:
    _settle_among((tensor,))


def _settle_all() -> None:
    for one, number in list(_PENDING.values()):
        one.settle((number,))


@functools.cache
def _awaited_class(kind: type[torch.Tensor]) -> Any:
    """Return a subclass of a parameter's class whose instances wait before they are used."""
    return type(f"Awaited{kind.__name__}", (_Waits, kind), {"__doc__": "A parameter whose update is under way."})
