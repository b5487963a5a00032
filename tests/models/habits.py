"""What scripts do with models besides: memory formats, compilation, checkpointing of activations, generated text.

Each is one of the models of the zoo, trained in that way under stock DDP and under every strategy alike.
"""

from __future__ import annotations

import functools
from dataclasses import replace

import torch
from torch import nn
from zoo import Batch, Entry, entry_of, gpt2, images, resnet


def _channels_last() -> nn.Module:
    return resnet().to(memory_format=torch.channels_last)


def _images_channels_last(generator: torch.Generator) -> Batch:
    batch = images(generator)
    return {**batch, "pixels": batch["pixels"].to(memory_format=torch.channels_last)}


def _checkpointed(*, use_reentrant: bool) -> nn.Module:
    model = gpt2()
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": use_reentrant})
    return model


def _generated(model: nn.Module) -> torch.Tensor:
    """The logits of some words that the model adds to a sentence."""
    model.eval()
    start = torch.arange(8)[None]
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        found = model.generate(
            start, attention_mask=torch.ones_like(start), max_new_tokens=6, do_sample=False, output_logits=True,
            return_dict_in_generate=True, pad_token_id=0,
        )  # fmt: skip
    model.train()
    return torch.stack(found.logits)


HABITS: tuple[Entry, ...] = (
    replace(entry_of("resnet"), name="resnet-channels-last", model=_channels_last, batch=_images_channels_last),
    *(
        replace(
            entry_of("gpt2"), name=f"gpt2-checkpointed-{kind}", model=functools.partial(_checkpointed, use_reentrant=on)
        )
        for kind, on in (("reentrant", True), ("otherwise", False))
    ),
    replace(entry_of("llama"), name="llama-compiled", is_compiled=True),
    replace(entry_of("gpt2"), name="gpt2-generating", between=_generated),
    replace(entry_of("t5"), name="t5-generating", between=_generated),
)
