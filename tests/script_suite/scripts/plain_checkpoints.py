"""Trains a small GPT-2 from scratch. It saves a checkpoint every few steps, with random states, and can be resumed."""

import argparse
import json
import math
import os
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from transformers import GPT2Config, GPT2LMHeadModel

BLOCK_SIZE = 24
BATCH_SIZE = 8
MAX_LR, MIN_LR, WARMUP_STEPS, DECAY_STEPS = 2e-3, 2e-4, 6, 400


def get_batch(data: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    starts = torch.randint(len(data) - BLOCK_SIZE, (BATCH_SIZE,), generator=generator)
    return torch.stack([data[start : start + BLOCK_SIZE] for start in starts])


def get_lr(step: int) -> float:
    if step < WARMUP_STEPS:
        return MAX_LR * (step + 1) / WARMUP_STEPS
    ratio = min(1.0, (step - WARMUP_STEPS) / (DECAY_STEPS - WARMUP_STEPS))
    return MIN_LR + 0.5 * (1.0 + math.cos(math.pi * ratio)) * (MAX_LR - MIN_LR)


def make_optimizer(model: torch.nn.Module) -> torch.optim.Optimizer:
    parameters = [one for one in model.parameters() if one.requires_grad]
    groups = [
        {"params": [one for one in parameters if one.dim() >= 2], "weight_decay": 0.1},
        {"params": [one for one in parameters if one.dim() < 2], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=MAX_LR, betas=(0.9, 0.95))


@torch.no_grad()
def estimate_loss(model: torch.nn.Module, data: torch.Tensor) -> float:
    model.eval()
    generator = torch.Generator().manual_seed(99)
    losses = [model(input_ids=words, labels=words).loss for words in (get_batch(data, generator) for _ in range(2))]
    model.train()
    return float(torch.stack(losses).mean())


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=24)
    parser.add_argument("--resume")
    parser.add_argument("--eval-interval", type=int, default=12)
    args = parser.parse_args()

    dist.init_process_group(backend="gloo")
    rank = int(os.environ["RANK"])
    master_process = rank == 0
    torch.manual_seed(1337 + rank)
    args.output.mkdir(parents=True, exist_ok=True)

    numbers = torch.randint(0, 64, (4000,), generator=torch.Generator().manual_seed(3))
    data = (numbers.cumsum(0) // 7) % 64
    config = GPT2Config(
        vocab_size=64, n_positions=BLOCK_SIZE, n_embd=96, n_layer=3, n_head=3, bos_token_id=0, eos_token_id=0
    )
    model = GPT2LMHeadModel(config)
    optimizer = make_optimizer(model)
    batches = torch.Generator().manual_seed(500 + rank)
    step = 0
    if args.resume:
        checkpoint = torch.load(args.resume, map_location="cpu", weights_only=False)
        model.load_state_dict(checkpoint["model"])
        optimizer.load_state_dict(checkpoint["optimizer"])
        step = checkpoint["step"]
        torch.set_rng_state(checkpoint["rng"][rank])
        batches.set_state(checkpoint["batches"][rank])
    model = DDP(model)
    raw_model = model.module

    words = get_batch(data, batches)
    while step < args.steps:
        for group in optimizer.param_groups:
            group["lr"] = get_lr(step)
        loss = model(input_ids=words, labels=words).loss
        words = get_batch(data, batches)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        step += 1
        if master_process:
            with (args.output / "log.jsonl").open("a") as log:
                log.write(json.dumps({"step": step, "loss": loss.item()}) + "\n")
        if step % args.eval_interval == 0:
            if master_process:
                print(f"step {step}: validation loss {estimate_loss(raw_model, data):.4f}")
            states: list = [None] * dist.get_world_size()
            dist.all_gather_object(states, (torch.get_rng_state(), batches.get_state()))
            if master_process:
                checkpoint = {
                    "model": raw_model.state_dict(),
                    "optimizer": optimizer.state_dict(),
                    "step": step,
                    "rng": [one[0] for one in states],
                    "batches": [one[1] for one in states],
                }
                torch.save(checkpoint, args.output / f"checkpoint-{step:05d}.pt")

    if master_process:
        torch.save(raw_model.state_dict(), args.output / "model.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
