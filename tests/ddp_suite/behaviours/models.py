"""Kinds of layers and models: normalisation, recurrence, embeddings, convolutions, checkpointing."""

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from environment import Env, Run, Values, adam, behaviour, enter, momentum, numbers, sgd, task
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils import parametrizations


def images(g: torch.Generator) -> Tensor:
    return torch.randn(2, 3, 6, 6, generator=g, dtype=torch.float64)


def words(g: torch.Generator) -> Tensor:
    return torch.randint(9, (3, 4), generator=g)


def _trains(
    e: Env, model: Callable[[], nn.Module], batch: Any = numbers, optimizer: Any = momentum, **more: Any
) -> Values:
    run = e.start(task(lambda: model().double(), optimizer, batch, **more))
    return {"losses": run.steps(5), **run.values()}


class Recurrent(nn.Module):
    def __init__(self, kind: Any, **options: Any) -> None:
        super().__init__()
        self.cell, self.out = kind(5, 6, batch_first=True, **options), nn.Linear(6, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.cell(x.unsqueeze(0))[0])


class Cells(nn.Module):
    """A cell that is called once a time step."""

    def __init__(self) -> None:
        super().__init__()
        self.cell, self.out = nn.LSTMCell(5, 6), nn.Linear(6, 1)

    def forward(self, x: Tensor) -> Tensor:
        state = None
        for row in x:
            state = self.cell(row.unsqueeze(0), state)
        return self.out(state[0])


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(6, 2, 8, dropout=0.0, batch_first=True)
        self.into, self.out = nn.Linear(5, 6), nn.Linear(6, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.layer(self.into(x).unsqueeze(0)))


def conv() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.GroupNorm(2, 4), nn.ReLU(), nn.Conv2d(4, 2, 3), nn.Flatten(), nn.Linear(8, 1)
    )


class Bilinear(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Bilinear(5, 5, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x, x)


KINDS: dict[str, tuple[Callable[[], nn.Module], Any]] = {
    "rnn": (lambda: Recurrent(nn.RNN), numbers),
    "lstm": (lambda: Recurrent(nn.LSTM, num_layers=2), numbers),
    "gru": (lambda: Recurrent(nn.GRU), numbers),
    "cell_called_for_each_step": (Cells, numbers),
    "attention": (Attention, numbers),
    "convolutions": (conv, images),
    "layer_norm": (lambda: nn.Sequential(nn.Linear(5, 6), nn.LayerNorm(6), nn.Linear(6, 1)), numbers),
    "batch_norm_without_affine": (
        lambda: nn.Sequential(nn.Linear(5, 6), nn.BatchNorm1d(6, affine=False), nn.Linear(6, 1)),
        numbers,
    ),
    "instance_norm": (
        lambda: nn.Sequential(nn.Conv2d(3, 4, 3), nn.InstanceNorm2d(4, affine=True), nn.Flatten(), nn.Linear(64, 1)),
        images,
    ),
    "bilinear": (Bilinear, numbers),
    "prelu": (lambda: nn.Sequential(nn.Linear(5, 6), nn.PReLU(), nn.Linear(6, 1)), numbers),
    "weight_norm": (
        lambda: nn.Sequential(parametrizations.weight_norm(nn.Linear(5, 6)), nn.Tanh(), nn.Linear(6, 1)),
        numbers,
    ),
    "orthogonal": (
        lambda: nn.Sequential(parametrizations.orthogonal(nn.Linear(5, 5).double()), nn.Tanh(), nn.Linear(5, 1)),
        numbers,
    ),
}


for _name, (_model, _batch) in KINDS.items():
    enter(f"model_{_name}", lambda e, model=_model, batch=_batch: _trains(e, model, batch), group="models")


@behaviour
def model_spectral_norm(e: Env) -> Values:
    """Its power iteration changes buffers in each forward pass in training."""
    return _trains(
        e, lambda: nn.Sequential(parametrizations.spectral_norm(nn.Linear(5, 6)), nn.Tanh(), nn.Linear(6, 1))
    )


@behaviour
def model_with_hooked_weight_norm(e: Env) -> Values:
    """The older weight norm, a forward pre-hook that sets an attribute."""
    return _trains(e, lambda: nn.Sequential(nn.utils.weight_norm(nn.Linear(5, 6)), nn.Tanh(), nn.Linear(6, 1)))


@behaviour
def model_with_batch_norm(e: Env) -> Values:
    run = e.start(task(lambda: nn.Sequential(nn.Linear(5, 6), nn.BatchNorm1d(6), nn.Linear(6, 1)).double(), momentum))
    losses = run.steps(5)
    return {"losses": losses, **run.values()}


@behaviour
def model_with_batch_norm_and_accumulation(e: Env) -> Values:
    run = e.start(task(lambda: nn.Sequential(nn.Linear(5, 6), nn.BatchNorm1d(6), nn.Linear(6, 1)).double(), momentum))
    for _ in range(4):
        run.optimizer.zero_grad()
        with run.no_sync():
            run.loss().backward()
        run.loss().backward()
        run.optimizer.step()
    return run.values()


@behaviour
def model_with_a_pruned_layer(e: Env) -> Values:
    from torch.nn.utils import prune

    def model() -> nn.Module:
        made = nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 1))
        prune.l1_unstructured(made[0], "weight", 0.3)
        return made

    return _trains(e, model)


