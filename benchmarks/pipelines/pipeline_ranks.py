"""A rank of the benchmark: trains in both ways in turn, and writes the times of its steps.

Arguments: the bundle, where to write, the number of rounds, and the number of steps in a block.
"""

from __future__ import annotations

import json
import random
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B

import autosync
from autosync.strategy.bundle import load_bundle

sys.path.append(str(Path(__file__).parent))
from pipeline_task import LEARNING_RATE, blocks, distance, draw, task

Step = Callable[[Tensor], object]
NUM_WARMUP_STEPS = 3


def torch_steps(num_microbatches: int) -> tuple[Step, nn.Module]:
    """Return how torch makes a step, and this rank's part of the model."""
    rank, size = dist.get_rank(), dist.get_world_size()
    whole = blocks()
    each = len(whole) // size
    part = whole[rank * each : (rank + 1) * each]
    stage = PipelineStage(part, rank, size, torch.device("cpu"))
    schedule = Schedule1F1B(stage, num_microbatches, loss_fn=distance)
    optimizer = torch.optim.SGD(part.parameters(), lr=LEARNING_RATE)

    def step(batch: Tensor) -> None:
        optimizer.zero_grad()
        inputs = (batch,) if rank == 0 else ()
        if rank == size - 1:
            schedule.step(*inputs, target=batch.flip(1))
        else:
            schedule.step(*inputs)
        optimizer.step()

    return step, part


def timed(step: Step, batch: Tensor) -> float:
    """Return the seconds of a step, from the start to the end of all ranks."""
    dist.barrier()
    began = time.perf_counter()
    step(batch)
    dist.barrier()
    return time.perf_counter() - began


def same_weights(part: nn.Module, whole: dict[str, Tensor]) -> bool:
    """Whether this rank's part of the model has the weights of the whole one, up to rounding."""
    # A slice of a Sequential keeps the names of its layers.
    own = part.state_dict()
    return all(torch.allclose(one, whole[name], rtol=1e-4, atol=1e-5) for name, one in own.items())


def main(bundle_path: str, out: str, num_rounds: int, num_steps: int) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    bundle = load_bundle(Path(bundle_path))
    by_torch, part = torch_steps(bundle.strategy.microbatches)
    blocks_of: dict[str, list[list[float]]] = {"torch": [], "autosync": []}
    lots, generator = random.Random(0), torch.Generator().manual_seed(1)
    with autosync.trainer(task(), bundle_path) as trainer:
        ways: dict[str, Step] = {"torch": by_torch, "autosync": trainer.step}
        batches = [draw(trainer.global_batch, generator) for _ in range(NUM_WARMUP_STEPS + num_steps)]
        for step in ways.values():
            for batch in batches[:NUM_WARMUP_STEPS]:
                timed(step, batch)
        for _ in range(num_rounds):
            for way in lots.sample(sorted(ways), len(ways)):
                blocks_of[way].append([timed(ways[way], batch) for batch in batches[NUM_WARMUP_STEPS:]])
        # Both have trained on the same batches in the same order.
        is_same = same_weights(part, trainer.state_dict())
    Path(out).with_suffix(f".{dist.get_rank()}").write_text(json.dumps({"blocks": blocks_of, "is_same": is_same}))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
