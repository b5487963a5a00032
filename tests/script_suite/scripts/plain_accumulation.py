"""A small residual network of timm. Gradients are accumulated over four batches, with `no_sync` in all but the last."""

import argparse
import contextlib
import json
from pathlib import Path

import timm
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP

ACCUMULATION_STEPS = 4


def batches(rank: int, skip: int):
    """Endless batches of this rank, from the one of a number on."""
    number = skip
    while True:
        generator = torch.Generator().manual_seed(1000 * number + rank)
        images = torch.randn(4, 3, 32, 32, generator=generator)
        yield images, (images.mean((1, 2, 3)) > 0).long()
        number += 1


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=24)
    parser.add_argument("--resume")
    args = parser.parse_args()

    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DDP(timm.create_model("test_resnet", pretrained=False, num_classes=2), broadcast_buffers=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.005, momentum=0.9, nesterov=True)

    start = 0
    if args.resume:
        checkpoint = torch.load(args.resume, map_location="cpu")
        model.load_state_dict(checkpoint["model"])
        optimizer.load_state_dict(checkpoint["optimizer"])
        start = checkpoint["step"]

    args.output.mkdir(parents=True, exist_ok=True)
    data = batches(rank, skip=start * ACCUMULATION_STEPS)
    optimizer.zero_grad()
    for step in range(start + 1, args.steps + 1):
        total = torch.zeros(())
        for micro_step in range(ACCUMULATION_STEPS):
            images, labels = next(data)
            is_last = micro_step == ACCUMULATION_STEPS - 1
            with contextlib.nullcontext() if is_last else model.no_sync():
                loss = F.cross_entropy(model(images), labels) / ACCUMULATION_STEPS
                loss.backward()
            total += loss.detach()
        optimizer.step()
        optimizer.zero_grad()

        # The log has the mean over all ranks.
        dist.all_reduce(total)
        if rank == 0:
            with (args.output / "log.jsonl").open("a") as log:
                log.write(json.dumps({"step": step, "loss": total.item() / dist.get_world_size()}) + "\n")
            if step == args.steps // 2:
                checkpoint = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
                torch.save(checkpoint, args.output / "checkpoint.pt")

    if rank == 0:
        torch.save(model.module.state_dict(), args.output / "model.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
