"""A rank of the benchmark of memory: trains, and writes the most bytes that this took.

Arguments: the bundles of the narrow and the wide model, where to write, and the number of steps.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import torch
import torch.distributed as dist

import autosync

sys.path.append(str(Path(__file__).parent))
from memory_task import NARROW, WIDE, draw, task_of


def resident_bytes(field: str) -> int:
    """Return the process's resident memory now (`VmRSS`), or its most since `forget_the_most` (`VmHWM`)."""
    status = Path("/proc/self/status").read_text(encoding="ascii")
    found = re.search(rf"{field}:\s+(\d+) kB", status)
    assert found is not None, f"Linux reports {field}"
    return int(found[1]) * 1024


def forget_the_most() -> None:
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")


def train(width: int, bundle: str, num_steps: int) -> int:
    """Train for some steps; return the most bytes that the process then had, without the batch."""
    with autosync.trainer(task_of(width), bundle) as trainer:
        batch = draw(width, trainer.global_batch, torch.Generator().manual_seed(1))
        for _ in range(num_steps):
            trainer.step(batch)
        return resident_bytes("VmHWM") - batch.numel() * batch.element_size()


def main(narrow: str, wide: str, out: str, num_steps: int) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    # A narrow model first, so that all code lies in memory before anything is measured.
    train(NARROW, narrow, num_steps)
    dist.barrier()
    before = resident_bytes("VmRSS")
    forget_the_most()
    taken = train(WIDE, wide, num_steps) - before
    Path(out).with_suffix(f".{dist.get_rank()}").write_text(json.dumps(taken))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]))
