"""Watches the transforms of `torch.func` (vmap, grad, jvp ...) for the tensors that they are given.

A transform wraps a tensor in C++ before any function is called with it, so `__torch_function__` is never called for a
parameter that is passed to a transform. Each transform takes tensors through one function of torch's Python code. While
there are listeners, these functions call them first.
"""

from __future__ import annotations

import functools
import importlib
import threading
from collections.abc import Callable
from typing import Any

import torch

from autosync.errors import OperationError

Listener = Callable[[torch.Tensor], None]
"""Is called with each tensor that a transform is given."""

ENTRANCES = (
    ("torch._functorch.vmap", "_add_batch_dim"),
    ("torch._functorch.eager_transforms", "_wrap_for_grad"),
    ("torch._functorch.eager_transforms", "_wrap_functional_tensor"),
    ("torch._functorch.predispatch", "_make_dual"),
)
"""The functions through which transforms take tensors, each by the module that calls it."""

_lock = threading.Lock()
_listeners: dict[int, Listener] = {}
_originals: list[tuple[Any, str, Any]] = []


class WatchedTransforms:
    """A listener that hears of tensors until it is closed; the last one to close puts torch's functions back."""

    def __init__(self, listener: Listener) -> None:
        with _lock:
            if not _originals:
                _install()
            _listeners[id(self)] = listener

    def close(self) -> None:
        """Stop to listen."""
        with _lock:
            if _listeners.pop(id(self), None) is not None and not _listeners:
                _uninstall()


def _install() -> None:
    found = [(importlib.import_module(module), name) for module, name in ENTRANCES]
    for module, name in found:
        if not hasattr(module, name):
            reason = "without it, torch.func could read parameters before their updates"
            raise OperationError(f"torch {torch.__version__} has no {module.__name__}.{name} ({reason})")
    for module, name in found:
        original = getattr(module, name)
        _originals.append((module, name, original))
        setattr(module, name, _watched(original))


def _uninstall() -> None:
    for module, name, original in _originals:
        setattr(module, name, original)
    _originals.clear()


def _watched(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def watched(tensor: Any, *arguments: Any, **options: Any) -> Any:
        # Code that is being compiled has waited for all parameters, and must not see this Python code.
        if not torch.compiler.is_compiling() and isinstance(tensor, torch.Tensor):
            for listener in tuple(_listeners.values()):
                listener(tensor)
        return original(tensor, *arguments, **options)

    return watched
