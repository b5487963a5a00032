"""Trains T5 with the Seq2SeqTrainer: Adafactor, smoothed labels, and evaluation with generated text."""

import argparse
import json
from pathlib import Path

import torch
from transformers import (
    Seq2SeqTrainer,
    Seq2SeqTrainingArguments,
    T5Config,
    T5ForConditionalGeneration,
    TrainerCallback,
    set_seed,
)

VOCABULARY, LENGTH, PAD, END = 60, 10, 0, 1


class Reversals(torch.utils.data.Dataset):
    """The target is the source in reverse order."""

    def __init__(self, size: int, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.words = torch.randint(2, VOCABULARY, (size, LENGTH), generator=generator)

    def __len__(self) -> int:
        return len(self.words)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        source = self.words[index]
        end, start = torch.tensor([END]), torch.tensor([PAD])
        return {
            "input_ids": torch.cat([source, end]),
            "attention_mask": torch.ones(LENGTH + 1, dtype=torch.long),
            "decoder_input_ids": torch.cat([start, source.flip(0)]),
            "labels": torch.cat([source.flip(0), end]),
        }


class LossLog(TrainerCallback):
    def __init__(self, path: Path) -> None:
        self.path = path

    def on_log(self, args, state, control, logs=None, **kwargs) -> None:
        if state.is_world_process_zero and "loss" in (logs or {}):
            with self.path.open("a") as log:
                log.write(json.dumps({"step": state.global_step, "loss": logs["loss"]}) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=24)
    parser.add_argument("--resume")
    args = parser.parse_args()

    set_seed(5)
    model = T5ForConditionalGeneration(
        T5Config(
            vocab_size=VOCABULARY,
            d_model=48,
            d_kv=16,
            d_ff=96,
            num_layers=2,
            num_heads=3,
            pad_token_id=PAD,
            eos_token_id=END,
            decoder_start_token_id=PAD,
        )
    )
    training_args = Seq2SeqTrainingArguments(
        output_dir=str(args.output),
        max_steps=args.steps,
        per_device_train_batch_size=8,
        per_device_eval_batch_size=8,
        optim="adafactor",
        learning_rate=5e-3,
        lr_scheduler_type="constant",
        label_smoothing_factor=0.1,
        predict_with_generate=True,
        generation_max_length=LENGTH + 2,
        eval_strategy="steps",
        eval_steps=args.steps // 2,
        save_steps=args.steps // 2,
        logging_steps=1,
        report_to="none",
        use_cpu=True,
        disable_tqdm=True,
    )
    args.output.mkdir(parents=True, exist_ok=True)
    trainer = Seq2SeqTrainer(
        model=model,
        args=training_args,
        train_dataset=Reversals(256, seed=1),
        eval_dataset=Reversals(16, seed=2),
        callbacks=[LossLog(args.output / "log.jsonl")],
    )
    trainer.train(resume_from_checkpoint=args.resume)
    trainer.save_model()


if __name__ == "__main__":
    main()
