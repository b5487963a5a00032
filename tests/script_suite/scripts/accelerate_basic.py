"""Trains BERT with accelerate: prepare, a linear schedule, evaluation over all processes, a saved state."""

import argparse
import json
from pathlib import Path

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch.utils.data import DataLoader, TensorDataset
from transformers import BertConfig, BertForSequenceClassification, get_linear_schedule_with_warmup

BATCH_SIZE, EVAL_BATCH_SIZE = 8, 16


def get_dataloaders() -> tuple[DataLoader, DataLoader]:
    generator = torch.Generator().manual_seed(0)
    words = torch.randint(1, 70, (160, 12), generator=generator)
    labels = (words.float().mean(1) > 35).long()
    train, test = TensorDataset(words[:128], labels[:128]), TensorDataset(words[128:], labels[128:])
    return (
        DataLoader(train, shuffle=True, batch_size=BATCH_SIZE, drop_last=True),
        DataLoader(test, shuffle=False, batch_size=EVAL_BATCH_SIZE),
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=24)
    parser.add_argument("--resume")
    args = parser.parse_args()

    accelerator = Accelerator(cpu=True)
    set_seed(42)
    train_dataloader, eval_dataloader = get_dataloaders()
    config = BertConfig(
        vocab_size=70,
        hidden_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=128,
        max_position_embeddings=12,
    )
    model = BertForSequenceClassification(config)
    model = model.to(accelerator.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    lr_scheduler = get_linear_schedule_with_warmup(optimizer, num_warmup_steps=8, num_training_steps=2 * args.steps)
    model, optimizer, train_dataloader, eval_dataloader, lr_scheduler = accelerator.prepare(
        model, optimizer, train_dataloader, eval_dataloader, lr_scheduler
    )

    args.output.mkdir(parents=True, exist_ok=True)
    step = 0
    if args.resume:
        accelerator.load_state(args.resume)
        step = args.steps // 2
    while step < args.steps:
        model.train()
        for words, labels in train_dataloader:
            loss = model(input_ids=words, labels=labels).loss
            accelerator.backward(loss)
            optimizer.step()
            lr_scheduler.step()
            optimizer.zero_grad()
            step += 1
            if accelerator.is_main_process:
                with (args.output / "log.jsonl").open("a") as log:
                    log.write(json.dumps({"step": step, "loss": loss.item()}) + "\n")
            if step == args.steps // 2:
                accelerator.save_state(args.output / "state")
            if step == args.steps:
                break

        model.eval()
        num_right = num_all = 0
        for words, labels in eval_dataloader:
            with torch.no_grad():
                outputs = model(input_ids=words)
            predictions, references = accelerator.gather_for_metrics((outputs.logits.argmax(-1), labels))
            num_right += int((predictions == references).sum())
            num_all += len(references)
        accelerator.print(f"step {step}: accuracy {num_right / num_all:.3f}")

    accelerator.wait_for_everyone()
    accelerator.save_model(model, args.output)
    accelerator.end_training()


if __name__ == "__main__":
    main()
