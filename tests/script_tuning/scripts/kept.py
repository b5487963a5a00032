"""A training that can go on from its last checkpoint: `kept.py OUT STEPS`.

The first rank saves the state every 10 steps, in OUT.pt, and writes the number of each step to OUT-step. The batch of a
step depends on its number alone. In the end, each rank saves its weights in OUT-RANK.pt.
"""

import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def main() -> None:
    out, num_steps = sys.argv[1], int(sys.argv[2])
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(rank)
    model = nn.Sequential(nn.Linear(16, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 4)).double()
    model = DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    first = 0
    if Path(f"{out}.pt").exists():
        saved = torch.load(f"{out}.pt")
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        first = saved["step"]
    for step in range(first, num_steps):
        batch = torch.Generator().manual_seed(1000 * step + rank)
        inputs = torch.randn(8, 16, generator=batch, dtype=torch.float64)
        time.sleep(0.004)
        optimizer.zero_grad()
        loss = (model(inputs) - inputs[:, :4].sin()).square().mean()
        loss.backward()
        optimizer.step()
        if rank == 0:
            Path(f"{out}-step").write_text(str(step + 1))
            if step % 10 == 9:
                state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step + 1}
                torch.save(state, f"{out}.new")
                Path(f"{out}.new").replace(f"{out}.pt")
    torch.save(model.state_dict(), f"{out}-{rank}.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
