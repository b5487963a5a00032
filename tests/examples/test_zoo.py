"""The example tasks are the models that they are named after, can be profiled without data or a device, and learn."""

import functools
import importlib.util
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.utils._pytree import tree_flatten, tree_map
from torch.utils.flop_counter import FlopCounterMode

from autosync import Task

EXAMPLES = Path(__file__).parents[2] / "examples"
ZOO = EXAMPLES / "zoo"


def linear(inputs: int, outputs: int) -> int:
    return inputs * outputs + outputs


def bert_heads(width: int) -> int:
    """The masked word's transform, norm and bias, and the next sentence; its decoder is the embedding."""
    return linear(width, width) + 2 * width + 30_522 + linear(width, 2)


def transformer() -> int:
    attention = 4 * 512 * 512
    feed_forward = linear(512, 2048) + linear(2048, 512)
    norm = 2 * 512
    encoder_layer = attention + feed_forward + 2 * norm
    decoder_layer = 2 * attention + feed_forward + 3 * norm
    return 37_000 * 512 + 6 * (encoder_layer + decoder_layer)


def ncf(num_users: int, num_items: int, *widths: int) -> int:
    embeddings = (num_users + num_items) * (64 + widths[0] // 2)
    perceptron = sum(linear(inputs, outputs) for inputs, outputs in pairwise(widths))
    return embeddings + perceptron + linear(64 + 64, 1)


def encoder_layer(width: int) -> int:
    """Attention and a feed-forward network four times as wide, all with biases, and two norms."""
    return 4 * linear(width, width) + linear(width, 4 * width) + linear(4 * width, width) + 4 * width


def vit_mini() -> int:
    tokens = linear(3 * 4 * 4, 192) + 192 + (8 * 8 + 1) * 192
    return tokens + 4 * encoder_layer(192) + 2 * 192 + linear(192, 100)


def dlrm() -> int:
    # The 20 of Criteo Kaggle's 26 features that have at most 142,572 values have 283,115 between them.
    table_rows = (33_762_577 - 10_131_227 - 2_202_608 - 8_351_593 - 5_461_306 - 7_046_547 - 286_181) + (6 * 200_000)
    bottom = linear(13, 512) + linear(512, 256) + linear(256, 64) + linear(64, 16)
    pairs = 27 * 26 // 2
    top = linear(pairs + 16, 512) + linear(512, 256) + linear(256, 1)
    return table_rows * 16 + bottom + top


# A number is a published count; a sum starts from one; a call computes it from the published layer sizes.
NUM_PARAMETERS = {
    "vgg16": 138_357_544,
    "resnet18": 11_689_512,
    "resnet50": 25_557_032,
    "resnet101": 44_549_160,
    "densenet121": 7_978_856,
    "inception_v3": 27_161_264,
    "mobilenet_v2": 3_504_872,
    "gpt2_small": 124_439_808,
    "bert_large": 335_141_888 + bert_heads(1024),
    "bert_small": 28_763_648 + bert_heads(512),
    "transformer": transformer(),
    "ncf": ncf(138_493, 26_744, 256, 256, 128, 64),
    "dlrm": dlrm(),
    "resnet20": 269_722,
    "squeezenet": 1_235_496,
    "bert_tiny": 4_385_920 + bert_heads(128),
    "gpt_mini": (4096 + 256) * 256 + 2 * encoder_layer(256) + 2 * 256,
    "vit_mini": vit_mini(),
    "lstm_ptb": 10_000 * 200 + 2 * (linear(200, 800) + 200 * 800) + linear(200, 10_000),
    "acoustic_mlp": linear(440, 640) + 4 * linear(640, 640) + linear(640, 1500),
    "moe": linear(64, 256) + linear(256, 8) + 8 * (linear(256, 512) + linear(512, 256)) + linear(256, 10),
    "ncf_small": ncf(6040, 3706, 256, 128, 64),
}

# Billions of multiply-accumulates of one image's forward pass, as torchvision's documentation lists them.
GIGA_MACS = {
    "vgg16": 15.47,
    "resnet18": 1.814,
    "resnet50": 4.089,
    "resnet101": 7.801,
    "densenet121": 2.834,
    "inception_v3": 5.713,
    "mobilenet_v2": 0.301,
    "squeezenet": 0.349,
}

SPARSE = {"ncf": 4, "ncf_small": 4, "dlrm": 26, "lstm_ptb": 1}

SMALL_EXAMPLES = ("transformer", "convnet", "recommender")


def load(path: Path) -> ModuleType:
    """Loads a task file as the command line does: its neighbours can be imported while it is loaded."""
    spec = importlib.util.spec_from_file_location(f"example_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(path.parent))
    try:
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(str(path.parent))
    return module


@pytest.fixture(autouse=True)
def _forget_neighbours() -> Iterator[None]:
    yield
    for name in ("_blocks", "_bert", "_gpt", "_ncf", "_resnet"):
        sys.modules.pop(name, None)


def zoo_task(name: str) -> Task:
    task = load(ZOO / f"{name}.py").task()
    assert isinstance(task, Task)
    return task


def on_meta(task: Task) -> tuple[nn.Module, Any]:
    with torch.device("meta"):
        model = task.model()
        batch = task.batch(torch.Generator().manual_seed(0))
    return model, tree_map(lambda tensor: tensor.to("meta"), batch)


def test_every_zoo_file_has_a_count_to_be_held_against() -> None:
    files = {path.stem for path in ZOO.glob("*.py") if not path.stem.startswith("_")}
    assert files == set(NUM_PARAMETERS)


@pytest.mark.parametrize("name", NUM_PARAMETERS)
def test_number_of_parameters(name: str) -> None:
    with torch.device("meta"):
        model = zoo_task(name).model()
    # parameters() yields a tied one once.
    counted = sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
    assert counted == NUM_PARAMETERS[name]


@pytest.mark.parametrize("name", GIGA_MACS)
def test_convolutions_have_the_published_strides_and_sizes(name: str) -> None:
    task = zoo_task(name)
    model, (images, _) = on_meta(task)
    with FlopCounterMode(display=False) as counter:
        model(images)
    giga_macs = counter.get_total_flops() / 2 / task.batch_size / 1e9
    assert giga_macs == pytest.approx(GIGA_MACS[name], rel=0.003)


@functools.cache
def gradients_on_meta(name: str) -> dict[str, torch.Tensor | None]:
    """The gradients of a step on the meta device: there tensors have no values."""
    task = zoo_task(name)
    model, batch = on_meta(task)
    loss = task.loss(model, batch)
    assert loss.shape == ()
    loss.backward()  # type: ignore[no-untyped-call]
    return {name: parameter.grad for name, parameter in model.named_parameters()}


@pytest.mark.parametrize("name", NUM_PARAMETERS)
def test_a_step_on_the_meta_device_reaches_every_parameter(name: str) -> None:
    missing = [parameter for parameter, gradient in gradients_on_meta(name).items() if gradient is None]
    assert missing == []


@pytest.mark.parametrize("name", NUM_PARAMETERS)
def test_sparse_gradients_are_those_of_the_models_that_ask_for_them(name: str) -> None:
    sparse = sum(gradient is not None and gradient.is_sparse for gradient in gradients_on_meta(name).values())
    assert sparse == SPARSE.get(name, 0)


@pytest.mark.parametrize("name", SPARSE)
def test_optimizers_take_the_sparse_gradients(name: str) -> None:
    task = zoo_task(name)
    torch.manual_seed(0)
    model = task.model()
    before = [parameter.detach().clone() for parameter in model.parameters()]
    optimizer = task.optimizer(model.parameters())
    task.loss(model, task.batch(torch.Generator().manual_seed(0))).backward()  # type: ignore[no-untyped-call]
    optimizer.step()
    for old, (parameter_name, new) in zip(before, model.named_parameters(), strict=True):
        assert not torch.equal(old, new), parameter_name


@pytest.mark.parametrize("name", NUM_PARAMETERS)
def test_batches_have_the_stated_size_and_follow_the_generator(name: str) -> None:
    task = zoo_task(name)
    first, again, other = (tree_flatten(task.batch(torch.Generator().manual_seed(seed)))[0] for seed in (1, 1, 2))
    assert {len(tensor) for tensor in first} == {task.batch_size}
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert not all(torch.equal(a, b) for a, b in zip(first, other, strict=True))


@pytest.mark.parametrize(
    "path", sorted([*ZOO.glob("[a-z]*.py"), *EXAMPLES.glob("*.py")]), ids=lambda path: f"{path.parent.name}-{path.stem}"
)
def test_the_docstring_names_the_command_that_tunes_it(path: Path) -> None:
    place = path.relative_to(EXAMPLES.parent)
    command = f"\n    autosync tune {place} --cluster configs/clusters/local-2.yaml\n"
    assert command in (load(path).__doc__ or "")


@pytest.mark.parametrize("name", NUM_PARAMETERS)
def test_the_name_is_the_files(name: str) -> None:
    assert zoo_task(name).name == name


@pytest.mark.parametrize("name", NUM_PARAMETERS)
def test_the_docstring_states_the_count(name: str) -> None:
    assert f"{NUM_PARAMETERS[name]:,} parameters" in (load(ZOO / f"{name}.py").__doc__ or "")


@given(num_ids=st.integers(1, 10**7), seed=st.integers(0, 2**32))
def test_popular_ids_stay_in_range(num_ids: int, seed: int) -> None:
    ids = load(ZOO / "_blocks.py").zipf_ids(num_ids, (64,), torch.Generator().manual_seed(seed))
    assert int(ids.min()) >= 0
    assert int(ids.max()) < num_ids


def test_popular_ids_are_popular() -> None:
    ids = load(ZOO / "_blocks.py").zipf_ids(1000, (20_000,), torch.Generator().manual_seed(0))
    share = torch.bincount(ids, minlength=1000) / 20_000
    # P(rank r) = log((r + 1) / r) / log(1001)
    assert float(share[0]) == pytest.approx(0.1003, rel=0.1)
    assert float(share[99:].sum()) == pytest.approx(0.3334, rel=0.05)


def test_bert_hides_as_many_different_words_of_every_sequence() -> None:
    batch = zoo_task("bert_small").batch(torch.Generator().manual_seed(0))
    for words, masked, hidden in zip(batch["words"], batch["masked"], batch["masked_words"], strict=True):
        assert len(set(masked.tolist())) == len(masked) == 19
        assert set(words[masked].tolist()) == {103}
        assert len(set(hidden.tolist())) > 1


@pytest.mark.parametrize(
    ("name", "num_steps", "reached"),
    [
        pytest.param("transformer", 80, 1.2, marks=pytest.mark.slow),
        pytest.param("convnet", 160, 0.6, marks=pytest.mark.slow),
        ("recommender", 300, 0.64),
    ],
)
def test_small_examples_learn(name: str, num_steps: int, reached: float) -> None:
    task = load(EXAMPLES / f"{name}.py").task()
    torch.manual_seed(0)
    model = task.model()
    optimizer = task.optimizer(model.parameters())
    generator = torch.Generator().manual_seed(1)
    losses = []
    for _ in range(num_steps):
        loss = task.loss(model, task.batch(generator))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert sum(losses[-20:]) / 20 < reached < losses[0]


@pytest.mark.parametrize("name", SMALL_EXAMPLES)
def test_small_examples_train_alike_on_any_number_of_ranks(name: str) -> None:
    """Neither a batch's statistics nor random masks, which would differ from training in one process."""
    task = load(EXAMPLES / f"{name}.py").task()
    kinds = {type(module) for module in task.model().modules()}
    assert not kinds & {nn.BatchNorm2d, nn.Dropout}
    first, second = (task.batch(torch.Generator().manual_seed(seed)) for seed in (1, 1))
    model = task.model()
    assert torch.equal(task.loss(model, first), task.loss(model, second))