@behaviour
def model_of_lazy_layers(e: Env) -> Values:
    def model() -> nn.Module:
        made = nn.Sequential(nn.LazyLinear(6, dtype=torch.float64), nn.Tanh(), nn.Linear(6, 1).double())
        made(torch.zeros(1, 5, dtype=torch.float64))
        return made

    return _trains(e, model)


def _classify(m: nn.Module, text: Tensor) -> Tensor:
    return functional.cross_entropy(m(text), text[:, 0])


class Words(nn.Module):
    def __init__(self, *, sparse: bool = False, **options: Any) -> None:
        super().__init__()
        self.words, self.out = nn.Embedding(9, 6, sparse=sparse, **options), nn.Linear(6, 9)

    def forward(self, text: Tensor) -> Tensor:
        return self.out(self.words(text).mean(1))


class Bag(nn.Module):
    def __init__(self, *, sparse: bool = False) -> None:
        super().__init__()
        self.words, self.out = nn.EmbeddingBag(9, 6, sparse=sparse), nn.Linear(6, 9)

    def forward(self, text: Tensor) -> Tensor:
        return self.out(self.words(text))


for _name, _model, _optimizer in (
    ("embedding", Words, momentum),
    ("embedding_with_padding", lambda: Words(padding_idx=0), momentum),
    ("embedding_scaled_by_frequency", lambda: Words(scale_grad_by_freq=True), momentum),
    ("embedding_bag", Bag, momentum),
):
    enter(
        f"model_{_name}",
        lambda e, model=_model, o=_optimizer: _trains(e, model, words, o, loss=_classify),
        group="models",
    )


def _sparse(e: Env, model: Callable[[], nn.Module], optimizer: Any) -> Values:
    """torch's own sum of sparse gradients on gloo may corrupt memory: the reference is the same layer, dense."""
    run = e.run(task(lambda: model().double(), optimizer, words, loss=_classify))
    if e.is_stock:
        run.model.words.sparse = False
    run.start()
    return {"losses": run.steps(5), **run.values()}


enter("model_sparse_embedding", lambda e: _sparse(e, lambda: Words(sparse=True), sgd), group="models")
enter("model_sparse_embedding_bag", lambda e: _sparse(e, lambda: Bag(sparse=True), sgd), group="models")


@behaviour
def sync_batch_norm(e: Env) -> Values:
    """torch's SyncBatchNorm runs on devices only; on a CPU DDP's script ends with its error."""
    run = e.start(
        task(
            lambda: nn.SyncBatchNorm.convert_sync_batchnorm(nn.Sequential(nn.Linear(5, 6), nn.BatchNorm1d(6))).double()
        )
    )
    run.steps(2)
    return run.values()


def averaged_by_hand(run: Run) -> None:
    """What DDP means to do, without it: the first rank's parameters, and an average of gradients before each step."""
    for p in run.parameters():
        first = p.detach().contiguous()
        dist.broadcast(first, 0)
        p.data.copy_(first)

    def average(*_: Any) -> None:
        for p in run.parameters():
            mean = p.grad.contiguous()
            dist.all_reduce(mean)
            p.grad.copy_(mean / run.env.ranks)

    run.optimizer.register_step_pre_hook(average)


def _channels(e: Env, *, after: bool) -> Values:
    run = e.run(task(lambda: conv().double(), momentum, images))
    if not after:
        run.model.to(memory_format=torch.channels_last)
    if after and e.is_stock:
        averaged_by_hand(run)
    else:
        run.start()
    if after:
        run.model.to(memory_format=torch.channels_last)
    losses = run.steps(5)
    return {"losses": losses, **run.values(), "strides": [list(p.stride()) for p in run.parameters()]}


@behaviour
def channels_last(e: Env) -> Values:
    return _channels(e, after=False)


@behaviour
def channels_last_after(e: Env) -> Values:
    """DDP's reducer goes on with the strides of before and errs: an average by hand is the reference."""
    return _channels(e, after=True)


@behaviour
def channels_last_strides_of_gradients(e: Env) -> Values:
    run = e.run(task(lambda: conv().double(), momentum, images))
    run.model.to(memory_format=torch.channels_last)
    run.start()
    run.loss().backward()
    return {"parameters": list(run.model[0].weight.stride()), "gradients": list(run.model[0].weight.grad.stride())}


@behaviour
def channels_last_declared(e: Env) -> Values:
    run = e.start(task(lambda: conv().double().to(memory_format=torch.channels_last), adam, images))
    losses = run.steps(5)
    return {"losses": losses, **run.values(), "strides": [list(p.stride()) for p in run.parameters()]}
