"""Trains a small model of timm with accelerate: bfloat16, accumulated and clipped gradients, a one-cycle schedule."""

import argparse
import json
from pathlib import Path

import timm
import torch
from accelerate import Accelerator
from accelerate.utils import ProjectConfiguration, set_seed
from torch.utils.data import DataLoader, TensorDataset


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=24)
    parser.add_argument("--resume")
    args = parser.parse_args()

    config = ProjectConfiguration(project_dir=str(args.output), automatic_checkpoint_naming=True)
    accelerator = Accelerator(cpu=True, mixed_precision="bf16", gradient_accumulation_steps=2, project_config=config)
    set_seed(3)
    images = torch.randn(128, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    labels = images.mean((2, 3)).argmax(1)
    loader = DataLoader(TensorDataset(images, labels), batch_size=8, shuffle=True)

    model = timm.create_model("test_vit", pretrained=False, img_size=32, num_classes=3)
    optimizer = torch.optim.AdamW(model.parameters(), lr=4e-5)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=1e-3, total_steps=4 * args.steps)
    model, optimizer, loader, scheduler = accelerator.prepare(model, optimizer, loader, scheduler)

    args.output.mkdir(parents=True, exist_ok=True)
    step = 0
    if args.resume:
        accelerator.load_state(args.resume)
        step = args.steps // 2
    losses: list[torch.Tensor] = []
    model.train()
    while step < args.steps:
        for inputs, targets in loader:
            with accelerator.accumulate(model):
                loss = torch.nn.functional.cross_entropy(model(inputs), targets)
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
            losses.append(loss.detach())
            if not accelerator.sync_gradients:
                continue
            step += 1
            mean = accelerator.gather(torch.stack(losses)).mean().item()
            losses.clear()
            if accelerator.is_main_process:
                with (args.output / "log.jsonl").open("a") as log:
                    log.write(json.dumps({"step": step, "loss": mean}) + "\n")
            if step == args.steps // 2:
                accelerator.save_state()
            if step == args.steps:
                break

    accelerator.wait_for_everyone()
    if accelerator.is_main_process:
        accelerator.save(accelerator.unwrap_model(model).state_dict(), args.output / "model.pt")
    accelerator.end_training()


if __name__ == "__main__":
    main()
