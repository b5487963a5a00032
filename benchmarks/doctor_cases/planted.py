"""A usual DDP script in which arguments plant causes of slow steps: `planted.py --mebibytes 8 --backward-seconds 0.2`.

It does not use autosync. Its layers pause in place of compute, so that the processors are left to the network of an
emulated cluster. With `--works` they use a processor for that time instead.
"""

import argparse
import contextlib
import os
import time
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

NUM_STEPS = 1000
MIB = 2**20


class Layer(nn.Module):
    """A parameter with passes that take a given time."""

    def __init__(self, num_elements: int, forward_seconds: float, backward_seconds: float, *, works: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(num_elements))
        self._seconds = forward_seconds, backward_seconds
        self._works = works

    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = _Passes.apply(inputs, self.weight, *self._seconds, self._works)
        return outputs


class _Passes(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, inputs: Tensor, weight: Tensor, *passes: Any) -> Tensor:
        forward_seconds, ctx.seconds, ctx.works = passes
        ctx.weight = weight
        spend(forward_seconds, works=ctx.works)
        return inputs.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Any, ...]:
        spend(ctx.seconds, works=ctx.works)
        return gradients[0], torch.zeros_like(ctx.weight), None, None, None


class Model(nn.Module):
    """Layers of equal size, a buffer, and numbers that the model returns beside its output."""

    def __init__(self, options: argparse.Namespace, extra: dict[str, float]) -> None:
        super().__init__()
        count = options.layers
        num_elements = max(int(options.mebibytes * MIB / 4 / count), 1)
        forward = (options.forward_seconds + extra["forward"]) / count
        backward = (options.backward_seconds + extra["backward"]) / count
        layers = [Layer(num_elements, forward, backward, works=options.works) for _ in range(count)]
        self.layers = nn.Sequential(*layers)
        self.register_buffer("running", torch.zeros(int(options.buffer_mebibytes * MIB / 4)))
        self._numbers = list(range(options.output_numbers))

    def forward(self, inputs: Tensor) -> Any:
        outputs = self.layers(inputs)
        return (outputs, self._numbers) if self._numbers else outputs


def spend(seconds: float, *, works: bool) -> None:
    """Pause, or use a processor for that time."""
    if not works:
        time.sleep(seconds)
        return
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        pass


def main() -> None:
    options = _options()
    if options.interface:
        os.environ["GLOO_SOCKET_IFNAME"] = options.interface
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    is_slow = dist.get_rank() == options.slow_rank
    extra = {
        phase: options.slow_seconds if is_slow and phase == options.slow_phase else 0.0
        for phase in ("input", "forward", "backward")
    }
    bare = Model(options, extra)
    cap = {} if options.bucket_mebibytes is None else {"bucket_cap_mb": options.bucket_mebibytes}
    model = DistributedDataParallel(bare, find_unused_parameters=options.find_unused_parameters, **cap)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    inputs = torch.ones(8, requires_grad=True)
    for _ in range(NUM_STEPS):
        time.sleep(options.input_seconds + extra["input"])
        optimizer.zero_grad()
        for number in range(options.microsteps):
            is_last = number == options.microsteps - 1
            with contextlib.nullcontext() if is_last or options.synchronises_all else model.no_sync():
                found = model(inputs)
                (found[0] if isinstance(found, tuple) else found).sum().backward()
        optimizer.step()


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--mebibytes", type=float, default=1.0, help="of all parameters")
    parser.add_argument("--forward-seconds", type=float, default=0.0)
    parser.add_argument("--backward-seconds", type=float, default=0.0)
    parser.add_argument("--input-seconds", type=float, default=0.0, help="between steps")
    parser.add_argument("--works", action="store_true", help="use a processor instead of pausing")
    parser.add_argument("--bucket-mebibytes", type=float, help="bucket_cap_mb of DDP")
    parser.add_argument("--buffer-mebibytes", type=float, default=0.0, help="of the model's buffer")
    parser.add_argument("--find-unused-parameters", action="store_true")
    parser.add_argument("--output-numbers", type=int, default=0, help="numbers returned beside the output")
    parser.add_argument("--microsteps", type=int, default=1)
    parser.add_argument("--synchronises-all", action="store_true", help="synchronise every microstep, not the last")
    parser.add_argument("--slow-rank", type=int, default=-1)
    parser.add_argument("--slow-phase", choices=("input", "forward", "backward"), default="forward")
    parser.add_argument("--slow-seconds", type=float, default=0.0, help="further time of this rank in this phase")
    parser.add_argument("--interface", help="the value of GLOO_SOCKET_IFNAME")
    return parser.parse_args()


if __name__ == "__main__":
    main()
