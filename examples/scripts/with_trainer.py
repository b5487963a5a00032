"""Trains a small language model with the Trainer of transformers."""

import argparse

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments, set_seed

CONFIG = GPT2Config(vocab_size=2000, n_positions=32, n_embd=256, n_layer=4, n_head=4)


class Blocks(torch.utils.data.Dataset):
    def __init__(self) -> None:
        self.tokens = torch.randint(CONFIG.vocab_size, (512, CONFIG.n_positions))

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"input_ids": self.tokens[index], "labels": self.tokens[index]}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=100)
    steps = parser.parse_args().steps

    set_seed(0)
    settings = TrainingArguments(
        output_dir="output",
        max_steps=steps,
        per_device_train_batch_size=4,
        learning_rate=3e-4,
        logging_steps=10,
        save_steps=steps,
        report_to="none",
        use_cpu=True,
        disable_tqdm=True,
    )
    trainer = Trainer(model=GPT2LMHeadModel(CONFIG), args=settings, train_dataset=Blocks())
    trainer.train()
    trainer.save_model("model")


if __name__ == "__main__":
    main()
