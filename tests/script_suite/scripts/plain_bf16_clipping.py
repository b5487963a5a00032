"""A small vision transformer of timm, in bfloat16 by autocast, with clipped gradients and a warm-up."""

import argparse
import json
import os
from pathlib import Path

import timm
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


def get_loader(batch_size: int) -> DataLoader:
    generator = torch.Generator().manual_seed(0)
    images = torch.randn(128, 3, 32, 32, generator=generator)
    labels = images.mean((2, 3)).argmax(1)
    dataset = TensorDataset(images, labels)
    sampler = DistributedSampler(dataset, shuffle=True, drop_last=True)
    return DataLoader(dataset, batch_size=batch_size, sampler=sampler)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=24)
    parser.add_argument("--resume")
    parser.add_argument("--max-norm", type=float, default=1.0)
    args = parser.parse_args()

    dist.init_process_group(backend="gloo")
    rank = int(os.environ["RANK"])
    torch.manual_seed(7)
    model = timm.create_model(
        "vit_tiny_patch16_224", img_size=32, patch_size=8, embed_dim=96, depth=3, num_heads=3, num_classes=3
    )
    model = DistributedDataParallel(model, gradient_as_bucket_view=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.05)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 8))
    criterion = nn.CrossEntropyLoss(label_smoothing=0.1)
    loader = get_loader(batch_size=16)

    step = epoch = 0
    if args.resume:
        checkpoint = torch.load(args.resume, map_location="cpu")
        model.load_state_dict(checkpoint["model"])
        optimizer.load_state_dict(checkpoint["optimizer"])
        scheduler.load_state_dict(checkpoint["scheduler"])
        step, epoch = checkpoint["step"], checkpoint["epoch"]

    args.output.mkdir(parents=True, exist_ok=True)
    log = (args.output / "log.jsonl").open("a", buffering=1) if rank == 0 else None
    model.train()
    while step < args.steps:
        loader.sampler.set_epoch(epoch)
        for images, labels in loader:
            with torch.autocast(device_type="cpu", dtype=torch.bfloat16):
                loss = criterion(model(images), labels)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), args.max_norm)
            optimizer.step()
            scheduler.step()
            step += 1
            if log:
                print(json.dumps({"step": step, "loss": loss.item(), "lr": scheduler.get_last_lr()[0]}), file=log)
        epoch += 1
        if rank == 0 and step == args.steps // 2:
            checkpoint = {
                "model": model.state_dict(),
                "optimizer": optimizer.state_dict(),
                "scheduler": scheduler.state_dict(),
                "step": step,
                "epoch": epoch,
            }
            torch.save(checkpoint, args.output / "checkpoint.pt")

    if rank == 0:
        torch.save(model.module.state_dict(), args.output / "model.pt")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
