"""Trains a small Llama from scratch with the Trainer: accumulation, bfloat16, recomputation, a cosine schedule."""

import json
import sys
from dataclasses import dataclass, field
from pathlib import Path

import torch
from transformers import (
    HfArgumentParser,
    LlamaConfig,
    LlamaForCausalLM,
    Trainer,
    TrainerCallback,
    TrainingArguments,
    default_data_collator,
    set_seed,
)


@dataclass
class ScriptArguments:
    output: str = field(metadata={"help": "Where checkpoints and the log go."})
    steps: int = field(default=24)
    resume: str | None = field(default=None)
    block_size: int = field(default=32)


class Blocks(torch.utils.data.Dataset):
    """Blocks of a made-up text, in which a word mostly follows from the two before it."""

    def __init__(self, num_blocks: int, block_size: int, vocab_size: int) -> None:
        generator = torch.Generator().manual_seed(11)
        words = torch.randint(vocab_size, (num_blocks * block_size,), generator=generator)
        for place in range(2, len(words)):
            if place % 5:
                words[place] = (words[place - 1] + 3 * words[place - 2]) % vocab_size
        self.blocks = words.view(num_blocks, block_size)

    def __len__(self) -> int:
        return len(self.blocks)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"input_ids": self.blocks[index], "labels": self.blocks[index].clone()}


class JsonLog(TrainerCallback):
    def __init__(self, path: Path) -> None:
        self.path = path

    def on_log(self, args, state, control, logs=None, **kwargs) -> None:
        if state.is_world_process_zero:
            with self.path.open("a") as log:
                log.write(json.dumps(logs) + "\n")


def main() -> None:
    (script_args,) = HfArgumentParser(ScriptArguments).parse_args_into_dataclasses(sys.argv[1:])
    set_seed(0)
    config = LlamaConfig(
        vocab_size=96,
        hidden_size=64,
        intermediate_size=160,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=script_args.block_size,
        use_cache=False,
    )
    model = LlamaForCausalLM(config)
    training_args = TrainingArguments(
        output_dir=script_args.output,
        max_steps=script_args.steps,
        per_device_train_batch_size=4,
        gradient_accumulation_steps=2,
        gradient_checkpointing=True,
        gradient_checkpointing_kwargs={"use_reentrant": False},
        bf16=True,
        learning_rate=2e-3,
        lr_scheduler_type="cosine",
        warmup_steps=4,
        weight_decay=0.1,
        adam_beta2=0.95,
        max_grad_norm=1.0,
        logging_steps=1,
        logging_nan_inf_filter=False,
        save_steps=script_args.steps // 2,
        save_total_limit=2,
        ddp_find_unused_parameters=False,
        report_to="none",
        use_cpu=True,
        disable_tqdm=True,
    )
    output = Path(script_args.output)
    output.mkdir(parents=True, exist_ok=True)
    trainer = Trainer(
        model=model,
        args=training_args,
        train_dataset=Blocks(512, script_args.block_size, config.vocab_size),
        data_collator=default_data_collator,
        callbacks=[JsonLog(output / "log.jsonl")],
    )
    result = trainer.train(resume_from_checkpoint=script_args.resume)
    trainer.save_model()
    trainer.save_metrics("train", result.metrics)
    trainer.save_state()


if __name__ == "__main__":
    main()
