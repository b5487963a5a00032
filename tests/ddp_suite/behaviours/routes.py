"""Ways into the model beside calling it, and evaluation between steps."""

from collections.abc import Callable
from typing import Any

import torch
from environment import Env, Run, Values, behaviour, enter, momentum, net, task
from torch import Tensor, nn
from torch.nn import functional


class Routed(nn.Module):
    """Parameters of its own, layers, a method for features, and another route in evaluation."""

    def __init__(self) -> None:
        super().__init__()
        self.pos = nn.Parameter(torch.randn(5))
        self.a, self.b, self.head = nn.Linear(5, 6), nn.Linear(6, 6), nn.Linear(6, 1)

    def features(self, x: Tensor) -> Tensor:
        return torch.tanh(self.b(torch.tanh(self.a(x + self.pos))))

    def forward(self, x: Tensor) -> Tensor:
        if not self.training:
            h = torch.tanh(functional.linear(x + self.pos, self.a.weight, self.a.bias))
            h = torch.tanh(functional.linear(h, self.b.weight, self.b.bias))
            return functional.linear(h, self.head.weight, self.head.bias)
        return self.head(self.features(x))


def routed() -> nn.Module:
    return Routed().double()


HELD = torch.ones(3, 5, dtype=torch.float64)


def _evaluates(e: Env, look: Callable[[Run, int], Any], model: Any = net, **more: Any) -> Values:
    run = e.start(task(model, momentum, **more))
    found = []
    for number in range(5):
        run.step()
        found.append(look(run, number))
    return {"found": found, **run.values()}


def _in_eval(run: Run, _: int) -> Tensor:
    run.model.eval()
    with torch.no_grad():
        out = run.model(HELD).clone()
    run.model.train()
    return out


def _in_inference_mode(run: Run, _: int) -> Tensor:
    run.model.eval()
    with torch.inference_mode():
        out = run.model(HELD)
    run.model.train()
    return out.clone()


def _without_eval(run: Run, _: int) -> Tensor:
    with torch.no_grad():
        return run.model(HELD).clone()


def _called_wrapper(run: Run, _: int) -> Tensor:
    run.called.eval()
    with torch.no_grad():
        out = run.called(HELD).clone()
    run.called.train()
    return out


def _with_gradients(run: Run, _: int) -> Tensor:
    """A forward pass in evaluation with gradients enabled, of which nothing comes."""
    run.model.eval()
    out = run.model(HELD).detach().clone()
    run.model.train()
    return out


def _input_gradient(run: Run, _: int) -> Tensor:
    """The gradient by the input alone (saliency)."""
    x = HELD.clone().requires_grad_()
    (grad,) = torch.autograd.grad(run.model(x).sum(), x)
    return grad


def _some_times(run: Run, number: int) -> Any:
    return _in_eval(run, number) if number in (1, 4) else None


def _on_one_rank(run: Run, number: int) -> Any:
    return _in_eval(run, number) if run.rank == 0 else None


def _a_layer(run: Run, _: int) -> Tensor:
    with torch.no_grad():
        return run.model[2](torch.ones(2, 6, dtype=torch.float64)).clone()


def _the_first_layers(run: Run, _: int) -> Tensor:
    with torch.no_grad():
        return run.model[:3](HELD).clone()


def _children(run: Run, _: int) -> Tensor:
    with torch.no_grad():
        x = HELD
        for layer in run.model.children():
            x = layer(x)
        return x.clone()


def _forward_method(run: Run, _: int) -> Tensor:
    with torch.no_grad():
        return run.model.forward(HELD).clone()


def _functional(run: Run, _: int) -> Tensor:
    with torch.no_grad():
        return functional.linear(HELD, run.model[0].weight, run.model[0].bias).clone()


def _functional_call(run: Run, _: int) -> Tensor:
    values = {name: p * 1.0 for name, p in run.model.named_parameters()}
    return torch.func.functional_call(run.model, values, (HELD,)).detach().clone()


def _products(run: Run, _: int) -> Tensor:
    return (HELD @ run.model[0].weight.t()).detach().clone()


def _a_part(run: Run, _: int) -> list[float]:
    return run.model[0].weight[0].tolist()


