"""Parameters: tied, frozen, in lists, of other shapes, types and sizes."""

from typing import Any

import torch
from environment import Env, Values, behaviour, momentum, net, numbers, task
from torch import Tensor, nn
from torch.nn import functional


@behaviour
def tied_weights(e: Env) -> Values:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words, self.out = nn.Embedding(9, 6), nn.Linear(6, 9, bias=False)
            self.out.weight = self.words.weight

        def forward(self, text: Tensor) -> Tensor:
            return self.out(self.words(text).tanh())

    run = e.start(
        task(
            lambda: Tied().double(),
            momentum,
            batch=lambda g: torch.randint(9, (3, 4), generator=g),
            loss=lambda m, t: functional.cross_entropy(m(t[:, :-1]).flatten(0, 1), t[:, 1:].flatten()),
        )
    )
    return {"losses": run.steps(), **run.values()}


@behaviour
def a_layer_twice(e: Env) -> Values:
    def model() -> nn.Module:
        layer = nn.Linear(5, 5)
        return nn.Sequential(layer, nn.Tanh(), layer, nn.Linear(5, 1)).double()

    run = e.start(task(model, momentum))
    return {"losses": run.steps(), **run.values()}


@behaviour
def frozen_layers(e: Env) -> Values:
    def model() -> nn.Module:
        made = net()
        made[0].requires_grad_(requires_grad=False)
        made[2].bias.requires_grad_(requires_grad=False)
        return made

    run = e.start(task(model, momentum))
    return {"losses": run.steps(), **run.values()}


@behaviour
def no_parameter_in_a_layer(e: Env) -> Values:
    run = e.start(task(lambda: nn.Sequential(nn.Identity(), net(), nn.Sequential(), nn.Dropout(0.0)).double()))
    return {"losses": run.steps(), **run.values()}


@behaviour
def parameters_in_lists_and_dicts(e: Env) -> Values:
    class Lists(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scales = nn.ParameterList([nn.Parameter(torch.rand(5)) for _ in range(3)])
            self.named = nn.ParameterDict({"shift": nn.Parameter(torch.rand(5)), "w": nn.Parameter(torch.rand(5, 1))})

        def forward(self, x: Tensor) -> Tensor:
            for scale in self.scales:
                x = torch.tanh(x * scale)
            return (x + self.named["shift"]) @ self.named["w"]

    run = e.start(task(lambda: Lists().double(), momentum))
    return {"losses": run.steps(), **run.values()}


@behaviour
def parameters_without_dimensions(e: Env) -> Values:
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.scale = nn.Linear(5, 1), nn.Parameter(torch.tensor(0.7))

        def forward(self, x: Tensor) -> Tensor:
            return self.layer(x) * self.scale

    run = e.start(task(lambda: Scaled().double(), momentum))
    return {"losses": run.steps(), **run.values()}


def _with_empty(shape: tuple[int, ...], *, used: bool = True) -> Any:
    class Empty(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.empty = nn.Linear(5, 1), nn.Parameter(torch.empty(shape))

        def forward(self, x: Tensor) -> Tensor:
            return self.layer(x) + (self.empty.sum() if used else 0)

    return lambda: Empty().double()


@behaviour
def parameters_without_elements(e: Env) -> Values:
    run = e.start(task(_with_empty((0, 3)), momentum))
    return {"losses": run.steps(), **run.values()}


@behaviour
def a_flat_parameter_without_elements(e: Env) -> Values:
    run = e.start(task(_with_empty((0,))))
    return {"losses": run.steps(), **run.values()}


@behaviour
def layer_without_outputs(e: Env) -> Values:
    run = e.start(
        task(
            lambda: nn.Sequential(nn.Linear(5, 4), nn.Linear(4, 0)).double(),
            loss=lambda m, x: m(x).square().sum() + 0 * x.sum(),
        )
    )
    return {"losses": run.steps(), **run.values()}


@behaviour
def complex_parameters(e: Env) -> Values:
    class Complex(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = nn.Parameter(torch.randn(5, 3, dtype=torch.complex128))
            self.out = nn.Linear(3, 1, dtype=torch.float64)

        def forward(self, x: Tensor) -> Tensor:
            return self.out((x.to(torch.complex128) @ self.w).abs())

    run = e.start(task(Complex))
    return {"losses": run.steps(), **run.values()}


@behaviour
def complex_parameters_by_adam(e: Env) -> Values:
    class Complex(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = nn.Parameter(torch.randn(5, 3, dtype=torch.complex128))

        def forward(self, x: Tensor) -> Tensor:
            return (x.to(torch.complex128) @ self.w).abs()

    run = e.start(task(Complex, lambda p: torch.optim.Adam(p, lr=0.02)))
    return {"losses": run.steps(), **run.values()}


@behaviour
def types_mixed(e: Env) -> Values:
    class Mixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(5, 6).double(), nn.Linear(6, 6)
            self.c = nn.Linear(6, 1).double()

        def forward(self, x: Tensor) -> Tensor:
            return self.c(self.b(self.a(x).float()).tanh().double())

    run = e.start(task(Mixed, momentum))
    return {"losses": [round(one, 4) for one in run.steps()], **run.values()}


@behaviour(tolerance=2e-2)
def in_bfloat16(e: Env) -> Values:
    run = e.start(task(lambda: net().to(torch.bfloat16), batch=lambda g: numbers(g).to(torch.bfloat16)))
    return {"losses": run.steps(), **run.values()}


@behaviour(tolerance=5e-3)
def in_float16(e: Env) -> Values:
    run = e.start(task(lambda: net().half(), batch=lambda g: numbers(g).half()))
    return {"losses": run.steps(), **run.values()}


@behaviour(tolerance=1e-4)
def in_float32(e: Env) -> Values:
    run = e.start(task(lambda: net().float(), momentum, batch=lambda g: numbers(g).float()))
    return {"losses": run.steps(), **run.values()}


@behaviour
def parameters_not_contiguous(e: Env) -> Values:
    class Transposed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = nn.Parameter(torch.randn(6, 5).t())
            self.out = nn.Linear(6, 1)

        def forward(self, x: Tensor) -> Tensor:
            return self.out(x @ self.w)

    run = e.start(task(lambda: Transposed().double(), momentum))
    run.steps()
    return {"strides": list(run.model.w.stride()), **run.values()}


@behaviour
def large_and_small(e: Env) -> Values:
    """A matrix of 0.5 MB among small ones."""
    run = e.start(task(lambda: nn.Sequential(nn.Linear(5, 250), nn.Linear(250, 250), nn.Linear(250, 1)).double()))
    return {"losses": run.steps(3), **run.values()}


@behaviour
def many_small_layers(e: Env) -> Values:
    run = e.start(
        task(lambda: nn.Sequential(*[nn.Linear(5, 5) for _ in range(40)], nn.Linear(5, 1)).double(), momentum)
    )
    return {"losses": run.steps(), **run.values()}


@behaviour
def one_parameter(e: Env) -> Values:
    run = e.start(task(lambda: nn.Linear(5, 1, bias=False).double(), momentum))
    return {"losses": run.steps(), **run.values()}
