"""Scripts that have other optimizers than one of torch's own over everything, or change what it holds."""

import contextlib
from typing import Any

import torch
from expectation_script import NUM_STEPS, Script, Values
from torch import nn


class CallsParent(torch.optim.Adam):
    """A step that is its parent's: torch calls the hooks of both."""

    def step(self, closure: Any = None) -> Any:
        return super().step(closure)


def _halves(script: Script, kind: Any, **options: Any) -> None:
    """The first layer goes to the script's optimizer, the last to another."""
    layers = list(script.model.children())
    script.optimizer = kind(layers[0].parameters(), **options)
    script.others = [kind(layers[-1].parameters(), **{**options, "lr": 0.05})]


def two_optimizers(script: Script) -> Values:
    _halves(script, torch.optim.Adam, lr=0.02, weight_decay=0.1)
    script.start()
    schedulers = [torch.optim.lr_scheduler.StepLR(one, 1, 0.7) for one in (script.optimizer, *script.others)]
    for number in range(NUM_STEPS):
        turns = list(zip((script.optimizer, *script.others), schedulers, strict=True))
        for optimizer, _ in turns:
            optimizer.zero_grad()
        script.loss().backward()
        # A schedule goes on before the other optimizer has stepped.
        for optimizer, scheduler in turns if number % 2 else reversed(turns):
            optimizer.step()
            scheduler.step()
    return script.values()


def two_optimizers_and_clipping(script: Script) -> Values:
    _halves(script, torch.optim.Adam, lr=0.02)
    script.start()
    for _ in range(NUM_STEPS):
        script.model.zero_grad()
        script.loss().backward()
        nn.utils.clip_grad_norm_(script.model.parameters(), 0.05)
        for optimizer in (script.optimizer, *script.others):
            optimizer.step()
    return script.values()


def two_kinds(script: Script) -> Values:
    """Optimizers of two classes."""
    layers = list(script.model.children())
    script.optimizer = torch.optim.Adam(layers[0].parameters(), lr=0.02)
    script.others = [torch.optim.SGD(layers[-1].parameters(), lr=0.02)]
    script.start()
    for _ in range(NUM_STEPS):
        for optimizer in (script.optimizer, *script.others):
            optimizer.zero_grad()
        script.loss().backward()
        for optimizer in (script.optimizer, *script.others):
            optimizer.step()
    return script.values()


def one_of_two_is_given(script: Script) -> Values:
    """The script has two optimizers, and one of them is given to `parallelize`."""
    _halves(script, torch.optim.Adam, lr=0.02)
    others, script.others = script.others, []
    script.start()
    for _ in range(NUM_STEPS):
        script.model.zero_grad()
        script.loss().backward()
        for optimizer in (script.optimizer, *others):
            optimizer.step()
    return script.values()


def another_comes_later(script: Script) -> Values:
    """The second optimizer over the same parameters is made in the midst of training."""
    script.start().step()
    other = torch.optim.SGD(list(script.model.children())[-1].parameters(), lr=0.01)
    script.step()
    script.optimizer.zero_grad()
    script.loss().backward()
    other.step()
    script.optimizer.step()
    return script.values()


def steps_in_turn(script: Script) -> Values:
    """As the players of a game do: each backward pass is followed by the step of one of them."""
    _halves(script, torch.optim.Adam, lr=0.02)
    script.start()
    for _ in range(NUM_STEPS):
        for optimizer in (script.optimizer, *script.others):
            script.model.zero_grad()
            script.loss().backward()
            optimizer.step()
    return script.values()


def steps_twice(script: Script) -> Values:
    """Twice with the same gradients, and once with none."""
    script.start()
    script.optimizer.step()
    for _ in range(2):
        script.step()
        script.optimizer.step()
    script.optimizer.zero_grad()
    script.optimizer.step()
    return script.values()


def calls_the_parent(script: Script) -> Values:
    """Hooks come twice: an optimizer of the parent's class was made in this process."""
    torch.optim.Adam([nn.Parameter(torch.zeros(1))])
    script.optimizer = CallsParent(script.model.parameters(), lr=0.02, weight_decay=0.1)
    script.start().steps()
    return script.values()


def step_fails_once(script: Script) -> Values:
    """A hook of the script's raises in the midst of a step; the next one is as ever."""
    script.start().step()

    def fail(*_: Any) -> None:
        raise ValueError("the user's own error")

    hook = script.optimizer.register_step_post_hook(fail)
    with contextlib.suppress(ValueError):
        script.step()
    hook.remove()
    script.steps(2)
    return script.values()