def _weight_decay_by_hand(run: Run, _: int) -> float:
    return float(sum((p**2).sum() for p in run.parameters()).detach())


EVALUATIONS = {
    "evaluates": _in_eval,
    "evaluates_in_inference_mode": _in_inference_mode,
    "evaluates_in_training_mode": _without_eval,
    "evaluates_what_parallelize_gave": _called_wrapper,
    "evaluates_with_gradients": _with_gradients,
    "evaluates_for_input_gradients": _input_gradient,
    "evaluates_in_some_steps": _some_times,
    "evaluates_on_one_rank": _on_one_rank,
    "evaluates_a_layer": _a_layer,
    "evaluates_the_first_layers": _the_first_layers,
    "evaluates_child_by_child": _children,
    "evaluates_by_forward_method": _forward_method,
    "evaluates_by_linear": _functional,
    "evaluates_by_functional_call": _functional_call,
    "evaluates_by_a_product": _products,
    "evaluates_a_row": _a_part,
    "evaluates_the_norm_of_parameters": _weight_decay_by_hand,
}
for _name, _look in EVALUATIONS.items():
    enter(_name, lambda e, look=_look: _evaluates(e, look), group="routes")
enter("evaluates_on_another_route", lambda e: _evaluates(e, _in_eval, routed), group="routes")


@behaviour
def evaluates_before_the_first_step(e: Env) -> Values:
    run = e.start(task(optimizer=momentum))
    before = _in_eval(run, 0)
    run.steps()
    return {"before": before, **run.values()}


def _trains_by(e: Env, call: Callable[[Run, Tensor, int], Tensor], model: Any = routed) -> Values:
    """Trains by some other way into the model from the second step on. (DDP itself is called as it must be.)"""
    run = e.start(task(model, momentum))
    for number in range(5):
        run.optimizer.zero_grad()
        x = run.batch()
        y = run.called(x) if e.is_stock or number == 0 else call(run, x, number)
        (y - 1).square().mean().backward()
        run.optimizer.step()
    return run.values()


ROUTES: dict[str, Callable[[Run, Tensor, int], Tensor]] = {
    "trains_by_forward_method": lambda run, x, _: run.model.forward(x),
    "trains_by_other_methods": lambda run, x, _: run.model.head(run.model.features(x)),
    "trains_by_linear": lambda run, x, _: functional.linear(
        run.model.features(x), run.model.head.weight, run.model.head.bias
    ),
    "trains_by_routes_in_turn": lambda run, x, number: (
        run.model(x) if number % 2 else run.model.head(run.model.features(x))
    ),
}
for _name, _call in ROUTES.items():
    enter(_name, lambda e, call=_call: _trains_by(e, call), group="routes")


@behaviour
def trains_by_functional_call(e: Env) -> Values:
    """`functional_call` of what `parallelize` gave, with a parameter replaced in some calls."""
    run = e.start(task(optimizer=momentum))
    prefix = "module." if e.is_stock else ""
    for _ in range(4):
        run.optimizer.zero_grad()
        values = {f"{prefix}{name}": p for name, p in run.model.named_parameters()}
        out = torch.func.functional_call(run.called, values, (run.batch(),))
        (out - 1).square().mean().backward()
        run.optimizer.step()
    return run.values()


@behaviour
def route_changes_in_the_midst(e: Env) -> Values:
    """Layers change places after some steps."""
    run = e.start(task(routed, momentum))
    run.steps(2)
    model: Any = run.model

    def forward(x: Tensor) -> Tensor:
        h = torch.tanh(functional.linear(x + model.pos, model.a.weight, model.a.bias))
        return model.head(torch.tanh(model.b(torch.tanh(model.b(h)))))

    model.forward = forward
    run.steps(3)
    return run.values()


