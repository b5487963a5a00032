"""Models of torchvision, timm and transformers that the shipped records do not contain, as tasks.

The benchmark needs none of these libraries: it reads the profiles in `models/`, which were computed from operation
counts, for example

    autosync profile benchmarks/scaling_prediction/models.py:efficientnet --times computed \
        -o benchmarks/scaling_prediction/models/efficientnet_b0.yaml
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from autosync import Task

sys.path.append(str(Path(__file__).parents[2]))
from tests.models.zoo import declare_operators

BATCH_SIZE = 32
IMAGE_SIZE = 224
NUM_CLASSES = 1000
SENTENCE_LENGTH = 128


def efficientnet() -> Task:
    return _of_images("efficientnet_b0", lambda: _torchvision().efficientnet_b0())


def googlenet() -> Task:
    return _of_images("googlenet", lambda: _torchvision().googlenet(aux_logits=False, init_weights=False))


def shufflenet() -> Task:
    return _of_images("shufflenet_v2", lambda: _torchvision().shufflenet_v2_x1_0())


def vit_tiny() -> Task:
    def model() -> nn.Module:
        declare_operators()
        import timm

        return timm.create_model("vit_tiny_patch16_224")

    return _of_images("vit_tiny", model)


def bert_mini() -> Task:
    import transformers

    config = transformers.BertConfig(
        hidden_size=256, num_hidden_layers=4, num_attention_heads=4, intermediate_size=1024, attn_implementation="eager"
    )

    def batch(generator: torch.Generator) -> dict[str, Tensor]:
        tokens = torch.randint(config.vocab_size, (BATCH_SIZE, SENTENCE_LENGTH), generator=generator)
        return {"input_ids": tokens, "labels": tokens}

    return Task(
        name="bert_mini",
        model=lambda: transformers.BertForMaskedLM(config),
        batch=batch,
        loss=lambda model, one: model(**one).loss,
        optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=1e-4),
        batch_size=BATCH_SIZE,
    )


def _torchvision() -> Any:
    declare_operators()
    import torchvision

    return torchvision.models


def _of_images(name: str, model: Callable[[], nn.Module]) -> Task:
    def batch(generator: torch.Generator) -> tuple[Tensor, Tensor]:
        images = torch.randn(BATCH_SIZE, 3, IMAGE_SIZE, IMAGE_SIZE, generator=generator)
        return images, torch.randint(NUM_CLASSES, (BATCH_SIZE,), generator=generator)

    return Task(
        name=name,
        model=model,
        batch=batch,
        loss=lambda network, one: functional.cross_entropy(network(one[0]), one[1]),
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9),
        batch_size=BATCH_SIZE,
    )
