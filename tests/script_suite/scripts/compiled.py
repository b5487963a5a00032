"""Trains a small vision transformer with torch.compile around DDP."""

import argparse
import json
import os
from pathlib import Path

import timm
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=24)
    parser.add_argument("--resume")
    args = parser.parse_args()

    dist.init_process_group("gloo")
    rank = int(os.environ["RANK"])
    torch.manual_seed(31)
    images = torch.randn(96, 3, 32, 32, generator=torch.Generator().manual_seed(1))
    dataset = TensorDataset(images, images.mean((2, 3)).argmin(1))
    sampler = DistributedSampler(dataset)
    loader = DataLoader(dataset, batch_size=12, sampler=sampler, drop_last=True)

    raw_model = timm.create_model("test_vit", pretrained=False, img_size=32, num_classes=3)
    ddp_model = DDP(raw_model)
    model = torch.compile(ddp_model)
    optimizer = torch.optim.AdamW(raw_model.parameters(), lr=1e-3)

    step = epoch = 0
    if args.resume:
        checkpoint = torch.load(args.resume, map_location="cpu")
        raw_model.load_state_dict(checkpoint["model"])
        optimizer.load_state_dict(checkpoint["optimizer"])
        step, epoch = checkpoint["step"], checkpoint["epoch"]

    args.output.mkdir(parents=True, exist_ok=True)
    model.train()
    while step < args.steps:
        sampler.set_epoch(epoch)
        for inputs, targets in loader:
            optimizer.zero_grad(set_to_none=True)
            loss = F.cross_entropy(model(inputs), targets)
            loss.backward()
            optimizer.step()
            step += 1
            if rank == 0:
                with (args.output / "log.jsonl").open("a") as log:
                    log.write(json.dumps({"step": step, "loss": loss.item()}) + "\n")
        epoch += 1
        if rank == 0 and step == args.steps // 2:
            checkpoint = {
                "model": raw_model.state_dict(),
                "optimizer": optimizer.state_dict(),
                "step": step,
                "epoch": epoch,
            }
            torch.save(checkpoint, args.output / "checkpoint.pt")

    if rank == 0:
        torch.save(raw_model.state_dict(), args.output / "model.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
