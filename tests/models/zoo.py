"""Real models in tiny configurations with random weights: what each is, what it is fed, what its loss is.

Builders import their libraries themselves: of `torchvision`, `timm`, `transformers` and `peft` (the extra `models`) a
machine may have none. The two models of this file's own need nothing but torch, and are what `make test` trains.
Nothing is random in training itself: there is no dropout, and no layer is dropped. With more `layers` they are as deep
as others train them, and as narrow as here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional

WORDS = 1024
NUM_CLASSES = 10
SIDE = 32

Batch = dict[str, torch.Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A model of the suite.

    `leaves_some`: a step may leave parameters without a gradient on some rank. `sparse`: some gradients are sparse.
    `is_compiled`: what is called is the model as torch.compile makes it. `between` is done between steps, and gives
    what it saw.
    """

    name: str
    library: str
    model: Callable[..., nn.Module]
    batch: Callable[[torch.Generator], Batch]
    loss: Callable[[nn.Module, Batch], torch.Tensor]
    leaves_some: bool = False
    sparse: bool = False
    is_compiled: bool = False
    between: Callable[[nn.Module], torch.Tensor] | None = None


def declare_operators() -> None:
    """Declare the operators that torchvision wants to describe when it is imported.

    They are in its compiled part, which beside a torch built for CPUs cannot be loaded. No model here calls them.
    """
    for name in ("nms", "qnms"):
        if not hasattr(torch.ops.torchvision, name):
            torch.library.define(f"torchvision::{name}", "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")


# What models are fed.


def images(generator: torch.Generator) -> Batch:
    return {
        "pixels": torch.randn(8, 3, SIDE, SIDE, generator=generator),
        "classes": torch.randint(NUM_CLASSES, (8,), generator=generator),
    }


def words(generator: torch.Generator) -> Batch:
    drawn = torch.randint(WORDS, (4, 24), generator=generator)
    return {"input_ids": drawn, "labels": drawn}


def masked_words(generator: torch.Generator) -> Batch:
    drawn = torch.randint(5, WORDS, (4, 24), generator=generator)
    hidden = torch.rand(drawn.shape, generator=generator) < 0.3
    hidden[:, 0] = True
    lengths = torch.randint(12, 25, (4, 1), generator=generator)
    return {
        "input_ids": drawn.masked_fill(hidden, 3),
        "labels": drawn.masked_fill(~hidden, -100),
        "attention_mask": (torch.arange(24)[None] < lengths).long(),
    }


def sentences(generator: torch.Generator) -> Batch:
    source = torch.randint(2, WORDS, (4, 24), generator=generator)
    return {"input_ids": source, "labels": source[:, :12].flip(1)}


def sound(generator: torch.Generator) -> Batch:
    return {
        "input_features": torch.randn(2, 16, 60, generator=generator),
        "labels": torch.randint(3, WORDS, (2, 10), generator=generator),
    }


def clicks(generator: torch.Generator) -> Batch:
    return {
        "rows": torch.randint(5000, (64, 4), generator=generator),
        "numbers": torch.randn(64, 8, generator=generator),
        "clicked": torch.randint(2, (64,), generator=generator).float(),
    }


# Losses. Whether they are computed by autocast is the training's business.


def class_loss(model: nn.Module, batch: Batch) -> torch.Tensor:
    return functional.cross_entropy(model(batch["pixels"]).float(), batch["classes"])


def own_loss(model: nn.Module, batch: Batch) -> torch.Tensor:
    """That which models of transformers compute, from a dataclass that they return."""
    loss: torch.Tensor = model(**batch).loss
    return loss


def picture_loss(model: nn.Module, batch: Batch) -> torch.Tensor:
    loss: torch.Tensor = model(pixel_values=batch["pixels"], labels=batch["classes"]).loss
    return loss


def click_loss(model: nn.Module, batch: Batch) -> torch.Tensor:
    return functional.binary_cross_entropy_with_logits(model(batch["rows"], batch["numbers"]).float(), batch["clicked"])


def word_loss(model: nn.Module, batch: Batch) -> torch.Tensor:
    return functional.cross_entropy(model(batch["input_ids"]).float().flatten(0, 1), batch["labels"].flatten())


# torchvision.


def shufflenet() -> nn.Module:
    from torchvision.models import shufflenet_v2_x0_5

    return shufflenet_v2_x0_5(num_classes=NUM_CLASSES)


def mobilenet() -> nn.Module:
    from torchvision.models import mobilenet_v3_small

    return mobilenet_v3_small(num_classes=NUM_CLASSES, dropout=0.0, width_mult=0.5)


