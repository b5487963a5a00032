"""The ranks of `loss_curves.py`: `python curve_ranks.py FOLDER` carries out the runs in FOLDER/runs.json.

Each run is a training script under `runpy`, as `python SCRIPT ARGUMENTS` would run it, with the variables in the
environment that torchrun sets. The ranks are forks of this process, because each would need seconds to import torch.
After each run, FOLDER/outcomes.json has its outcome.
"""

from __future__ import annotations

import functools
import json
import os
import runpy
import signal
import sys
import time
import traceback
from pathlib import Path
from typing import Any

import torch
import torch._dynamo  # DDP and optimizers import it late, so that each rank would do so
from torch.optim.optimizer import register_optimizer_step_pre_hook

# Loaded before the ranks part, so that none has to.
import autosync.runtime.parallelize  # noqa: F401

GRACE_SECONDS = 10.0
"""How long the other ranks have once one has failed: they may wait for it in vain."""


def run_rank(run: dict[str, Any], rank: int) -> None:
    """The script on one rank, in a process of its own."""
    os.environ.update(
        RANK=str(rank),
        LOCAL_RANK=str(rank),
        WORLD_SIZE=str(run["num_ranks"]),
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT=str(run["port"]),
        TORCHELASTIC_USE_AGENT_STORE="True",
    )
    # What a script tells is not for who runs all of them.
    with Path(os.devnull).open("w") as nowhere:
        os.dup2(nowhere.fileno(), sys.stdout.fileno())
    torch.set_num_threads(1)
    torch.set_default_dtype(getattr(torch, run["dtype"]))
    if run["rounding_seed"] is not None:
        _round_otherwise(run["rounding_seed"])
    if run["bucket_cap_mb"] is not None:
        ddp: Any = torch.nn.parallel.DistributedDataParallel
        ddp.__init__ = functools.partialmethod(ddp.__init__, bucket_cap_mb=run["bucket_cap_mb"])
    sys.argv = [run["script"], *run["arguments"]]
    runpy.run_path(run["script"], run_name="__main__")


def _round_otherwise(seed: int) -> None:
    """Have every gradient be off by one rounding, the same on all ranks, before each step of any optimizer."""
    generator = torch.Generator().manual_seed(seed)

    def before_step(optimizer: torch.optim.Optimizer, *_: Any) -> None:
        gradients = (p.grad for group in optimizer.param_groups for p in group["params"] if p.grad is not None)
        for gradient in gradients:
            values = gradient.coalesce().values() if gradient.is_sparse else gradient
            signs = torch.randint(2, values.shape, generator=generator, dtype=values.dtype) * 2 - 1
            change = values * signs * torch.finfo(values.dtype).eps
            if gradient.is_sparse:
                where = gradient.coalesce().indices()
                gradient.add_(torch.sparse_coo_tensor(where, change, gradient.shape, check_invariants=False))
            else:
                gradient.add_(change)

    register_optimizer_step_pre_hook(before_step)


def launch(run: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Run a script on all ranks; what came of it."""
    began = time.monotonic()
    children: dict[int, int] = {}
    failures = [folder / f"failure-{run['number']}-{rank}" for rank in range(run["num_ranks"])]
    for rank in range(run["num_ranks"]):
        child = os.fork()
        if not child:
            code = 1
            try:
                run_rank(run, rank)
                code = 0
            except BaseException as error:
                traceback.print_exc()
                failures[rank].write_text(f"{type(error).__name__}: {error}")
                raise
            finally:
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(code)
        children[child] = rank
    deadline, codes = began + run["limit_seconds"], {}
    while children and time.monotonic() < deadline:
        child, status = os.waitpid(-1, os.WNOHANG)
        if not child:
            time.sleep(0.02)
            continue
        codes[children.pop(child)] = os.waitstatus_to_exitcode(status)
        if any(codes.values()):
            deadline = min(deadline, time.monotonic() + GRACE_SECONDS)
    for child in children:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    words = [path.read_text() for path in failures if path.exists()]
    if not words and (children or any(codes.values())):
        words = [f"ranks ended with {codes}, and {len(children)} not at all"]
    return {"failure": words[0] if words else "", "seconds": round(time.monotonic() - began, 2)}


def main(folder: Path) -> None:
    outcomes: list[dict[str, Any]] = []
    parent = os.getppid()
    for run in json.loads((folder / "runs.json").read_text()):
        if os.getppid() != parent:
            # Whoever asked for all this has ended.
            return
        outcomes.append(launch(run, folder))
        words = f"{run['title']}: {outcomes[-1]['seconds']} s {outcomes[-1]['failure']}\n"
        sys.stderr.write(words)
        (folder / "outcomes.json").write_text(json.dumps(outcomes))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
