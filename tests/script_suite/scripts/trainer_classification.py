"""Trains BERT to classify sequences with the Trainer of transformers, evaluates it, and keeps the best checkpoint."""

import argparse
import json
from pathlib import Path

import numpy as np
import torch
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    EvalPrediction,
    Trainer,
    TrainerCallback,
    TrainingArguments,
    set_seed,
)

VOCABULARY, LENGTH = 80, 16


class Sentences(torch.utils.data.Dataset):
    def __init__(self, size: int, seed: int) -> None:
        self.words = torch.randint(1, VOCABULARY, (size, LENGTH), generator=torch.Generator().manual_seed(seed))

    def __len__(self) -> int:
        return len(self.words)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        words = self.words[index]
        label = (words < VOCABULARY // 2).sum() > LENGTH // 2
        return {"input_ids": words, "attention_mask": torch.ones_like(words), "labels": label.long()}


class LogCallback(TrainerCallback):
    """Keeps a log beside the checkpoints."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def on_log(self, args, state, control, logs=None, **kwargs) -> None:
        if state.is_world_process_zero and logs:
            with self.path.open("a") as log:
                log.write(json.dumps({"step": state.global_step, **logs}) + "\n")


def compute_metrics(prediction: EvalPrediction) -> dict[str, float]:
    return {"accuracy": float((np.argmax(prediction.predictions, axis=1) == prediction.label_ids).mean())}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=24)
    parser.add_argument("--resume")
    args = parser.parse_args()

    set_seed(42)
    config = BertConfig(
        vocab_size=VOCABULARY,
        hidden_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=128,
        max_position_embeddings=LENGTH,
        num_labels=2,
    )
    training_args = TrainingArguments(
        output_dir=str(args.output),
        max_steps=args.steps,
        per_device_train_batch_size=8,
        per_device_eval_batch_size=16,
        learning_rate=1e-3,
        weight_decay=0.01,
        logging_steps=1,
        eval_strategy="steps",
        eval_steps=args.steps // 2,
        save_strategy="steps",
        save_steps=args.steps // 2,
        load_best_model_at_end=True,
        metric_for_best_model="loss",
        report_to="none",
        use_cpu=True,
        disable_tqdm=True,
    )
    args.output.mkdir(parents=True, exist_ok=True)
    trainer = Trainer(
        model=BertForSequenceClassification(config),
        args=training_args,
        train_dataset=Sentences(256, seed=1),
        eval_dataset=Sentences(32, seed=2),
        compute_metrics=compute_metrics,
        callbacks=[LogCallback(args.output / "log.jsonl")],
    )
    trainer.train(resume_from_checkpoint=args.resume)
    print(trainer.evaluate())
    trainer.save_model()


if __name__ == "__main__":
    main()
