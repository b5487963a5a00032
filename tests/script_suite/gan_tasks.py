"""Tasks of the two models that `scripts/gan.py` trains: the door needs a bundle for each."""

import sys
from pathlib import Path

import torch
from torch import nn

from autosync import Task

sys.path.insert(0, str(Path(__file__).parent / "scripts"))
import gan

sys.path.pop(0)


def generator() -> Task:
    """The generator, by a loss that depends on all of its image."""
    return Task(
        name="gan_generator",
        model=gan.Generator,
        batch=lambda draws: torch.randn(gan.BATCH_SIZE, gan.NOISE, 1, 1, generator=draws),
        loss=lambda model, noise: model(noise).square().mean(),
        optimizer=gan.make_optimizer,
        batch_size=gan.BATCH_SIZE,
    )


def discriminator() -> Task:
    """The discriminator, on real images."""
    return Task(
        name="gan_discriminator",
        model=gan.Discriminator,
        batch=gan.real_images,
        loss=lambda model, images: nn.functional.softplus(-model(images)).mean(),
        optimizer=gan.make_optimizer,
        batch_size=gan.BATCH_SIZE,
    )
