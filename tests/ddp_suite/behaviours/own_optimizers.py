"""Optimizers of the script: subclasses of torch's, and classes whose update is no function of one number."""

from typing import Any

import torch
from environment import Env, Values, behaviour, enter, net, task
from torch import nn


def _trains(e: Env, optimizer: Any, **more: Any) -> Values:
    run = e.start(task(optimizer=optimizer, **more))
    return {"losses": run.steps(6), **run.values()}


class Subclass(torch.optim.SGD):
    """A script's class whose step calls that of torch's."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        return super().step(closure)


class Decayed(torch.optim.Adam):
    """A script's class that does something of its own before torch's step."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            for p in group["params"]:
                p.mul_(0.99)
        return super().step(closure)


class Logged(torch.optim.AdamW):
    """Counts its own steps."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.count = 0

    def step(self, closure: Any = None) -> Any:
        self.count += 1
        return super().step(closure)


class WithArgument(torch.optim.SGD):
    def step(self, closure: Any = None, *, note: list[int] | None = None) -> Any:
        if note is not None:
            note.append(5)
        return super().step(closure)


class NewKey(torch.optim.SGD):
    """Writes a key into its groups at each step."""

    def step(self, closure: Any = None) -> Any:
        result = super().step(closure)
        self.param_groups[0]["count"] = self.param_groups[0].get("count", 0) + 1
        return result


class Adaptive(torch.optim.Optimizer):
    """One number over all parameters, as Prodigy and D-Adaptation have it."""

    def __init__(self, params: Any, lr: float = 0.1) -> None:
        super().__init__(params, {"lr": lr, "d": 0.1})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            used = [p for p in group["params"] if p.grad is not None]
            group["d"] = max(group["d"], 0.01 * sum(float(p.grad.abs().sum()) for p in used))
            for p in used:
                p.sub_(p.grad, alpha=group["lr"] * group["d"])


class GlobalNorm(torch.optim.Optimizer):
    """Divides by the norm of all gradients, as LAMB and its like do before their step."""

    def __init__(self, params: Any, lr: float = 0.1) -> None:
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        used = [p for group in self.param_groups for p in group["params"] if p.grad is not None]
        norm = sum(float(p.grad.square().sum()) for p in used) ** 0.5
        for p in used:
            p.sub_(p.grad, alpha=self.param_groups[0]["lr"] / max(norm, 1e-6))


class Layerwise(torch.optim.Optimizer):
    """Scales by the norms of one variable and its gradient, as LARS does: not elementwise."""

    def __init__(self, params: Any, lr: float = 0.05) -> None:
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    p.sub_(p.grad * (group["lr"] * p.norm() / (p.grad.norm() + 1e-9)))


class Marks(torch.optim.Optimizer):
    """Reads a mark that the model put on its parameters, as muP has it."""

    def __init__(self, params: Any, lr: float = 0.1) -> None:
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    p.sub_(p.grad, alpha=group["lr"] * getattr(p, "lr_scale", 1.0))


class ByNumber(torch.optim.Optimizer):
    """Its state says how often it stepped, in an attribute and not by parameter."""

    def __init__(self, params: Any, lr: float = 0.1) -> None:
        super().__init__(params, {"lr": lr})
        self.turn = 0

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        self.turn += 1
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    p.sub_(p.grad, alpha=group["lr"] / self.turn)


class Own(torch.optim.Optimizer):
    """Elementwise, with a momentum of its own making."""

    def __init__(self, params: Any, lr: float = 0.05) -> None:
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    kept = self.state[p].setdefault("kept", torch.zeros_like(p))
                    kept.mul_(0.8).add_(p.grad)
                    p.sub_(kept, alpha=group["lr"])


def marked() -> nn.Module:
    made = net()
    made[0].weight.lr_scale = 0.1
    return made


for _name, _optimizer in {
    "subclass": lambda p: Subclass(p, lr=0.05),
    "subclass_that_decays": lambda p: Decayed(p, lr=0.02),
    "subclass_that_counts": lambda p: Logged(p, lr=0.02),
    "subclass_with_a_new_key": lambda p: NewKey(p, lr=0.05),
    "adaptive": Adaptive,
    "global_norm": GlobalNorm,
    "layerwise": Layerwise,
    "steps_in_an_attribute": ByNumber,
    "a_class_of_the_script": Own,
}.items():
    enter(f"by_{_name}", lambda e, o=_optimizer: _trains(e, o), group="own_optimizers")
enter("by_marks_on_parameters", lambda e: _trains(e, Marks, model=marked), group="own_optimizers")


@behaviour
def by_subclass_after_a_plain_one(e: Env) -> Values:
    """Once a plain SGD was made, torch calls the hooks of both steps."""
    torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=1)
    return _trains(e, lambda p: Subclass(p, lr=0.05))


@behaviour
def step_with_an_argument(e: Env) -> Values:
    run = e.start(task(optimizer=lambda p: WithArgument(p, lr=0.05)))
    note: list[int] = []
    for _ in range(3):
        run.optimizer.zero_grad()
        run.loss().backward()
        run.optimizer.step(note=note)
    return {"note": note, **run.values()}


class WithoutClosure(torch.optim.SGD):
    """Its `step` takes nothing."""

    def step(self) -> Any:  # type: ignore[override]
        return super().step()


@behaviour
def by_subclass_without_closure(e: Env) -> Values:
    return _trains(e, lambda p: WithoutClosure(p, lr=0.05))


@behaviour
def takes_the_difference_of_a_step(e: Env) -> Values:
    """The script keeps the parameters, steps, and takes the difference (as Adasum's optimizer does)."""
    run = e.start(task(optimizer=lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9)))
    found = []
    for _ in range(4):
        run.optimizer.zero_grad()
        run.loss().backward()
        before = [p.detach().clone() for p in run.parameters()]
        run.optimizer.step()
        with torch.no_grad():
            differences = [p - old for p, old in zip(run.parameters(), before, strict=True)]
            for p, old, difference in zip(run.parameters(), before, differences, strict=True):
                p.copy_(old + difference * 0.5)
        found.append([difference.detach().clone() for difference in differences])
    return {"found": found, **run.values()}


