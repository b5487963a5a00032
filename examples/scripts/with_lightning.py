"""Trains a small language model with Lightning's Trainer."""

import argparse

import lightning
import torch
from torch.utils.data import DataLoader, TensorDataset
from transformers import GPT2Config, GPT2LMHeadModel

CONFIG = GPT2Config(vocab_size=2000, n_positions=32, n_embd=256, n_layer=4, n_head=4)


class LanguageModel(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.model = GPT2LMHeadModel(CONFIG)

    def training_step(self, batch: list[torch.Tensor]) -> torch.Tensor:
        loss = self.model(input_ids=batch[0], labels=batch[0]).loss
        self.log("loss", loss, prog_bar=True)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=3e-4)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--nodes", type=int, default=1)
    parser.add_argument("--devices", type=int, default=2, help="ranks on each node")
    options = parser.parse_args()

    lightning.seed_everything(0)
    data = TensorDataset(torch.randint(CONFIG.vocab_size, (512, CONFIG.n_positions)))
    trainer = lightning.Trainer(
        accelerator="cpu",
        num_nodes=options.nodes,
        devices=options.devices,
        strategy="ddp",
        max_steps=options.steps,
        logger=False,
    )
    trainer.fit(LanguageModel(), DataLoader(data, batch_size=4, shuffle=True))
    trainer.save_checkpoint("model.ckpt")


if __name__ == "__main__":
    main()
