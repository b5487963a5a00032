"""What a trial says of an optimizer is so, and the optimizer and the model do not notice it."""

import copy
import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from autosync.specs.profile.optimizer_trial import OptimizerTrial, try_out

SEPARATE = OptimizerTrial(per_variable=True, elementwise=True)
BY_VARIABLE = "the update of an element depends on other elements of its variable"
TOGETHER = "the update of a variable depends on the others that are updated with it"


def model() -> nn.Sequential:
    return nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 1))


class _Each(torch.optim.Optimizer):
    """Updates each parameter by a rule; what is to be tried differs in one thing."""

    def __init__(self, params: Any, lr: float = 0.1, d: float = 0.1) -> None:
        super().__init__(params, {"lr": lr, "d": d})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        self.prepare()
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    parameter.sub_(parameter.grad, alpha=group["lr"] * self.factor(group, parameter))

    def prepare(self) -> None:
        pass

    def factor(self, group: dict[str, Any], parameter: Any) -> float:
        return 1.0

    def gradients(self) -> list[Any]:
        return [p.grad for group in self.param_groups for p in group["params"] if p.grad is not None]


class ChangesOptions(_Each):
    """As Prodigy and D-Adaptation, which estimate one number for all."""

    def prepare(self) -> None:
        for group in self.param_groups:
            group["d"] = max(group["d"], 0.01 * sum(float(one.abs().sum()) for one in self.gradients()))


class GlobalNorm(_Each):
    """As LAMB with its clipping of the global norm."""

    def factor(self, group: dict[str, Any], parameter: Any) -> float:
        return 1.0 / (1.0 + sum(float(one.norm()) for one in self.gradients()))


class StateOfFirst(_Each):
    """What one parameter has decides for all."""

    def factor(self, group: dict[str, Any], parameter: Any) -> float:
        first = self.param_groups[0]["params"][0]
        self.state[first]["seen"] = self.state[first].get("seen", 0.0) + float(parameter.grad.norm())
        return float(self.state[first]["seen"])


class FirstGroup(_Each):
    def factor(self, group: dict[str, Any], parameter: Any) -> float:
        return float(self.param_groups[0]["d"])


class TrustRatio(_Each):
    """As LARS: of one variable, and all of it."""

    def factor(self, group: dict[str, Any], parameter: Any) -> float:
        return float(parameter.norm() / parameter.grad.norm())


class Marks(_Each):
    """As muP's: parameters say how fast they learn."""

    def factor(self, group: dict[str, Any], parameter: Any) -> float:
        return float(getattr(parameter, "lr_scale", 1.0))


class Noisy(_Each):
    def factor(self, group: dict[str, Any], parameter: Any) -> float:
        return float(torch.rand(()))


class NoisyElsewhere(_Each):
    def factor(self, group: dict[str, Any], parameter: Any) -> float:
        return random.random()


class Attribute(_Each):
    def __init__(self, params: Any, factor: float = 1.0) -> None:
        super().__init__(params)
        self.own = factor

    def factor(self, group: dict[str, Any], parameter: Any) -> float:
        return self.own


class Decays(_Each):
    """Whatever has no gradient as well."""

    def prepare(self) -> None:
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.mul_(0.9)


class NeedsGradients(_Each):
    def prepare(self) -> None:
        assert len(self.gradients()) == sum(len(group["params"]) for group in self.param_groups)


class CallsParent(torch.optim.AdamW):
    def step(self, closure: Any = None) -> Any:
        return super().step(closure)


def groups(made: nn.Module) -> list[dict[str, Any]]:
    return [{"params": [one], "d": 0.1 * number} for number, one in enumerate(made.parameters(), start=1)]


MAKES: dict[str, tuple[Callable[[Any], torch.optim.Optimizer], OptimizerTrial]] = {
    "each": (lambda made: _Each(made.parameters()), SEPARATE),
    "calls parent": (lambda made: CallsParent(made.parameters()), SEPARATE),
    "marks": (lambda made: Marks(made.parameters()), SEPARATE),
    "an attribute as it begins": (lambda made: Attribute(made.parameters()), SEPARATE),
    "groups": (lambda made: _Each(groups(made)), SEPARATE),
    "a tensor for a rate": (lambda made: torch.optim.Adam(made.parameters(), lr=torch.tensor(0.1)), SEPARATE),
    "fused": (lambda made: torch.optim.Adam(made.parameters(), fused=True), SEPARATE),
    "capturable": (lambda made: torch.optim.Adam(made.parameters(), capturable=True), SEPARATE),
    "trust ratio": (
        lambda made: TrustRatio(made.parameters()),
        OptimizerTrial(per_variable=True, elementwise=False, reason=BY_VARIABLE),
    ),
    "adafactor": (
        lambda made: torch.optim.Adafactor(made.parameters()),
        OptimizerTrial(per_variable=True, elementwise=False, reason=BY_VARIABLE),
    ),
}

