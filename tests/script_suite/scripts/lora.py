"""Fine-tunes GPT-2 with LoRA adapters by peft and the Trainer. The base model is frozen; only adapters are saved."""

import argparse
import json
from pathlib import Path

import torch
from peft import LoraConfig, TaskType, get_peft_model
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    Trainer,
    TrainerCallback,
    TrainingArguments,
    default_data_collator,
    set_seed,
)


class Texts(torch.utils.data.Dataset):
    def __init__(self, size: int) -> None:
        self.words = torch.randint(64, (size, 16), generator=torch.Generator().manual_seed(3)).cumsum(1) % 64

    def __len__(self) -> int:
        return len(self.words)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"input_ids": self.words[index], "labels": self.words[index]}


class JsonLines(TrainerCallback):
    def __init__(self, path: Path) -> None:
        self.path = path

    def on_log(self, args, state, control, logs=None, **kwargs) -> None:
        if state.is_world_process_zero:
            with self.path.open("a") as log:
                log.write(json.dumps(logs) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=24)
    parser.add_argument("--resume")
    args = parser.parse_args()

    set_seed(6)
    base = GPT2LMHeadModel(
        GPT2Config(vocab_size=64, n_positions=16, n_embd=96, n_layer=3, n_head=3, bos_token_id=0, eos_token_id=0)
    )
    config = LoraConfig(
        task_type=TaskType.CAUSAL_LM,
        r=8,
        lora_alpha=16,
        lora_dropout=0.05,
        target_modules=["c_attn", "c_proj"],
        fan_in_fan_out=True,
        bias="none",
    )
    model = get_peft_model(base, config)
    model.print_trainable_parameters()
    args.output.mkdir(parents=True, exist_ok=True)
    trainer = Trainer(
        model=model,
        args=TrainingArguments(
            output_dir=str(args.output),
            max_steps=args.steps,
            per_device_train_batch_size=8,
            learning_rate=5e-3,
            warmup_steps=4,
            logging_steps=1,
            save_steps=args.steps // 2,
            report_to="none",
            use_cpu=True,
            disable_tqdm=True,
        ),
        train_dataset=Texts(256),
        data_collator=default_data_collator,
        callbacks=[JsonLines(args.output / "log.jsonl")],
    )
    trainer.train(resume_from_checkpoint=args.resume)
    trainer.save_model(args.output / "adapter")


if __name__ == "__main__":
    main()
