"""Trains GPT-2 with accelerate and no Trainer: groups of parameters, checkpoints by step, batches skipped on resume."""

import argparse
import json
import math
from pathlib import Path

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch.utils.data import DataLoader, Dataset
from transformers import GPT2Config, GPT2LMHeadModel, default_data_collator, get_scheduler


class Texts(Dataset):
    def __init__(self, size: int, length: int, vocabulary: int) -> None:
        starts = torch.randint(vocabulary, (size, 1), generator=torch.Generator().manual_seed(8))
        self.words = (starts + torch.arange(length) * (1 + starts % 5)) % vocabulary

    def __len__(self) -> int:
        return len(self.words)

    def __getitem__(self, index: int) -> dict[str, list[int]]:
        words = self.words[index].tolist()
        return {"input_ids": words, "labels": words}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=24)
    parser.add_argument("--resume")
    args = parser.parse_args()

    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    set_seed(17)
    config = GPT2Config(vocab_size=50, n_positions=20, n_embd=64, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=0)
    model = GPT2LMHeadModel(config)
    texts = Texts(160, 20, 50)
    train_dataloader = DataLoader(texts, shuffle=True, collate_fn=default_data_collator, batch_size=4)

    no_decay = ("bias", "ln_1.weight", "ln_2.weight", "ln_f.weight")
    groups = [
        {
            "params": [one for name, one in model.named_parameters() if not name.endswith(no_decay)],
            "weight_decay": 0.1,
        },
        {"params": [one for name, one in model.named_parameters() if name.endswith(no_decay)], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=2e-3)
    lr_scheduler = get_scheduler(
        "cosine",
        optimizer=optimizer,
        num_warmup_steps=4 * accelerator.num_processes,
        num_training_steps=(args.steps + 8) * accelerator.num_processes,
    )
    model, optimizer, train_dataloader, lr_scheduler = accelerator.prepare(
        model, optimizer, train_dataloader, lr_scheduler
    )

    steps_per_epoch = math.ceil(len(train_dataloader) / accelerator.gradient_accumulation_steps)
    completed_steps = starting_epoch = skipped = 0
    if args.resume:
        accelerator.load_state(args.resume)
        completed_steps = int(Path(args.resume).name.removeprefix("step_"))
        starting_epoch, steps_into_epoch = divmod(completed_steps, steps_per_epoch)
        skipped = steps_into_epoch * accelerator.gradient_accumulation_steps

    args.output.mkdir(parents=True, exist_ok=True)
    for epoch in range(starting_epoch, math.ceil(args.steps / steps_per_epoch)):
        model.train()
        train_dataloader.set_epoch(epoch)
        active = train_dataloader
        if args.resume and epoch == starting_epoch and skipped:
            active = accelerator.skip_first_batches(train_dataloader, skipped)
        for batch in active:
            with accelerator.accumulate(model):
                loss = model(**batch).loss
                accelerator.backward(loss)
                optimizer.step()
                lr_scheduler.step()
                optimizer.zero_grad()
            if accelerator.sync_gradients:
                completed_steps += 1
                if accelerator.is_main_process:
                    with (args.output / "log.jsonl").open("a") as log:
                        log.write(json.dumps({"step": completed_steps, "loss": loss.item()}) + "\n")
                if completed_steps == args.steps // 2:
                    accelerator.save_state(str(args.output / f"step_{completed_steps}"))
            if completed_steps >= args.steps:
                break

    accelerator.wait_for_everyone()
    unwrapped_model = accelerator.unwrap_model(model)
    unwrapped_model.save_pretrained(
        args.output, is_main_process=accelerator.is_main_process, save_function=accelerator.save
    )
    accelerator.end_training()


if __name__ == "__main__":
    main()
