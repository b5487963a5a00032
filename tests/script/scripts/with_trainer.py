"""The Trainer of transformers with its defaults (AdamW, clipping at 1.0), evaluations and checkpoints."""

import sys

import torch
from torch import nn
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments


def build() -> nn.Module:
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
    return BertForSequenceClassification(BertConfig(vocab_size=50, max_position_embeddings=16, **sizes)).double()


def example(number: int) -> dict[str, torch.Tensor]:
    words = torch.randint(50, (8,), generator=torch.Generator().manual_seed(number))
    return {"input_ids": words, "attention_mask": torch.ones(8, dtype=torch.long), "labels": words.sum() % 2}


def batch(generator: torch.Generator) -> dict[str, torch.Tensor]:
    examples = [example(int(torch.randint(1000, (), generator=generator))) for _ in range(4)]
    return {key: torch.stack([one[key] for one in examples]) for key in examples[0]}


def loss_of(model: nn.Module, given: dict[str, torch.Tensor]) -> torch.Tensor:
    return model(**given).loss


def make_optimizer(parameters) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=1e-3)


class Data(torch.utils.data.Dataset):
    def __len__(self) -> int:
        return 48

    def __getitem__(self, number: int) -> dict[str, torch.Tensor]:
        return example(number)


def main() -> None:
    arguments = TrainingArguments(
        output_dir=f"{sys.argv[1]}-out",
        per_device_train_batch_size=4,
        num_train_epochs=1,
        learning_rate=1e-3,
        logging_steps=2,
        save_steps=3,
        eval_strategy="steps",
        eval_steps=3,
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
    )
    model = build()
    trainer = Trainer(model=model, args=arguments, train_dataset=Data(), eval_dataset=Data())
    trainer.train()
    losses = [one["loss"] for one in trainer.state.log_history if "loss" in one]
    torch.save({"model": model.state_dict(), "losses": losses}, f"{sys.argv[1]}-{arguments.process_index}.pt")


if __name__ == "__main__":
    main()
