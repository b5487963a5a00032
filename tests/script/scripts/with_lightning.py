"""Lightning's Trainer with its automatic optimization, which steps with a closure."""

import sys

import lightning
import torch
from torch import nn


class Module(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(5, 6), nn.BatchNorm1d(6), nn.Tanh(), nn.Linear(6, 2))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.net(inputs)

    def training_step(self, given: list[torch.Tensor], number: int) -> torch.Tensor:
        return loss_of(self, given[0])

    def validation_step(self, given: list[torch.Tensor], number: int) -> None:
        self.log("loss", loss_of(self, given[0]), sync_dist=True)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return make_optimizer(self.parameters())


def build() -> nn.Module:
    return Module().double()


def batch(generator: torch.Generator) -> torch.Tensor:
    return torch.randn(4, 5, generator=generator, dtype=torch.float64)


def loss_of(model: nn.Module, inputs: torch.Tensor) -> torch.Tensor:
    return (model(inputs) - inputs[:, :2]).square().mean()


def make_optimizer(parameters) -> torch.optim.Optimizer:
    return torch.optim.Adam(parameters, lr=0.01)


def main() -> None:
    lightning.seed_everything(3)
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    trainer = lightning.Trainer(
        accelerator="cpu", devices=2, strategy="ddp", max_epochs=2, default_root_dir=f"{sys.argv[1]}-root", **quiet
    )
    inputs = torch.randn(32, 5, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    data = torch.utils.data.TensorDataset(inputs)
    loaders = [torch.utils.data.DataLoader(data, batch_size=4, shuffle=is_train) for is_train in (True, False)]
    module = build()
    trainer.fit(module, *loaders)
    torch.save({"model": module.state_dict()}, f"{sys.argv[1]}-{trainer.global_rank}.pt")


if __name__ == "__main__":
    main()
