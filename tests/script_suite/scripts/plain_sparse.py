"""A recommender: sparse embeddings of users and items with SparseAdam, and dense layers with Adam."""

import argparse
import json
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

NUM_USERS, NUM_ITEMS, BATCH_SIZE = 500, 300, 64


class Recommender(nn.Module):
    def __init__(self, dim: int = 16) -> None:
        super().__init__()
        self.users = nn.Embedding(NUM_USERS, dim, sparse=True)
        self.items = nn.EmbeddingBag(NUM_ITEMS, dim, mode="mean", sparse=True)
        self.layers = nn.Sequential(nn.Linear(2 * dim, 64), nn.ReLU(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 1))

    def forward(self, users: torch.Tensor, items: torch.Tensor) -> torch.Tensor:
        return self.layers(torch.cat([self.users(users), self.items(items)], dim=1)).squeeze(1)


def batch(step: int, rank: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(2 * step + rank)
    users = torch.randint(NUM_USERS, (BATCH_SIZE,), generator=generator)
    items = torch.randint(NUM_ITEMS, (BATCH_SIZE, 3), generator=generator)
    clicks = ((users + items.sum(1)) % 3 == 0).float()
    return users, items, clicks


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=24)
    parser.add_argument("--resume")
    args = parser.parse_args()

    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DistributedDataParallel(Recommender())
    tables = [*model.module.users.parameters(), *model.module.items.parameters()]
    sparse_optimizer = torch.optim.SparseAdam(tables, lr=0.01)
    dense_optimizer = torch.optim.Adam(model.module.layers.parameters(), lr=0.005)
    criterion = nn.BCEWithLogitsLoss()

    start = 0
    if args.resume:
        checkpoint = torch.load(args.resume, map_location="cpu")
        model.load_state_dict(checkpoint["model"])
        sparse_optimizer.load_state_dict(checkpoint["sparse_optimizer"])
        dense_optimizer.load_state_dict(checkpoint["dense_optimizer"])
        start = checkpoint["step"]

    args.output.mkdir(parents=True, exist_ok=True)
    for step in range(start + 1, args.steps + 1):
        users, items, clicks = batch(step, rank)
        sparse_optimizer.zero_grad()
        dense_optimizer.zero_grad()
        loss = criterion(model(users, items), clicks)
        loss.backward()
        sparse_optimizer.step()
        dense_optimizer.step()
        if rank == 0:
            with (args.output / "log.jsonl").open("a") as log:
                log.write(json.dumps({"step": step, "loss": loss.item()}) + "\n")
        if rank == 0 and step == args.steps // 2:
            checkpoint = {
                "model": model.state_dict(),
                "sparse_optimizer": sparse_optimizer.state_dict(),
                "dense_optimizer": dense_optimizer.state_dict(),
                "step": step,
            }
            torch.save(checkpoint, args.output / "checkpoint.pt")

    if rank == 0:
        torch.save(model.module.state_dict(), args.output / "model.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
