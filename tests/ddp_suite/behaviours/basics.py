"""Forward and backward: models, inputs and losses as scripts have them."""

import dataclasses
from collections import OrderedDict
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from environment import Env, Values, behaviour, momentum, numbers, task
from torch import Tensor, nn


class Pair(NamedTuple):
    first: Tensor
    second: Tensor


@dataclasses.dataclass
class Out:
    logits: Tensor
    hidden: Any = None


class Forward(nn.Module):
    """Two layers and a `forward` that is handed in."""

    def __init__(self, forward: Any) -> None:
        super().__init__()
        self.a = nn.Linear(5, 6)
        self.b = nn.Linear(6, 1)
        self._forward = forward

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self._forward(self, *args, **kwargs)


def _trained(e: Env, forward: Any, loss: Any, **more: Any) -> Values:
    run = e.start(task(lambda: Forward(forward).double(), momentum, loss=loss, **more))
    return {"losses": run.steps(), **run.values()}


@behaviour
def plain(e: Env) -> Values:
    run = e.start(task())
    return {"losses": run.steps(), **run.values()}


@behaviour
def parameters_start_as_the_first_ranks(e: Env) -> Values:
    run = e.start(task())
    return {"equal": all(e.all_equal(p) for p in run.parameters()), **run.values()}


@behaviour
def ranks_stay_equal(e: Env) -> Values:
    run = e.start(task(optimizer=momentum))
    run.steps(6)
    run.drain()
    return {"equal": all(e.all_equal(p) for p in run.parameters()), **run.values()}


@behaviour
def many_steps(e: Env) -> Values:
    run = e.start(task(optimizer=momentum))
    return {"losses": run.steps(25), **run.values()}


@behaviour
def several_inputs(e: Env) -> Values:
    def draw(g: torch.Generator) -> Any:
        return numbers(g), numbers(g)

    return _trained(
        e, lambda m, x, y: m.b(torch.tanh(m.a(x) * m.a(y))), lambda m, b: (m(*b) - 1).square().mean(), batch=draw
    )


@behaviour
def inputs_by_keyword(e: Env) -> Values:
    return _trained(e, lambda m, *, x: m.b(m.a(x).tanh()), lambda m, b: (m(x=b) - 1).square().mean())


@behaviour
def inputs_in_a_dict(e: Env) -> Values:
    return _trained(
        e, lambda m, batch: m.b(m.a(batch["x"]).tanh()), lambda m, b: (m({"x": b, "scale": 2}) - 1).square().mean()
    )


@behaviour
def input_requires_grad(e: Env) -> Values:
    run = e.start(task())
    found = []
    for _ in range(3):
        run.optimizer.zero_grad()
        x = run.batch().requires_grad_()
        run.loss(x).backward()
        found.append(x.grad.clone())
        run.optimizer.step()
    return {"inputs": found, **run.values()}


@behaviour
def several_outputs(e: Env) -> Values:
    def loss(m: Any, x: Tensor) -> Tensor:
        first, second = m(x)
        return first.square().mean() + (second - 1).square().mean()

    return _trained(e, lambda m, x: ((h := m.a(x).tanh()), m.b(h)), loss)


@behaviour
def one_of_several_outputs_is_lost(e: Env) -> Values:
    """The loss takes one of the outputs; the other's parameters come into the first as well."""
    return _trained(e, lambda m, x: ((y := m.b(m.a(x).tanh())), y * 2), lambda m, x: (m(x)[1] - 1).square().mean())


@behaviour
def output_is_a_dict(e: Env) -> Values:
    return _trained(
        e, lambda m, x: OrderedDict(logits=m.b(m.a(x).tanh()), n=3), lambda m, x: (m(x)["logits"] - 1).square().mean()
    )


@behaviour
def output_is_nested(e: Env) -> Values:
    return _trained(
        e,
        lambda m, x: {"deep": [(m.b(m.a(x).tanh()), None), "words"]},
        lambda m, x: (m(x)["deep"][0][0] - 1).square().mean(),
    )


@behaviour
def output_is_a_dataclass(e: Env) -> Values:
    return _trained(e, lambda m, x: Out(m.b(m.a(x).tanh())), lambda m, x: (m(x).logits - 1).square().mean())


@behaviour
def output_is_a_namedtuple(e: Env) -> Values:
    run = e.start(
        task(
            lambda: Forward(lambda m, x: Pair((h := m.a(x)), m.b(h))).double(),
            loss=lambda m, x: (m(x).second - 1).square().mean(),
        )
    )
    kind = type(run.called(run.batch())).__name__
    run.steps()
    return {"kind": kind, **run.values()}


@behaviour
def loss_in_forward(e: Env) -> Values:
    return _trained(e, lambda m, x: (m.b(m.a(x).tanh()) - 1).square().mean(), lambda m, x: m(x))


@behaviour
def output_has_no_graph(e: Env) -> Values:
    """One of the outputs is detached; the script only looks at it."""

    def loss(m: Any, x: Tensor) -> Tensor:
        y, seen = m(x)
        assert not seen.requires_grad
        return (y - 1).square().mean()

    return _trained(e, lambda m, x: ((y := m.b(m.a(x).tanh())), y.detach()), loss)