def convnext(layers: int = 1) -> nn.Module:
    from torchvision.models.convnext import CNBlockConfig, ConvNeXt

    blocks = [CNBlockConfig(24, 48, layers), CNBlockConfig(48, 96, layers), CNBlockConfig(96, None, 2 * layers)]
    return ConvNeXt(blocks, stochastic_depth_prob=0.0, num_classes=NUM_CLASSES)


# timm.


def efficientnet() -> nn.Module:
    import timm

    return timm.create_model("test_efficientnet", num_classes=NUM_CLASSES)


def resnet(layers: int = 1) -> nn.Module:
    from timm.models.resnet import BasicBlock, ResNet

    return ResNet(BasicBlock, (layers,) * 4, num_classes=NUM_CLASSES, channels=(32, 64, 128, 160))


def regnet() -> nn.Module:
    from timm.models.regnet import RegNet, RegNetCfg

    config = RegNetCfg(depth=5, w0=16, wa=64, wm=2.0, group_size=8, se_ratio=0.25)
    return RegNet(config, num_classes=NUM_CLASSES)


def mixer(layers: int = 3) -> nn.Module:
    from timm.models.mlp_mixer import MlpMixer

    return MlpMixer(num_classes=NUM_CLASSES, img_size=SIDE, patch_size=8, num_blocks=layers, embed_dim=192)


def swin(layers: int = 2) -> nn.Module:
    from timm.models.swin_transformer import SwinTransformer

    return SwinTransformer(
        img_size=SIDE, patch_size=2, num_classes=NUM_CLASSES, embed_dim=64, depths=(layers, layers), num_heads=(2, 4),
        window_size=4, drop_path_rate=0.0,
    )  # fmt: skip


# transformers.


def bert(layers: int = 2) -> nn.Module:
    from transformers import BertConfig, BertForMaskedLM

    config = BertConfig(
        vocab_size=WORDS, hidden_size=128, num_hidden_layers=layers, num_attention_heads=4, intermediate_size=256,
        max_position_embeddings=32, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    return BertForMaskedLM(config)


def gpt2(layers: int = 2) -> nn.Module:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        vocab_size=WORDS, n_positions=48, n_embd=128, n_layer=layers, n_head=4, resid_pdrop=0.0, embd_pdrop=0.0,
        attn_pdrop=0.0, bos_token_id=0, eos_token_id=0,
    )  # fmt: skip
    return GPT2LMHeadModel(config)


def t5(layers: int = 2) -> nn.Module:
    from transformers import T5Config, T5ForConditionalGeneration

    config = T5Config(
        vocab_size=WORDS, d_model=128, d_kv=32, d_ff=256, num_layers=layers, num_heads=4, dropout_rate=0.0,
        decoder_start_token_id=0,
    )  # fmt: skip
    return T5ForConditionalGeneration(config)


def llama(layers: int = 2) -> nn.Module:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=WORDS, hidden_size=128, intermediate_size=320, num_hidden_layers=layers, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=64,
    )  # fmt: skip
    return LlamaForCausalLM(config)


def vit(layers: int = 2) -> nn.Module:
    from transformers import ViTConfig, ViTForImageClassification

    config = ViTConfig(
        hidden_size=128, num_hidden_layers=layers, num_attention_heads=4, intermediate_size=256, image_size=SIDE,
        patch_size=8, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, num_labels=NUM_CLASSES,
    )  # fmt: skip
    return ViTForImageClassification(config)


def whisper(layers: int = 2) -> nn.Module:
    from transformers import WhisperConfig, WhisperForConditionalGeneration

    config = WhisperConfig(
        vocab_size=WORDS, num_mel_bins=16, d_model=128, encoder_layers=layers, decoder_layers=layers,
        encoder_attention_heads=4, decoder_attention_heads=4, encoder_ffn_dim=256, decoder_ffn_dim=256,
        max_source_positions=30, max_target_positions=32, dropout=0.0, attention_dropout=0.0, activation_dropout=0.0,
        pad_token_id=0, bos_token_id=1, eos_token_id=2, decoder_start_token_id=1,
        suppress_tokens=None, begin_suppress_tokens=None,
    )  # fmt: skip
    return WhisperForConditionalGeneration(config)


def mixtral(layers: int = 2) -> nn.Module:
    """Its experts are slices of common parameters: one that gets no token has zeros in their gradient."""
    from transformers import MixtralConfig, MixtralForCausalLM

    config = MixtralConfig(
        vocab_size=WORDS, hidden_size=128, intermediate_size=192, num_hidden_layers=layers, num_attention_heads=4,
        num_key_value_heads=2, num_local_experts=4, num_experts_per_tok=2, max_position_embeddings=64,
    )  # fmt: skip
    return MixtralForCausalLM(config)


