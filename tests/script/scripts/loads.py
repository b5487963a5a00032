"""A script with torch's own DataLoader and sampler, dropout, and an evaluation after each epoch."""

import os
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset, DistributedSampler
from torch.utils.data._utils import worker as torch_worker


class Points(Dataset):
    def __init__(self, first: int, draws: bool) -> None:
        self.first, self.draws = first, draws

    def __len__(self) -> int:
        return 24

    def __getitem__(self, number: int):
        inputs = torch.randn(6, generator=torch.Generator().manual_seed(self.first + number), dtype=torch.float64)
        if self.draws:
            inputs = inputs + 0.1 * torch.randn(6, dtype=torch.float64)
        # Not by get_worker_info, which is refused.
        worker = torch_worker._worker_info
        return inputs, inputs[:3].argmax(), -1 if worker is None else worker.id


def build() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Dropout(0.2), nn.Linear(8, 3)).double()


def batch(generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    inputs = torch.randn(4, 6, generator=generator, dtype=torch.float64)
    return inputs, inputs[:, :3].argmax(1)


def loss_of(model: nn.Module, given: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    return nn.functional.cross_entropy(model(given[0]), given[1])


def make_optimizer(parameters) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)


def main() -> None:
    dist.init_process_group(backend="gloo", init_method="env://")
    rank = int(os.environ["RANK"])
    torch.manual_seed(rank)
    model = DDP(build())
    optimizer = make_optimizer(model.parameters())
    points = Points(0, draws="draws" in sys.argv)
    sampler = DistributedSampler(points, shuffle=True)
    training = DataLoader(points, batch_size=4, sampler=sampler)
    held = DataLoader(Points(100, draws=False), batch_size=12)
    losses, workers = [], {"training": set(), "held": set()}
    for epoch in range(2):
        sampler.set_epoch(epoch)
        model.train()
        for inputs, targets, worker in training:
            optimizer.zero_grad()
            loss = loss_of(model, (inputs, targets))
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
            workers["training"].update(worker.tolist())
        model.eval()
        for inputs, targets, worker in held:
            with torch.no_grad():
                losses.append(loss_of(model, (inputs, targets)).item())
            workers["held"].update(worker.tolist())
    assert (training.num_workers, training.prefetch_factor) == (0, None)
    saved = {"model": model.state_dict(), "losses": losses}
    torch.save(saved, f"{sys.argv[1]}-{rank}.pt")
    print("workers", {name: sorted(found) for name, found in workers.items()})
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