@behaviour
def loss_is_no_scalar(e: Env) -> Values:
    run = e.start(task())
    for _ in range(3):
        run.optimizer.zero_grad()
        out = run.called(run.batch())
        out.backward(torch.ones_like(out) / 4)
        run.optimizer.step()
    return run.values()


@behaviour
def loss_is_zero(e: Env) -> Values:
    """A loss of nothing still has gradients: zeros."""
    run = e.start(task(optimizer=momentum))
    run.step()
    run.optimizer.zero_grad()
    (run.loss() * 0).backward()
    run.optimizer.step()
    run.step()
    return run.values()


@behaviour
def loss_is_zero_on_one_rank(e: Env) -> Values:
    run = e.start(task(optimizer=momentum))
    for _ in range(3):
        run.optimizer.zero_grad()
        (run.loss() * float(e.rank != 0)).backward()
        run.optimizer.step()
    return run.values()


@behaviour
def loss_is_not_finite(e: Env) -> Values:
    run = e.start(task())
    run.step()
    run.optimizer.zero_grad()
    (run.loss() * (float("nan") if e.rank == 1 else 1.0)).backward()
    run.optimizer.step()
    return run.values()


@behaviour
def inputs_not_contiguous(e: Env) -> Values:
    run = e.start(task(batch=lambda g: torch.randn(5, 4, generator=g, dtype=torch.float64).t()))
    return {"losses": run.steps(), **run.values()}


@behaviour
def batches_of_other_sizes(e: Env) -> Values:
    run = e.start(task())
    for number in range(5):
        run.optimizer.zero_grad()
        run.loss(run.batch()[: 1 + (number + e.rank) % 3]).backward()
        run.optimizer.step()
    return run.values()


@behaviour
def empty_batch_on_one_rank(e: Env) -> Values:
    run = e.start(task(loss=lambda m, x: (m(x) - 1).square().sum()))
    for _ in range(3):
        run.optimizer.zero_grad()
        run.loss(run.batch()[: 0 if e.rank == 0 else 4]).backward()
        run.optimizer.step()
    return run.values()


@behaviour
def seeds_and_dropout(e: Env) -> Values:
    """What is drawn at random in the passes is each rank's own, and nobody else draws in between."""
    run = e.start(task(lambda: nn.Sequential(nn.Linear(5, 6), nn.Dropout(0.5), nn.Linear(6, 1)).double()))
    torch.manual_seed(30 + e.rank)
    losses = run.steps()
    return {"losses": losses, "next": float(torch.rand(())), **run.values()}


@behaviour
def gradients_ready_in_other_orders(e: Env) -> Values:
    """Layers whose order of use differs from step to step, alike on all ranks."""

    class Shuffled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(nn.Linear(5, 5) for _ in range(3))
            self.turn = 0

        def forward(self, x: Tensor) -> Tensor:
            self.turn += 1
            for i in range(3):
                x = torch.tanh(self.layers[(i + self.turn) % 3](x))
            return x.sum(1, keepdim=True)

    run = e.start(task(lambda: Shuffled().double(), momentum))
    return {"losses": run.steps(6), **run.values()}


@behaviour
def order_of_use_differs_between_ranks(e: Env) -> Values:
    class Shuffled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(nn.Linear(5, 5) for _ in range(3))

        def forward(self, x: Tensor) -> Tensor:
            for i in range(3):
                x = torch.tanh(self.layers[(i + e.rank) % 3](x))
            return x.sum(1, keepdim=True)

    run = e.start(task(lambda: Shuffled().double(), momentum))
    return {"losses": run.steps(6), **run.values()}


@behaviour
def script_uses_collectives_of_its_own(e: Env) -> Values:
    """The script averages its losses over the ranks, as for a log, between backward and step."""
    run = e.start(task())
    found = []
    for _ in range(4):
        run.optimizer.zero_grad()
        loss = run.loss()
        loss.backward()
        mean = loss.detach().clone()
        dist.all_reduce(mean)
        run.optimizer.step()
        found.append(float(mean))
    return {"losses": found, **run.values()}


@behaviour
def packed_sequences(e: Env) -> Values:
    """Sequences of several lengths, packed, as a model's input."""
    from torch.nn.utils.rnn import PackedSequence, pack_sequence

    class Packed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cell, self.out = nn.LSTM(5, 6), nn.Linear(6, 1)

        def forward(self, x: PackedSequence) -> Tensor:
            return self.out(self.cell(x)[1][0][0])

    def draw(g: torch.Generator) -> PackedSequence:
        return pack_sequence([torch.randn(n, 5, generator=g, dtype=torch.float64) for n in (4, 3, 1)])

    run = e.start(task(lambda: Packed().double(), momentum, draw))
    return {"losses": run.steps(), **run.values()}


@behaviour
def new_tensors_in_forward(e: Env) -> Values:
    """The model makes tensors of its own in each pass, and returns some that have no graph."""

    class Makes(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(5, 1)

        def forward(self, x: Tensor) -> Any:
            made = torch.zeros(1, dtype=x.dtype)
            return {"y": self.layer(x), "opt": {"tensor": made, "none": None}, "number": 1}

    run = e.start(task(lambda: Makes().double(), momentum, loss=lambda m, x: (m(x)["y"] - 1).square().mean()))
    return {"losses": run.steps(), **run.values()}
