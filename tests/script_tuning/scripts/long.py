"""A usual training of many short steps: `long.py OUT STEPS [WORD ...]`.

The words are adam, clips, logs, closure, files, inner, freezes, peeks and regularises.

A pass takes some milliseconds, so that pauses of a busy machine are short beside it. The training evaluates every 20
steps on all ranks, and the first rank saves a checkpoint every 50. With `files`, a pass takes ten times as long while
the file OUT-slow is there, and the training ends soon after the file OUT-end is. With `freezes`, the first layer is
frozen after five steps. With `peeks`, gradients are read after some steps. With `regularises`, a second backward pass
in each step is one that DDP does not synchronise. However it ends, each rank leaves the file OUT-left-RANK.
"""

import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def make_optimizer(parameters, *, is_adam: bool) -> torch.optim.Optimizer:
    if is_adam:
        return torch.optim.AdamW(parameters, lr=1e-3)
    return torch.optim.SGD(parameters, lr=0.05, momentum=0.9)


def regularise(model: nn.Module, words: list[str]) -> None:
    if "regularises" in words:
        torch.stack([0.001 * one.square().sum() for one in model.parameters()]).sum().backward()


def peeked(model: nn.Module, words: list[str], step: int) -> list[float]:
    is_wanted = "peeks" in words and step % 40 == 30
    return [max(one.grad.abs().max().item() for one in model.parameters())] if is_wanted else []


def main() -> None:
    out, num_steps, *words = sys.argv[1:]
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(rank)
    model = nn.Sequential(nn.Linear(16, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 4)).double()
    model = DistributedDataParallel(model, find_unused_parameters="freezes" in words)
    optimizer = make_optimizer(model.parameters(), is_adam="adam" in words)
    data = torch.Generator().manual_seed(10 + rank)
    held = torch.randn(8, 16, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    losses, norms = [], []

    def loss_of(inputs: torch.Tensor) -> torch.Tensor:
        time.sleep(0.04 if "files" in words and Path(f"{out}-slow").exists() else 0.004)
        return (model(inputs) - inputs[:, :4].sin()).square().mean()

    def backward() -> torch.Tensor:
        optimizer.zero_grad()
        loss = loss_of(inputs)
        loss.backward()
        return loss

    def is_ended() -> bool:
        flag = torch.tensor([Path(f"{out}-end").exists()])
        dist.broadcast(flag, 0)
        return bool(flag)

    for step in range(int(num_steps)):
        if step % 20 == 0 and "files" in words and is_ended():
            break
        if step == 5 and "freezes" in words:
            model.module[0].requires_grad_(False)
        inputs = torch.randn(8, 16, generator=data, dtype=torch.float64)
        if "closure" in words:
            loss = optimizer.step(backward)
        else:
            loss = backward()
            regularise(model, words)
            if "clips" in words:
                torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            if "logs" in words and rank == 0:
                norms.append(max(one.grad.abs().max().item() for one in model.parameters()))
            optimizer.step()
            norms += peeked(model, words, step)
        losses.append(loss.item())
        if step % 20 == 19:
            model.eval()
            with torch.no_grad():
                losses.append(loss_of(held).item())
            # Lightning leaves its wrapper as it is, and has the module itself train again.
            (model.module if "inner" in words else model).train()
        if step % 50 == 49 and rank == 0:
            torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, f"{out}-checkpoint.pt")
    sys.stdout.write(f"trained {num_steps} steps\n")
    saved = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "losses": losses, "norms": norms}
    torch.save(saved, f"{out}-{rank}.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    try:
        main()
    finally:
        Path(f"{sys.argv[1]}-left-{os.environ['RANK']}").touch()
