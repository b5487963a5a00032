"""Trains a small language model with accelerate."""

import argparse

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch.utils.data import DataLoader, TensorDataset
from transformers import GPT2Config, GPT2LMHeadModel, get_linear_schedule_with_warmup

CONFIG = GPT2Config(vocab_size=2000, n_positions=32, n_embd=256, n_layer=4, n_head=4)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=100)
    steps = parser.parse_args().steps

    accelerator = Accelerator(cpu=True)
    set_seed(0)
    data = TensorDataset(torch.randint(CONFIG.vocab_size, (512, CONFIG.n_positions)))
    model = GPT2LMHeadModel(CONFIG)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    schedule = get_linear_schedule_with_warmup(optimizer, num_warmup_steps=20, num_training_steps=2 * steps)
    loader = DataLoader(data, batch_size=4, shuffle=True)
    model, optimizer, loader, schedule = accelerator.prepare(model, optimizer, loader, schedule)

    step = 0
    while step < steps:
        for (tokens,) in loader:
            loss = model(input_ids=tokens, labels=tokens).loss
            accelerator.backward(loss)
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
            step += 1
            if step % 10 == 0:
                accelerator.print(f"step {step}: loss {loss.item():.4f}", flush=True)
            if step == steps:
                break
    accelerator.save_model(model, "model")
    accelerator.end_training()


if __name__ == "__main__":
    main()
