"""Trains an image classifier by `torchrun --nproc-per-node 2 plain_torchrun.py`."""

import argparse
import json
import os
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler
from torchvision.models import squeezenet1_1


class Images(Dataset):
    """Noise with a brighter quarter, which is the class."""

    def __init__(self, size: int) -> None:
        generator = torch.Generator().manual_seed(0)
        self.labels = torch.randint(4, (size,), generator=generator)
        self.images = torch.randn(size, 3, 32, 32, generator=generator)
        for image, label in zip(self.images, self.labels.tolist(), strict=True):
            row, column = divmod(label, 2)
            image[:, 16 * row : 16 * row + 16, 16 * column : 16 * column + 16] += 1.0

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        return self.images[index], self.labels[index]


class Trainer:
    def __init__(self, model, loader, optimizer, scheduler, output: Path) -> None:
        self.rank = int(os.environ["RANK"])
        self.loader = loader
        self.optimizer = optimizer
        self.scheduler = scheduler
        self.output = output
        self.epoch = 0
        self.step = 0
        self.model = DDP(model)

    def load(self, path: str) -> None:
        checkpoint = torch.load(path, map_location="cpu")
        self.model.module.load_state_dict(checkpoint["model"])
        self.optimizer.load_state_dict(checkpoint["optimizer"])
        self.scheduler.load_state_dict(checkpoint["scheduler"])
        self.epoch, self.step = checkpoint["epoch"], checkpoint["step"]

    def save(self) -> None:
        checkpoint = {
            "model": self.model.module.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "scheduler": self.scheduler.state_dict(),
            "epoch": self.epoch,
            "step": self.step,
        }
        torch.save(checkpoint, self.output / "checkpoint.pt")

    def train_batch(self, images: torch.Tensor, labels: torch.Tensor) -> float:
        self.optimizer.zero_grad()
        loss = F.cross_entropy(self.model(images), labels)
        loss.backward()
        self.optimizer.step()
        return loss.item()

    def train(self, steps: int) -> None:
        self.model.train()
        while self.step < steps:
            self.loader.sampler.set_epoch(self.epoch)
            for images, labels in self.loader:
                loss = self.train_batch(images, labels)
                self.step += 1
                if self.rank == 0:
                    with (self.output / "log.jsonl").open("a") as log:
                        log.write(json.dumps({"step": self.step, "loss": loss}) + "\n")
            self.epoch += 1
            self.scheduler.step()
            if self.rank == 0 and self.step == steps // 2:
                self.save()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=24)
    parser.add_argument("--resume")
    args = parser.parse_args()

    dist.init_process_group("gloo")
    torch.manual_seed(0)
    args.output.mkdir(parents=True, exist_ok=True)
    model = squeezenet1_1(num_classes=4)
    data = Images(96)
    loader = DataLoader(data, batch_size=12, sampler=DistributedSampler(data))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9, weight_decay=1e-4)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=2, gamma=0.9)
    trainer = Trainer(model, loader, optimizer, scheduler, args.output)
    if args.resume:
        trainer.load(args.resume)
    trainer.train(args.steps)
    if dist.get_rank() == 0:
        torch.save(trainer.model.module.state_dict(), args.output / "model.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
