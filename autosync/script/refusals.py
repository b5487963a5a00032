"""The uses of `DistributedDataParallel` that are refused, because a bundle cannot serve them.

Each is refused when the script asks for it, at the latest in the first forward pass, before any training.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, NoReturn

import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook

from autosync.errors import OperationError

_BY_BUNDLE = "the bundle's strategy decides how gradients are synchronised"

_COMPRESSED = f"{_BY_BUNDLE}; one with a codec compresses them: autosync tune --allow lossy"

REFUSED_METHODS: dict[str, str] = {
    "register_comm_hook": _COMPRESSED,
    "_register_builtin_comm_hook": _COMPRESSED,
    "_register_buffer_comm_hook": "buffers come from rank 0, as DDP has them by default",
    "_register_fused_optim": "the engine updates by the script's own optimizer: call its step()",
    "_register_delay_all_reduce_hook": f"delay_all_reduce_named_params: {_BY_BUNDLE}, all of them in backward's order",
    "_update_process_group": "the bundle was made for the ranks with which training began",
    "join": "a rank that has no more batches cannot take part in the steps of others: give all ranks as many",
    "join_hook": "a rank that has no more batches cannot take part in the steps of others: give all ranks as many",
}
"""The methods of DDP that are refused, each with the reason."""


def refused(name: str) -> Callable[..., NoReturn]:
    """Return a method that raises when it is called."""
    reason = REFUSED_METHODS[name]

    def refuse(*_: object, **__: object) -> NoReturn:
        raise OperationError(f"DistributedDataParallel.{name}: {reason} (see docs/script.md)")

    return refuse


def replaced_methods() -> Iterator[tuple[str, Callable[..., Any]]]:
    """Yield the names of the methods in REFUSED_METHODS, each with what replaces it while a door is open."""
    for name in REFUSED_METHODS:
        yield name, (_register_comm_hook if name == "register_comm_hook" else refused(name))


def _register_comm_hook(ddp: Any, state: object, hook: Callable[..., Any]) -> None:
    """Accept the hook that averages gradients as DDP without hooks does: every bundle without a codec does that."""
    group = dist.group.WORLD if state is None else state
    if hook is not allreduce_hook or group != ddp.process_group:
        refused("register_comm_hook")()


class RefusedAttributeError(OperationError, AttributeError):
    """The stand-in lacks this attribute of torch's Reducer. As an AttributeError, it makes `hasattr` return False."""


def refuse_arguments(ddp: Any, synchronised: Iterable[str]) -> None:
    """Refuse the arguments of DDP's constructor that training with a bundle cannot honour. All others take effect.

    `synchronised` holds the names of the bundle's variables.
    """
    for what, reason in _arguments(ddp, synchronised):
        raise OperationError(f"DistributedDataParallel({what}): {reason} (see docs/script.md)")


def _arguments(ddp: Any, synchronised: Iterable[str]) -> Iterator[tuple[str, str]]:
    if getattr(ddp, "mixed_precision", None) is not None:
        yield (
            "mixed_precision=…",
            "the engine trains parameters in their own types (torch.autocast in the script is fine)",
        )
    mesh = getattr(ddp, "device_mesh", None)
    if mesh is not None and mesh._get_root_mesh() != mesh:  # noqa: SLF001 - DDP asks this way
        yield "device_mesh=…", "the mesh is a part of a larger one, and other ranks hold other parts of the model"
    if getattr(ddp, "_use_python_reducer", False):
        yield "…", 'torch._dynamo.config.optimize_ddp = "python_reducer" synchronises within compiled code'
    ignored = sorted(set(getattr(ddp, "parameters_to_ignore", ())) & set(synchronised))
    if ignored:
        yield "…", f"_ddp_params_and_buffers_to_ignore names {ignored[0]}, which the bundle synchronises"
