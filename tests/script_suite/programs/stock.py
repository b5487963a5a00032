"""`torchrun … stock.py [--bucket-mb N] [--jitter SEED] [--end-after STEPS] train.py ARGS`: a script under stock DDP.

It sets the bucket size that the script leaves to DDP. `--jitter` adds rounding to averaged gradients; `--end-after`
ends the script where the step after so many would begin.
"""

import argparse
import runpy
import sys
import time
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

ROUNDING = 2.0**-20
KEPT: list[DistributedDataParallel] = []
"""All that the script makes, until the process ends.

Torch 2.13 may hang when one is freed right after a step: it waits for gloo's thread with the interpreter's lock, and
that thread wants the lock to free what its last all-reduce has kept.
"""
PARTING_SECONDS = 0.3
"""Gloo's thread has freed everything after so long."""


class Jitter:
    """Changes each element of an averaged gradient by `ROUNDING` of itself, up or down, alike on all ranks."""

    def __init__(self, seed: int) -> None:
        self._generator = torch.Generator().manual_seed(seed)

    def add_to(self, ddp: DistributedDataParallel) -> None:
        """Change the gradients of a model: by a communication hook, or before updates if some are sparse."""
        if any(getattr(module, "sparse", False) for module in ddp.modules()):
            # DDP gives sparse gradients to no hook of this kind.
            register_optimizer_step_pre_hook(self._before_step)
        else:
            ddp.register_comm_hook(None, self._hook)

    def _hook(self, _: object, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        # Not `allreduce_hook(...).then(...)`: gloo's thread would run it, and may wait for the interpreter for ever
        # when the script ends.
        gradients = bucket.buffer().div_(dist.get_world_size())
        dist.all_reduce(gradients)
        done: torch.futures.Future[torch.Tensor] = torch.futures.Future()
        done.set_result(self._changed(gradients))
        return done

    def _before_step(self, optimizer: torch.optim.Optimizer, *_: object) -> None:
        for parameter in (one for group in optimizer.param_groups for one in group["params"]):
            if parameter.grad is not None and parameter.grad.is_sparse:
                parameter.grad = parameter.grad.coalesce()
                self._changed(parameter.grad.values())
            elif parameter.grad is not None:
                self._changed(parameter.grad)

    def _changed(self, gradient: torch.Tensor) -> torch.Tensor:
        signs = torch.randint(0, 2, gradient.shape, generator=self._generator).mul_(2).sub_(1)
        return gradient.mul_(1 + ROUNDING * signs)


def set_buckets(megabytes: int, seed: int | None) -> None:
    """Have every DDP that the script makes take this bucket size; with a seed, also add rounding."""
    init = DistributedDataParallel.__init__

    def changed(ddp: Any, *arguments: Any, **options: Any) -> None:
        init(ddp, *arguments, **{**options, "bucket_cap_mb": megabytes})
        KEPT.append(ddp)
        if seed is not None:
            Jitter(seed).add_to(ddp)

    DistributedDataParallel.__init__ = changed


def end_after(num_steps: int) -> None:
    """End the script in the forward pass that follows so many steps of optimizers, as tuning does."""
    steps, has_stepped = 0, False
    stock = DistributedDataParallel._pre_forward

    def stepped(*_: object) -> None:
        nonlocal has_stepped
        has_stepped = True

    def pre_forward(ddp: Any, *inputs: Any, **options: Any) -> Any:
        nonlocal steps, has_stepped
        # Several optimizers make one step together.
        steps, has_stepped = steps + has_stepped, False
        if steps >= num_steps and torch.is_grad_enabled():
            raise SystemExit(0)
        return stock(ddp, *inputs, **options)

    register_optimizer_step_post_hook(stepped)
    DistributedDataParallel._pre_forward = torch.compiler.disable(pre_forward)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bucket-mb", type=int, default=25)
    parser.add_argument("--jitter", type=int, metavar="SEED")
    parser.add_argument("--end-after", type=int)
    parser.add_argument("command", nargs=argparse.REMAINDER)
    options = parser.parse_args()
    set_buckets(options.bucket_mb, options.jitter)
    if options.end_after is not None:
        end_after(options.end_after)
    sys.argv = options.command
    try:
        runpy.run_path(sys.argv[0], run_name="__main__")
    finally:
        time.sleep(PARTING_SECONDS)


if __name__ == "__main__":
    main()
