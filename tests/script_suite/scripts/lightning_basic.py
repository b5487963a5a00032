"""Trains an image classifier with Lightning's Trainer: automatic optimization, validation, checkpoints by step."""

import argparse
from pathlib import Path

import lightning as L
import torch
import torch.nn.functional as F
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger
from torch.utils.data import DataLoader, TensorDataset
from torchvision.models import squeezenet1_1


class Classifier(L.LightningModule):
    def __init__(self, lr: float = 5e-4) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.model = squeezenet1_1(num_classes=3)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.model(images)

    def training_step(self, batch, batch_idx: int) -> torch.Tensor:
        images, labels = batch
        loss = F.cross_entropy(self(images), labels)
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch, batch_idx: int) -> None:
        images, labels = batch
        self.log("val_loss", F.cross_entropy(self(images), labels), sync_dist=True)

    def configure_optimizers(self):
        optimizer = torch.optim.Adam(self.parameters(), lr=self.hparams.lr)
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, step_size=3, gamma=0.95)]


def images(size: int, seed: int) -> TensorDataset:
    generator = torch.Generator().manual_seed(seed)
    values = torch.randn(size, 3, 48, 48, generator=generator)
    return TensorDataset(values, values.mean((2, 3)).argmax(1))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=24)
    parser.add_argument("--resume")
    args = parser.parse_args()

    L.seed_everything(12)
    trainer = L.Trainer(
        accelerator="cpu",
        devices=2,
        strategy="ddp",
        max_steps=args.steps,
        log_every_n_steps=1,
        logger=CSVLogger(args.output, flush_logs_every_n_steps=1),
        callbacks=[ModelCheckpoint(dirpath=args.output, filename="{step}", every_n_train_steps=12, save_top_k=-1)],
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    train_loader = DataLoader(images(96, seed=1), batch_size=8, shuffle=True)
    val_loader = DataLoader(images(16, seed=2), batch_size=8)
    model = Classifier()
    trainer.fit(model, train_loader, val_loader, ckpt_path=args.resume)
    trainer.save_checkpoint(args.output / "last.ckpt", weights_only=True)


if __name__ == "__main__":
    main()
