"""Hooks of the script that would see only a part of the gradients: those of one microbatch, or of one stage."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from autosync.errors import OperationError


def refuse_hooks(parameters: Mapping[str, torch.nn.Parameter]) -> None:
    """Refuse hooks on the gradients of parameters. A script may have added them between two steps."""
    for name, parameter in parameters.items():
        # Torch shows a tensor's hooks in no other way.
        if parameter._backward_hooks or parameter._post_accumulate_grad_hooks:  # noqa: SLF001
            raise OperationError(
                f"{name} has a hook on its gradient, which would get that of each microbatch (stages train models "
                "without such hooks)"
            )


_STEP_HOOKS = {"_optimizer_step_pre_hooks": "before", "_optimizer_step_post_hooks": "after"}
"""Where torch keeps the hooks of an optimizer's step, and when they run."""


def refuse_step_hooks(optimizer: torch.optim.Optimizer) -> None:
    """Refuse hooks on the step of an optimizer. Schedulers have none: they wrap the step."""
    for attribute, when in _STEP_HOOKS.items():
        if getattr(optimizer, attribute, None):
            raise OperationError(
                f"the optimizer has a hook {when} its step, and with stages a rank has the gradients and the new "
                "parameters of its own stage alone (the task's clip_norm clips by all of them; a strategy without "
                "stages takes such hooks)"
            )
