"""Trains sixteen experts, of which a step uses four: `torchrun --nproc-per-node 2 mixture_of_experts.py`.

Each batch has one topic, the same on all ranks, and each topic has its own four experts. So DistributedDataParallel
must search for unused parameters. It still sends the gradients of all experts. Under `autosync launch`, those of
experts that no rank uses do not travel.
"""

import argparse
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

NUM_FEATURES, NUM_CLASSES = 64, 10
NUM_EXPERTS, NUM_TOPICS = 16, 4
BATCH_SIZE = 32


class Mixture(nn.Module):
    """A gate weighs the experts of a batch's topic; the other experts are not called."""

    def __init__(self, width: int = 256, hidden: int = 1024) -> None:
        super().__init__()
        self.inward = nn.Linear(NUM_FEATURES, width)
        self.gate = nn.Linear(width, NUM_EXPERTS)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(width, hidden), nn.ReLU(), nn.Linear(hidden, width)) for _ in range(NUM_EXPERTS)
        )
        self.outward = nn.Linear(width, NUM_CLASSES)

    def forward(self, features: torch.Tensor, topic: int) -> torch.Tensor:
        x = torch.relu(self.inward(features))
        chosen = range(topic, NUM_EXPERTS, NUM_TOPICS)
        weights = self.gate(x)[:, topic::NUM_TOPICS].softmax(dim=1)
        mixed = sum(weights[:, [place]] * self.experts[number](x) for place, number in enumerate(chosen))
        return self.outward(x + mixed)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=100)
    steps = parser.parse_args().steps

    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = DistributedDataParallel(Mixture(), find_unused_parameters=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    batches = torch.Generator().manual_seed(dist.get_rank())

    for step in range(1, steps + 1):
        features = torch.randn(BATCH_SIZE, NUM_FEATURES, generator=batches)
        loss = nn.functional.cross_entropy(model(features, step % NUM_TOPICS), features[:, :NUM_CLASSES].argmax(dim=1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 10 == 0 and os.environ["RANK"] == "0":
            print(f"step {step}: loss {loss.item():.4f}", flush=True)
    if os.environ["RANK"] == "0":
        torch.save(model.module.state_dict(), "model.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
