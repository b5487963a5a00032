"""Wraps a model in stock DDP with given settings."""

from __future__ import annotations

from typing import Any

from torch import nn
from torch.nn.parallel import DistributedDataParallel

from autosync.strategy.codecs import Cast, PowerSGD
from autosync.strategy.emit.settings import START_POWER_SGD_STEP, DdpSettings


def stock_ddp(model: nn.Module, settings: DdpSettings) -> DistributedDataParallel:
    """Wrap the model in DDP. The ranks have the same parameters already, so DDP does not broadcast them."""
    for name in settings.frozen:
        model.get_parameter(name).requires_grad = False
    arguments: dict[str, Any] = {**settings.arguments()}
    ddp = DistributedDataParallel(model, init_sync=False, **arguments)
    register: Any = ddp.register_comm_hook
    match settings.hook:
        case Cast(dtype=dtype):
            from torch.distributed.algorithms.ddp_comm_hooks import default_hooks as hooks

            register(None, hooks.bf16_compress_hook if dtype == "bfloat16" else hooks.fp16_compress_hook)
        case PowerSGD(rank=rank, error_feedback=feedback):
            from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook

            make_state: Any = PowerSGDState
            state = make_state(
                process_group=None,
                matrix_approximation_rank=rank,
                use_error_feedback=feedback,
                start_powerSGD_iter=START_POWER_SGD_STEP,
            )
            register(state, powerSGD_hook)
    return ddp
