"""Functions of a script that bring a parameter no gradient, although it is in the graph."""

from collections.abc import Callable
from typing import Any

import torch
from environment import Env, Values, adamw, behaviour, task
from torch import Tensor, nn


class _Gate(torch.autograd.Function):
    """A product whose gradient for the second factor may be left out."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, scale: Tensor, brings: bool) -> Tensor:
        ctx.save_for_backward(x, scale)
        ctx.brings = brings
        return x * scale

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor | None, None]:
        x, scale = ctx.saved_tensors
        return gradient * scale, (gradient * x).sum(0) if ctx.brings else None, None


class Gated(nn.Module):
    """A layer that is always in the graph, and gets a gradient in the turns that `brings` chooses."""

    def __init__(self, brings: Callable[[int], bool]) -> None:
        super().__init__()
        self.trunk = nn.Linear(5, 6)
        self.scale = nn.Parameter(torch.ones(6))
        self.head = nn.Linear(6, 1)
        self.brings = brings
        self.turn = -1

    def forward(self, x: Tensor) -> Tensor:
        self.turn += self.training
        return self.head(torch.tanh(_Gate.apply(self.trunk(x), self.scale, self.brings(max(self.turn, 0)))))


def _gated(e: Env, brings: Callable[[int], bool], **options: Any) -> Values:
    run = e.run(task(lambda: Gated(brings).double(), adamw)).start(**options)
    return {"losses": run.steps(5), **run.values()}


@behaviour
def a_function_brings_no_gradient_at_times(e: Env) -> Values:
    """Stock DDP makes zeros of it, by which an optimizer decays the parameter."""
    return _gated(e, lambda turn: turn % 2 == 0)


@behaviour
def a_function_brings_no_gradient_on_one_rank(e: Env) -> Values:
    return _gated(e, lambda turn: turn == 0 or e.rank > 0)


@behaviour
def a_function_brings_no_gradient_and_unused_ones_are_found(e: Env) -> Values:
    return _gated(e, lambda turn: turn % 2 == 0, find_unused_parameters=True)
