"""Layers whose gradients are made in another way: checkpoints, scripted layers, autograd functions, new layouts."""

import dataclasses
from collections.abc import Callable
from typing import Any

import torch
from behaviours.models import averaged_by_hand, conv, images
from environment import Env, Values, behaviour, enter, momentum, numbers, task
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint, checkpoint_sequential


def _trains(
    e: Env, model: Callable[[], nn.Module], batch: Any = numbers, optimizer: Any = momentum, **more: Any
) -> Values:
    run = e.start(task(lambda: model().double(), optimizer, batch, **more))
    return {"losses": run.steps(5), **run.values()}


# Checkpointing of activations.


@dataclasses.dataclass
class Out:
    logits: Tensor


class Checkpointed(nn.Module):
    def __init__(self, *, reentrant: bool, times: int = 1, wraps: bool = False) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Linear(5, 5), nn.Linear(5, 5), nn.Linear(5, 1)
        self.reentrant, self.times, self.wraps = reentrant, times, wraps

    def forward(self, x: Tensor) -> Any:
        x = torch.tanh(self.a(x))
        for _ in range(self.times):
            x = checkpoint(self.b, x, use_reentrant=self.reentrant)
        return Out(self.c(x)) if self.wraps else self.c(x)


def _out(m: Any, x: Tensor) -> Tensor:
    y = m(x)
    return ((y.logits if isinstance(y, Out) else y) - 1).square().mean()


def _checkpoints(
    e: Env, model: Callable[[], nn.Module], *, accumulates: bool = False, by_hand: bool = False, **ddp: Any
) -> Values:
    run = e.run(task(lambda: model().double(), momentum, loss=_out))
    if by_hand and e.is_stock:
        averaged_by_hand(run)
    else:
        run.start(ddp=ddp)
    for _ in range(4):
        run.optimizer.zero_grad()
        if accumulates:
            with run.no_sync():
                run.loss().backward()
        run.loss().backward()
        run.optimizer.step()
    return run.values()


for _name, _options, _ddp in (
    ("checkpoint", {"reentrant": False}, {}),
    ("checkpoint_twice", {"reentrant": False, "times": 2}, {}),
    ("checkpoint_reentrant", {"reentrant": True}, {}),
    ("checkpoint_reentrant_twice", {"reentrant": True, "times": 2}, {"static_graph": True}),
    ("checkpoint_reentrant_three_times", {"reentrant": True, "times": 3}, {"static_graph": True}),
    ("checkpoint_in_a_dataclass", {"reentrant": False, "wraps": True}, {}),
    ("checkpoint_reentrant_in_a_dataclass", {"reentrant": True, "wraps": True}, {}),
    (
        "checkpoint_reentrant_twice_in_a_dataclass",
        {"reentrant": True, "wraps": True, "times": 2},
        # Stock DDP errs in silence here, by a static graph that sees no outputs: ranks part.
        {"by_hand": True},
    ),
):
    enter(
        _name,
        lambda e, options=_options, ddp=_ddp: _checkpoints(e, lambda: Checkpointed(**options), **ddp),
        group="models",
    )
enter(
    "checkpoint_reentrant_with_accumulation",
    lambda e: _checkpoints(e, lambda: Checkpointed(reentrant=True), accumulates=True),
    group="models",
)
enter(
    "checkpoint_with_accumulation",
    lambda e: _checkpoints(e, lambda: Checkpointed(reentrant=False, times=2), accumulates=True),
    group="models",
)


@behaviour
def checkpoint_of_the_first_layer(e: Env) -> Values:
    """Reentrant, over an input that requires gradients."""

    class First(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(5, 5), nn.Linear(5, 1)

        def forward(self, x: Tensor) -> Tensor:
            return self.b(checkpoint(self.a, x.requires_grad_(), use_reentrant=True))

    return _checkpoints(e, First)


@behaviour
def checkpoint_in_sequence(e: Env) -> Values:
    class Sequence(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers, self.out = nn.Sequential(*[nn.Linear(5, 5) for _ in range(4)]), nn.Linear(5, 1)

        def forward(self, x: Tensor) -> Tensor:
            return self.out(checkpoint_sequential(self.layers, 2, x, use_reentrant=False))

    return _checkpoints(e, Sequence)


@behaviour
def scripted_layer(e: Env) -> Values:
    return _trains(e, lambda: nn.Sequential(torch.jit.script(nn.Linear(5, 6)), nn.Tanh(), nn.Linear(6, 1)))


@behaviour
def own_function_in_autograd(e: Env) -> Values:
    class Double(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return 2 * x

        @staticmethod
        def backward(ctx: Any, grad: Tensor) -> Tensor:
            return 2 * grad

    class Doubles(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(5, 6), nn.Linear(6, 1)

        def forward(self, x: Tensor) -> Tensor:
            return self.b(Double.apply(torch.tanh(self.a(x))))

    return _trains(e, Doubles)


@behaviour
def new_layer_output_shapes(e: Env) -> Values:
    """Inputs of other shapes in each step."""
    run = e.start(
        task(
            lambda: nn.Sequential(nn.Conv1d(1, 2, 3), nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(2, 1)).double(),
            momentum,
            lambda g: torch.randn(2, 1, 8, generator=g, dtype=torch.float64),
        )
    )
    for number in range(4):
        run.optimizer.zero_grad()
        run.loss(run.batch()[:, :, : 4 + (number + e.rank) % 4]).backward()
        run.optimizer.step()
    return run.values()


@behaviour
def parameter_made_of_another(e: Env) -> Values:
    """Two modules hold one parameter under two names, and a third a view of it in its forward pass."""

    class Shares(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b, self.out = nn.Linear(5, 5), nn.Linear(5, 5), nn.Linear(5, 1)
            self.b.weight = self.a.weight

        def forward(self, x: Tensor) -> Tensor:
            return self.out(torch.tanh(self.b(self.a(x))) @ self.a.weight.t())

    return _trains(e, Shares)


@behaviour
def another_layout_on_one_rank_comes_out_right(e: Env) -> Values:
    """Stock DDP refuses it: an average by hand is the reference."""
    run = e.run(task(lambda: conv().double(), momentum, images))
    if e.rank == 1:
        run.model.to(memory_format=torch.channels_last)
    if e.is_stock:
        averaged_by_hand(run)
    else:
        run.start()
    return {"losses": run.steps(5), **run.values()}


@behaviour
def another_layout_on_one_rank_during_training(e: Env) -> Values:
    """Stock DDP exchanges elements of gradients in silence: an average by hand is the reference."""
    run = e.run(task(lambda: conv().double(), momentum, images))
    if e.is_stock:
        averaged_by_hand(run)
    else:
        run.start()
    run.steps(2)
    if e.rank == 1:
        run.model.to(memory_format=torch.channels_last)
    return {"losses": run.steps(3), **run.values()}


@behaviour
def another_layout_of_parameters_whose_gradients_stay(e: Env) -> Values:
    """The script sets kept gradients to zero in place, and changes the layout of parameters alone."""
    run = e.run(task(lambda: conv().double(), momentum, images))
    if e.is_stock:
        averaged_by_hand(run)
    else:
        run.start()
    for step in range(4):
        run.optimizer.zero_grad(set_to_none=False)
        if step == 2:
            for p in run.parameters():
                if p.dim() == 4:
                    p.data = p.data.contiguous(memory_format=torch.channels_last)
        run.loss().backward()
        run.optimizer.step()
    return run.values()
