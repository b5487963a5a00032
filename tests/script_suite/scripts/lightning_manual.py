"""Lightning with manual optimization: two optimizers, one for the backbone and one for the head, both clipped."""

import argparse
from pathlib import Path

import lightning as L
import timm
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class TwoRates(L.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.backbone = timm.create_model("test_vit", pretrained=False, img_size=32, num_classes=0)
        self.head = nn.Linear(self.backbone.num_features, 4)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.head(self.backbone(images))

    def training_step(self, batch, batch_idx: int) -> None:
        images, labels = batch
        backbone_optimizer, head_optimizer = self.optimizers()
        loss = nn.functional.cross_entropy(self(images), labels)
        backbone_optimizer.zero_grad()
        head_optimizer.zero_grad()
        self.manual_backward(loss)
        for optimizer in (backbone_optimizer, head_optimizer):
            self.clip_gradients(optimizer, gradient_clip_val=0.5, gradient_clip_algorithm="norm")
            optimizer.step()
        for scheduler in self.lr_schedulers():
            scheduler.step()
        self.log("train_loss", loss)

    def configure_optimizers(self):
        optimizers = [
            torch.optim.AdamW(self.backbone.parameters(), lr=5e-4),
            torch.optim.AdamW(self.head.parameters(), lr=5e-3),
        ]
        return optimizers, [torch.optim.lr_scheduler.ExponentialLR(one, gamma=0.999) for one in optimizers]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=24)
    parser.add_argument("--resume")
    args = parser.parse_args()

    L.seed_everything(21)
    images = torch.randn(96, 3, 32, 32, generator=torch.Generator().manual_seed(6))
    labels = (images[:, 0].mean((1, 2)) > 0).long() + 2 * (images[:, 1].mean((1, 2)) > 0).long()
    trainer = L.Trainer(
        accelerator="cpu",
        devices=2,
        strategy="ddp",
        # Each of the two optimizers counts its steps.
        max_steps=2 * args.steps,
        log_every_n_steps=1,
        logger=CSVLogger(args.output, flush_logs_every_n_steps=1),
        callbacks=[ModelCheckpoint(dirpath=args.output, filename="{step}", every_n_train_steps=24, save_top_k=-1)],
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    loader = DataLoader(TensorDataset(images, labels), batch_size=8, shuffle=True)
    trainer.fit(TwoRates(), loader, ckpt_path=args.resume)
    trainer.save_checkpoint(args.output / "last.ckpt", weights_only=True)


if __name__ == "__main__":
    main()