def switch(layers: int = 2) -> nn.Module:
    """Its experts are modules: one that gets no token has no gradient."""
    from transformers import SwitchTransformersConfig, SwitchTransformersForConditionalGeneration

    config = SwitchTransformersConfig(
        vocab_size=WORDS, d_model=128, d_kv=32, d_ff=192, num_layers=layers, num_decoder_layers=layers, num_heads=4,
        num_sparse_encoder_layers=layers // 2, num_sparse_decoder_layers=layers // 2, num_experts=12,
        expert_capacity=64, router_jitter_noise=0.0, dropout_rate=0.0, decoder_start_token_id=0,
    )  # fmt: skip
    return SwitchTransformersForConditionalGeneration(config)


def mamba(layers: int = 2) -> nn.Module:
    from transformers import MambaConfig, MambaForCausalLM

    config = MambaConfig(
        vocab_size=WORDS, hidden_size=96, state_size=8, num_hidden_layers=layers, use_mambapy=False, pad_token_id=0,
        bos_token_id=0, eos_token_id=0,
    )  # fmt: skip
    return MambaForCausalLM(config)


# peft.


def lora(layers: int = 2) -> nn.Module:
    """GPT-2 whose own parameters are frozen, beside adapters of low rank that are trained."""
    from peft import LoraConfig, get_peft_model

    config = LoraConfig(r=4, lora_alpha=8, target_modules=["c_attn", "c_proj"], lora_dropout=0.0, fan_in_fan_out=True)
    adapted: nn.Module = get_peft_model(gpt2(layers), config)
    return adapted


# Our own.


class Recommender(nn.Module):
    """Tables of which a step touches few rows, and a tower of layers over what it finds there."""

    def __init__(self, *, sparse: bool) -> None:
        super().__init__()
        self.tables = nn.ModuleList([nn.Embedding(5000, 16, sparse=sparse) for _ in range(4)])
        self.numbers = nn.Linear(8, 16)
        self.tower = nn.Sequential(nn.Linear(80, 64), nn.ReLU(), nn.Linear(64, 1))

    def forward(self, rows: torch.Tensor, numbers: torch.Tensor) -> torch.Tensor:
        found = [table(rows[:, index]) for index, table in enumerate(self.tables)]
        return self.tower(torch.cat([*found, self.numbers(numbers)], dim=1)).squeeze(1)


class Experts(nn.Module):
    """A layer of experts, each word at the one that the router likes best: some get no word in a step."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, 32)
        self.router = nn.Linear(32, 24)
        self.experts = nn.ModuleList(
            [nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 32)) for _ in range(24)]
        )
        self.norm = nn.LayerNorm(32)
        self.head = nn.Linear(32, WORDS)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        hidden = self.words(words)
        weights, chosen = self.router(hidden).softmax(dim=-1).max(dim=-1)
        mixed = torch.zeros_like(hidden)
        for index in chosen.unique().tolist():
            where = chosen == index
            mixed[where] = (self.experts[index](hidden[where]) * weights[where, None]).to(mixed.dtype)
        return self.head(self.norm(hidden + mixed))


def recommender() -> nn.Module:
    return Recommender(sparse=True)


ENTRIES: tuple[Entry, ...] = (
    *(
        Entry(name=model.__name__, library=library, model=model, batch=images, loss=class_loss)
        for library, models in {
            "torchvision": (shufflenet, mobilenet, convnext),
            "timm": (resnet, efficientnet, regnet, mixer, swin),
        }.items()
        for model in models
    ),
    Entry(name="bert", library="transformers", model=bert, batch=masked_words, loss=own_loss),
    Entry(name="gpt2", library="transformers", model=gpt2, batch=words, loss=own_loss),
    Entry(name="t5", library="transformers", model=t5, batch=sentences, loss=own_loss),
    Entry(name="llama", library="transformers", model=llama, batch=words, loss=own_loss),
    Entry(name="vit", library="transformers", model=vit, batch=images, loss=picture_loss),
    Entry(name="whisper", library="transformers", model=whisper, batch=sound, loss=own_loss),
    Entry(name="mixtral", library="transformers", model=mixtral, batch=words, loss=own_loss),
    Entry(name="switch", library="transformers", model=switch, batch=sentences, loss=own_loss, leaves_some=True),
    Entry(name="mamba", library="transformers", model=mamba, batch=words, loss=own_loss),
    Entry(name="lora", library="peft", model=lora, batch=words, loss=own_loss),
    Entry(name="recommender", library="torch", model=recommender, batch=clicks, loss=click_loss, sparse=True),
    Entry(name="experts", library="torch", model=Experts, batch=words, loss=word_loss, leaves_some=True),
)


def entry_of(name: str) -> Entry:
    return next(entry for entry in ENTRIES if entry.name == name)
