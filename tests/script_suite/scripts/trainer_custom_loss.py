"""A Trainer with a loss and an optimizer of its own: a small vision transformer, SGD, no clipping."""

import argparse
import json
from pathlib import Path

import torch
from torch import nn
from transformers import Trainer, TrainerCallback, TrainingArguments, ViTConfig, ViTForImageClassification, set_seed


class WeightedTrainer(Trainer):
    """Rare classes count more."""

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        labels = inputs.pop("labels")
        outputs = model(**inputs)
        loss = nn.functional.cross_entropy(outputs.logits, labels, weight=torch.tensor([1.0, 2.0, 4.0]))
        return (loss, outputs) if return_outputs else loss


class Images(torch.utils.data.Dataset):
    def __init__(self, size: int) -> None:
        self.size = size

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        image = torch.randn(3, 32, 32, generator=torch.Generator().manual_seed(index))
        return {"pixel_values": image, "labels": image.mean((1, 2)).argmax()}


class Log(TrainerCallback):
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

    set_seed(1)
    model = ViTForImageClassification(
        ViTConfig(
            image_size=32,
            patch_size=8,
            hidden_size=96,
            num_hidden_layers=3,
            num_attention_heads=3,
            intermediate_size=192,
            num_labels=3,
        )
    )
    head = list(model.classifier.parameters())
    body = list(model.vit.parameters())
    optimizer = torch.optim.SGD(
        [{"params": body, "lr": 0.01}, {"params": head, "lr": 0.05}], momentum=0.9, weight_decay=1e-4
    )
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma=0.999)
    args.output.mkdir(parents=True, exist_ok=True)
    trainer = WeightedTrainer(
        model=model,
        args=TrainingArguments(
            output_dir=str(args.output),
            max_steps=args.steps,
            per_device_train_batch_size=8,
            max_grad_norm=0.0,
            logging_steps=1,
            save_steps=args.steps // 2,
            dataloader_drop_last=True,
            ddp_bucket_cap_mb=5,
            report_to=[],
            use_cpu=True,
            disable_tqdm=True,
        ),
        train_dataset=Images(200),
        optimizers=(optimizer, scheduler),
        callbacks=[Log(args.output / "log.jsonl")],
    )
    trainer.train(resume_from_checkpoint=args.resume)
    trainer.save_model()


if __name__ == "__main__":
    main()
