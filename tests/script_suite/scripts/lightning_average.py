"""Lightning with a data module, unused parameters, early stopping, and an exponential average of the weights."""

import argparse
from pathlib import Path

import lightning as L
import torch
from lightning.pytorch.callbacks import EarlyStopping, EMAWeightAveraging, ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from transformers import BertConfig, BertModel


class Words(L.LightningDataModule):
    def __init__(self, batch_size: int = 8) -> None:
        super().__init__()
        self.batch_size = batch_size

    def setup(self, stage: str) -> None:
        words = torch.randint(50, (112, 8), generator=torch.Generator().manual_seed(13))
        targets = words.float().mean(1) / 25 - 1
        self.train = TensorDataset(words[:96], targets[:96])
        self.val = TensorDataset(words[96:], targets[96:])

    def train_dataloader(self) -> DataLoader:
        return DataLoader(self.train, batch_size=self.batch_size, shuffle=True)

    def val_dataloader(self) -> DataLoader:
        return DataLoader(self.val, batch_size=self.batch_size)


class Regression(L.LightningModule):
    """A regression on BERT's mean hidden state; its pooler is not used."""

    def __init__(self) -> None:
        super().__init__()
        self.bert = BertModel(
            BertConfig(
                vocab_size=50,
                hidden_size=48,
                num_hidden_layers=2,
                num_attention_heads=3,
                intermediate_size=96,
                max_position_embeddings=8,
            )
        )
        self.head = nn.Linear(48, 1)

    def error(self, batch) -> torch.Tensor:
        words, targets = batch
        hidden = self.bert(input_ids=words).last_hidden_state.mean(1)
        return nn.functional.smooth_l1_loss(self.head(hidden).squeeze(1), targets)

    def training_step(self, batch, batch_idx: int) -> torch.Tensor:
        loss = self.error(batch)
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch, batch_idx: int) -> None:
        self.log("val_loss", self.error(batch), sync_dist=True)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.NAdam(self.parameters(), lr=1e-3)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=24)
    parser.add_argument("--resume")
    args = parser.parse_args()

    L.seed_everything(8, workers=True)
    trainer = L.Trainer(
        accelerator="cpu",
        devices=2,
        strategy="ddp_find_unused_parameters_true",
        max_steps=args.steps,
        log_every_n_steps=1,
        logger=CSVLogger(args.output, flush_logs_every_n_steps=1),
        callbacks=[
            EMAWeightAveraging(decay=0.9),
            EarlyStopping(monitor="val_loss", patience=1000),
            ModelCheckpoint(dirpath=args.output, filename="{step}", every_n_train_steps=12, save_top_k=-1),
        ],
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Regression(), datamodule=Words(), ckpt_path=args.resume)
    trainer.save_checkpoint(args.output / "last.ckpt", weights_only=True)


if __name__ == "__main__":
    main()
