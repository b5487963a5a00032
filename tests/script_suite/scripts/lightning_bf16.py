"""Lightning with BERT: bfloat16, accumulated and clipped gradients, and a schedule by step."""

import argparse
from pathlib import Path

import lightning as L
import torch
from lightning.pytorch.callbacks import LearningRateMonitor, ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger
from torch.utils.data import DataLoader, Dataset
from transformers import BertConfig, BertForSequenceClassification


class Sentences(Dataset):
    def __init__(self, size: int) -> None:
        self.words = torch.randint(64, (size, 12), generator=torch.Generator().manual_seed(2))

    def __len__(self) -> int:
        return len(self.words)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"input_ids": self.words[index], "labels": self.words[index].sum() % 2}


class SentenceClassifier(L.LightningModule):
    def __init__(self, learning_rate: float = 1e-3, warmup_steps: int = 6) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.model = BertForSequenceClassification(
            BertConfig(
                vocab_size=64,
                hidden_size=48,
                num_hidden_layers=2,
                num_attention_heads=3,
                intermediate_size=96,
                max_position_embeddings=12,
            )
        )

    def training_step(self, batch, batch_idx: int) -> torch.Tensor:
        loss = self.model(**batch).loss
        self.log("train_loss", loss, on_step=True, sync_dist=True)
        return loss

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=self.hparams.learning_rate)
        warmup = self.hparams.warmup_steps
        scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / warmup))
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=24)
    parser.add_argument("--resume")
    args = parser.parse_args()

    L.seed_everything(4)
    trainer = L.Trainer(
        accelerator="cpu",
        devices=2,
        strategy="ddp",
        precision="bf16-mixed",
        accumulate_grad_batches=2,
        gradient_clip_val=1.0,
        max_steps=args.steps,
        log_every_n_steps=1,
        logger=CSVLogger(args.output, flush_logs_every_n_steps=1),
        callbacks=[
            LearningRateMonitor(logging_interval="step"),
            ModelCheckpoint(dirpath=args.output, filename="{step}", every_n_train_steps=12, save_top_k=-1),
        ],
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(SentenceClassifier(), DataLoader(Sentences(192), batch_size=4, shuffle=True), ckpt_path=args.resume)
    trainer.save_checkpoint(args.output / "last.ckpt", weights_only=True)


if __name__ == "__main__":
    main()