@behaviour
def returns_a_parameter(e: Env) -> Values:
    """The model's output holds a parameter itself, as for a regulariser."""

    class Returns(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.scale = nn.Linear(5, 1), nn.Parameter(torch.rand(1))

        def forward(self, x: Tensor) -> Any:
            return self.layer(x), self.scale

    def loss(m: Any, x: Tensor) -> Tensor:
        y, scale = m(x)
        return (y * scale - 1).square().mean() + scale.square().sum()

    run = e.start(task(lambda: Returns().double(), momentum, loss=loss))
    return {"losses": run.steps(5), **run.values()}


@behaviour
def regulariser_over_parameters(e: Env) -> Values:
    """The loss has the parameters' own norm in it, which comes from outside of the model's call."""
    run = e.start(task(optimizer=momentum, loss=_regularised))
    for _ in range(5):
        run.optimizer.zero_grad()
        x = run.batch()
        loss = (run.called(x) - 1).square().mean() + 0.01 * sum(p.square().sum() for p in run.parameters())
        loss.backward()
        run.optimizer.step()
    return run.values()


def _regularised(m: nn.Module, x: Tensor) -> Tensor:
    loss = (m(x) - 1).square().mean() + 0.01 * sum(p.square().sum() for p in m.parameters())
    assert isinstance(loss, Tensor)
    return loss


@behaviour
def regulariser_before_the_model(e: Env) -> Values:
    """The same, but parameters are read before the model is called."""
    run = e.start(task(optimizer=momentum, loss=_regularised))
    for _ in range(5):
        run.optimizer.zero_grad()
        penalty = 0.01 * sum(p.square().sum() for p in run.parameters())
        ((run.called(run.batch()) - 1).square().mean() + penalty).backward()
        run.optimizer.step()
    return run.values()


@behaviour
def consistency_loss(e: Env) -> Values:
    """A pass with gradients and one without, of the same batch, in one loss."""
    run = e.start(task(optimizer=momentum))
    for _ in range(4):
        run.optimizer.zero_grad()
        x = run.batch()
        with torch.no_grad():
            target = run.called(x + 0.1)
        ((run.called(x) - 1).square().mean() + (run.called(x) - target).square().mean()).backward()
        run.optimizer.step()
    return run.values()


@behaviour
def gradient_penalty(e: Env) -> Values:
    """A second derivative: the loss has the gradient by the input in it."""
    run = e.start(task(optimizer=momentum))
    for _ in range(4):
        run.optimizer.zero_grad()
        x = run.batch().requires_grad_()
        y = run.called(x)
        (grad,) = torch.autograd.grad(y.sum(), x, create_graph=True)
        ((y - 1).square().mean() + 0.1 * grad.square().sum()).backward()
        run.optimizer.step()
    return run.values()


@behaviour
def gradients_by_autograd_grad(e: Env) -> Values:
    """`autograd.grad` by parameters: nothing accumulates, so DDP synchronises nothing."""
    run = e.start(task(optimizer=momentum))
    run.step()
    grads = torch.autograd.grad(run.loss(), run.parameters())
    run.optimizer.zero_grad()
    run.step()
    return {**{str(k): g.clone() for k, g in enumerate(grads)}, **run.values()}


@behaviour
def backward_with_create_graph(e: Env) -> Values:
    run = e.start(task(optimizer=momentum))
    for _ in range(3):
        run.optimizer.zero_grad()
        run.loss().backward(create_graph=True)
        run.optimizer.step()
    return run.values()


@behaviour
def backward_by_some_inputs(e: Env) -> Values:
    """`backward(inputs=...)`: only some parameters get a gradient."""
    run = e.start(task(optimizer=momentum), ddp={"find_unused_parameters": True})
    run.step()
    for _ in range(2):
        run.optimizer.zero_grad()
        run.loss().backward(inputs=run.parameters()[:2])
        run.optimizer.step()
    return run.values()


@behaviour
def train_and_eval_modes(e: Env) -> Values:
    """`eval()` of some layers during training, as for frozen statistics."""
    run = e.start(
        task(
            lambda: nn.Sequential(nn.Linear(5, 6), nn.BatchNorm1d(6), nn.Dropout(0.5), nn.Linear(6, 1)).double(),
            momentum,
        )
    )
    run.steps(2)
    run.model[1].eval()
    run.model[2].eval()
    run.steps(3)
    return run.read()


@behaviour
def trains_in_eval_mode(e: Env) -> Values:
    run = e.start(task(optimizer=momentum))
    run.called.eval()
    return {"losses": run.steps(), **run.values()}
