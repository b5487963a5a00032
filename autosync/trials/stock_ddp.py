"""Wraps a model in stock DDP with given settings."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from autosync.strategy.codecs import Cast, PowerSGD
from autosync.strategy.emit.settings import START_POWER_SGD_STEP, DdpSettings

Hook = Callable[..., Any]


def stock_ddp(
    model: nn.Module,
    settings: DdpSettings,
    *,
    group: dist.ProcessGroup | None = None,
    noting: Callable[[Hook], Hook] | None = None,
) -> DistributedDataParallel:
    """Wrap the model in DDP, which uses the group. The ranks have the same parameters, so DDP does not broadcast them.

    With `noting`, its communication hook is replaced by what `noting` makes of it.
    """
    for name in settings.frozen:
        model.get_parameter(name).requires_grad = False
    arguments: dict[str, Any] = {**settings.arguments()}
    ddp = DistributedDataParallel(model, init_sync=False, process_group=group, **arguments)
    state, hook = _hook_of(settings, group)
    if noting is not None:
        hook = noting(hook or _default_hook())
    if hook is not None:
        register: Any = ddp.register_comm_hook
        # The simple hooks take their group for a state.
        register(state or group, hook)
    return ddp


def _hook_of(settings: DdpSettings, group: dist.ProcessGroup | None) -> tuple[object, Hook | None]:
    """Return the communication hook of the settings, with its state; no hook if DDP's own all-reduce is used."""
    match settings.hook:
        case Cast(dtype=dtype):
            from torch.distributed.algorithms.ddp_comm_hooks import default_hooks as hooks

            return None, hooks.bf16_compress_hook if dtype == "bfloat16" else hooks.fp16_compress_hook
        case PowerSGD(rank=rank, error_feedback=feedback):
            from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook

            make_state: Any = PowerSGDState
            state = make_state(
                process_group=group,
                matrix_approximation_rank=rank,
                use_error_feedback=feedback,
                start_powerSGD_iter=START_POWER_SGD_STEP,
            )
            return state, powerSGD_hook
        case _:
            return None, None


def _default_hook() -> Hook:
    """Return the hook that does what DDP does without one."""
    from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook

    return allreduce_hook
