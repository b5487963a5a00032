"""`torchrun … stock.py [--bucket-mb N] [--jitter] [--end-after STEPS] train.py ARGS`: a script under stock DDP.

It sets the bucket size that the script leaves to DDP. `--jitter` adds rounding to averaged gradients, by a
communication hook; `--end-after` ends the script where the step after so many would begin.
"""

import argparse
import runpy
import sys
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel import DistributedDataParallel
from torch.optim.optimizer import register_optimizer_step_post_hook

ROUNDING = 2.0**-20


class Jitter:
    """Changes each element of an averaged gradient by `ROUNDING` of itself, up or down, alike on all ranks."""

    def __init__(self) -> None:
        self._generator = torch.Generator().manual_seed(1)

    def hook(self, _: object, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        """Average a bucket over all ranks, and change it."""
        return allreduce_hook(None, bucket).then(lambda done: self._changed(done.value()[0]))

    def _changed(self, gradient: torch.Tensor) -> torch.Tensor:
        if gradient.is_sparse:
            return gradient
        signs = torch.randint(0, 2, gradient.shape, generator=self._generator).mul_(2).sub_(1)
        return gradient.mul_(1 + ROUNDING * signs)


def set_buckets(megabytes: int, *, jitters: bool) -> None:
    """Have every DDP that the script makes take this bucket size, and perhaps the hook."""
    init = DistributedDataParallel.__init__

    def changed(ddp: Any, *arguments: Any, **options: Any) -> None:
        init(ddp, *arguments, **{**options, "bucket_cap_mb": megabytes})
        if jitters:
            ddp.register_comm_hook(None, Jitter().hook)

    DistributedDataParallel.__init__ = changed


def end_after(num_steps: int) -> None:
    """End the script in the forward pass that follows so many steps of optimizers, as tuning does."""
    steps = 0
    forward = DistributedDataParallel._pre_forward

    def stepped(*_: object) -> None:
        nonlocal steps
        steps += 1

    def pre_forward(ddp: Any, *inputs: Any, **options: Any) -> Any:
        if steps >= num_steps and torch.is_grad_enabled():
            raise SystemExit(0)
        return forward(ddp, *inputs, **options)

    register_optimizer_step_post_hook(stepped)
    DistributedDataParallel._pre_forward = pre_forward


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bucket-mb", type=int, default=25)
    parser.add_argument("--jitter", action="store_true")
    parser.add_argument("--end-after", type=int)
    parser.add_argument("command", nargs=argparse.REMAINDER)
    options = parser.parse_args()
    set_buckets(options.bucket_mb, jitters=options.jitter)
    if options.end_after is not None:
        end_after(options.end_after)
    sys.argv = options.command
    runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    main()