def lbfgs(script: Script) -> Values:
    """Each step calls its closure several times."""
    script.optimizer = torch.optim.LBFGS(script.model.parameters(), lr=0.1, max_iter=4)
    script.start()
    for _ in range(NUM_STEPS):
        batch = script.batch()

        def closure(batch: Any = batch) -> Any:
            script.optimizer.zero_grad()
            loss = script.task.loss(script.called, batch)
            loss.backward()
            return loss

        script.optimizer.step(closure)
    return script.values()


def holds_a_layer(script: Script) -> Values:
    """What no optimizer holds is synchronised, and stays as it is."""
    script.optimizer = torch.optim.Adam(list(script.model.children())[-1].parameters(), lr=0.02)
    script.start()
    for _ in range(NUM_STEPS):
        script.model.zero_grad()
        script.loss().backward()
        script.optimizer.step()
    return script.values()


def replaces_a_parameter(script: Script) -> Values:
    """The model has another tensor for a weight, of which nothing else knows."""
    script.start().step()
    layer = next(iter(script.model.children()))
    layer.weight = nn.Parameter(layer.weight.detach().clone())  # type: ignore[arg-type,operator]
    script.step()
    return script.values()


def gives_new_memory(script: Script) -> Values:
    """`parameter.data` is another tensor: the parameter is the same."""
    script.start().step()
    script.drain()
    for parameter in script.model.parameters():
        parameter.data = parameter.detach() * 0.5
    script.steps(2)
    return script.values()


def takes_a_parameter_out(script: Script) -> Values:
    script.start().step()
    script.drain()
    del script.optimizer.param_groups[0]["params"][0]
    for _ in range(2):
        script.model.zero_grad()
        script.loss().backward()
        script.optimizer.step()
    return script.values()


def holds_frozen_ones(script: Script) -> Values:
    """A frozen layer's parameters are in the optimizer too."""
    script.optimizer = torch.optim.AdamW(script.model.parameters(), lr=0.02)
    script.start().steps()
    return script.values()


def marked(script: Script) -> Values:
    """The marks change in the midst of training."""
    layers = list(script.model.children())
    layers[0].weight.lr_scale = 0.1  # type: ignore[union-attr]
    script.start().steps(2)
    script.drain()
    layers[0].weight.lr_scale = 0.5  # type: ignore[union-attr]
    layers[-1].bias.lr_scale = 0.2  # type: ignore[union-attr]
    script.steps(2)
    return script.values()


def has_become_another(script: Script) -> Values:
    """The class is the bundle's; what it does has been replaced."""
    stepped = script.optimizer.step

    def step() -> None:
        stepped()

    script.optimizer.step = step  # type: ignore[method-assign,assignment]
    script.start().steps()
    return script.values()


def wraps(script: Script) -> Values:
    """An object that holds an optimizer and is none."""

    class Wrapper:
        def __init__(self, optimizer: torch.optim.Optimizer) -> None:
            self.optimizer = optimizer

    script.optimizer = Wrapper(script.optimizer)  # type: ignore[assignment]
    script.start()
    return {}


class Lookahead(torch.optim.Optimizer):
    """Every second step goes back half of the way: an optimizer of its own over another's groups."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.optimizer = optimizer
        super().__init__(optimizer.param_groups, optimizer.defaults)
        self.param_groups = optimizer.param_groups
        self.count = 0
        self.slow: list[torch.Tensor] = []

    def step(self, closure: Any = None) -> Any:
        fast = [p for group in self.param_groups for p in group["params"]]
        self.slow = self.slow or [p.detach().clone() for p in fast]
        self.optimizer.step()
        self.count += 1
        if self.count % 2 == 0:
            with torch.no_grad():
                for slow, parameter in zip(self.slow, fast, strict=True):
                    slow.lerp_(parameter, 0.5)
                    parameter.copy_(slow)


def looks_ahead(script: Script) -> Values:
    script.optimizer = Lookahead(script.optimizer)
    script.start().steps()
    return script.values()


def looks_ahead_alone(script: Script) -> Values:
    """The inner optimizer is given; the one around it steps."""
    outer = Lookahead(script.optimizer)
    script.start()
    for _ in range(NUM_STEPS):
        script.model.zero_grad()
        script.loss().backward()
        outer.step()
    return script.values()