ACROSS: dict[str, tuple[Callable[[Any], torch.optim.Optimizer], str]] = {
    "changes options": (lambda made: ChangesOptions(made.parameters()), "its step changes the option d of its groups"),
    "global norm": (lambda made: GlobalNorm(made.parameters()), TOGETHER),
    "state of the first": (lambda made: StateOfFirst(made.parameters()), TOGETHER),
    "options of the first group": (lambda made: FirstGroup(groups(made)), TOGETHER),
    "noise": (lambda made: Noisy(made.parameters()), "its step draws random numbers"),
    "noise of Python's": (lambda made: NoisyElsewhere(made.parameters()), "its step draws random numbers"),
    "decay without a gradient": (
        lambda made: Decays(made.parameters()),
        "its step changes variables that have no gradient",
    ),
    "gradients of all": (
        lambda made: NeedsGradients(made.parameters()),
        "its step needs a gradient of every variable",
    ),
    "an attribute": (
        lambda made: Attribute(made.parameters(), factor=0.5),
        "it has an attribute own that its groups do not tell",
    ),
}


@pytest.mark.parametrize("case", MAKES.values(), ids=MAKES.keys())
def test_what_updates_each_by_itself_is_found(case: tuple[Callable[[Any], Any], OptimizerTrial]) -> None:
    make, expected = case
    made = model()
    made[2].weight.lr_scale = 0.1  # type: ignore[assignment]
    assert try_out(make(made), made.parameters()) == expected


@pytest.mark.parametrize("case", ACROSS.values(), ids=ACROSS.keys())
def test_what_looks_at_others_is_found(case: tuple[Callable[[Any], Any], str]) -> None:
    make, reason = case
    made = model()
    assert try_out(make(made), made.parameters()) == OptimizerTrial(
        per_variable=False, elementwise=False, reason=reason
    )


def test_one_variable_alone_tells_too() -> None:
    assert not try_out(GlobalNorm([nn.Parameter(torch.zeros(3, 2))])).per_variable


def test_what_has_a_step_of_the_scripts_is_not_taken_for_its_class() -> None:
    optimizer = torch.optim.SGD(model().parameters(), lr=0.1)
    torch.optim.lr_scheduler.StepLR(optimizer, 1)
    assert try_out(optimizer) == SEPARATE, "torch's schedulers put theirs around it"
    optimizer.step = lambda: None  # type: ignore[method-assign,assignment]
    assert try_out(optimizer).reason == "the script has replaced its step"


def test_the_model_is_not_reached() -> None:
    """A step that looks at the model, or changes it, is stopped before it does."""
    made = model()

    class Wanders(_Each):
        def prepare(self) -> None:
            made[0].weight.mul_(2.0)

    before = copy.deepcopy(made.state_dict())
    tried = try_out(Wanders(made.parameters()), made.parameters())
    assert tried.reason == "its step reaches tensors that are in none of its groups"
    assert all(torch.equal(value, before[key]) for key, value in made.state_dict().items())


def test_what_cannot_be_tried_says_why() -> None:
    class Needs(_Each):
        def __init__(self, params: Any, model: nn.Module) -> None:
            super().__init__(params)

    made = model()
    tried = try_out(Needs(made.parameters(), made))
    assert (tried.per_variable, tried.was_tried) == (False, False)
    assert tried.reason.startswith("it cannot be tried on small copies (TypeError: ")


def test_nothing_is_left_of_a_trial() -> None:
    made = model()
    optimizer = torch.optim.Adam(made.parameters(), lr=0.1)
    made(torch.ones(2, 5)).sum().backward()
    optimizer.step()
    before = copy.deepcopy((made.state_dict(), optimizer.state_dict()))
    drawn = torch.get_rng_state(), random.getstate()
    try_out(optimizer, made.parameters())
    now = made.state_dict(), optimizer.state_dict()
    assert str(now) == str(before)
    assert torch.equal(drawn[0], torch.get_rng_state())
    assert drawn[1] == random.getstate()