class Lookahead:
    """A wrapper that every few steps goes part of the way back (k steps forward, 1 step back)."""

    def __init__(self, inner: torch.optim.Optimizer) -> None:
        self.inner, self.turn = inner, 0
        self.slow = [p.detach().clone() for group in inner.param_groups for p in group["params"]]

    def zero_grad(self) -> None:
        self.inner.zero_grad()

    @torch.no_grad()
    def step(self) -> None:
        self.inner.step()
        self.turn += 1
        if self.turn % 2 == 0:
            fast = [p for group in self.inner.param_groups for p in group["params"]]
            for slow, p in zip(self.slow, fast, strict=True):
                slow.lerp_(p, 0.5)
                p.copy_(slow)


@behaviour
def by_a_wrapper_that_looks_ahead(e: Env) -> Values:
    run = e.start(task(optimizer=lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9)))
    run.optimizer = Lookahead(run.optimizer)  # type: ignore[assignment]
    run.steps(5)
    return run.values()


@behaviour
def sharpness_aware(e: Env) -> Values:
    """SAM: a step up along the gradient, a second pass there, and back for the real step."""
    run = e.start(task(optimizer=lambda p: torch.optim.SGD(p, lr=0.05)))
    for _ in range(3):
        x = run.batch()
        run.optimizer.zero_grad()
        run.loss(x).backward()
        with torch.no_grad():
            ups = [p.grad * 0.05 for p in run.parameters()]
            for p, up in zip(run.parameters(), ups, strict=True):
                p.add_(up)
        run.optimizer.zero_grad()
        run.loss(x).backward()
        with torch.no_grad():
            for p, up in zip(run.parameters(), ups, strict=True):
                p.sub_(up)
        run.optimizer.step()
    return run.values()


@behaviour
def noise_after_the_step(e: Env) -> Values:
    """As Langevin dynamics have it: noise is added to parameters after each step."""
    run = e.start(task(optimizer=lambda p: torch.optim.Adam(p, lr=0.02)))
    for number in range(4):
        run.step()
        torch.manual_seed(number)
        with torch.no_grad():
            for p in run.parameters():
                p.add_(torch.randn_like(p), alpha=0.01)
    return run.values()
