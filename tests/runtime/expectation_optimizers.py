"""Scripts that have other optimizers than one of torch's own over everything, or do with its state what few do."""

import contextlib
import copy
from collections import defaultdict
from typing import Any

import torch
import torch.distributed as dist
from expectation_script import NUM_STEPS, Script, Values
from torch import nn

from autosync.runtime.checkpoints.calls import consolidate


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


def _changes(script: Script, change: Any) -> Values:
    """The optimizer's state is changed after the second of four steps."""
    script.start()
    for number in range(4):
        script.step()
        if number == 1:
            change()
    return script.values()


def clears_the_state(script: Script) -> Values:
    return _changes(script, lambda: script.optimizer.state.clear())  # noqa: PLW0108 - it is another state by then


def clears_before_any(script: Script) -> Values:
    script.start()
    script.optimizer.state.clear()
    script.steps()
    return script.values()


def replaces_the_state(script: Script) -> Values:
    def replace() -> None:
        script.optimizer.state = defaultdict(dict)

    return _changes(script, replace)


def drops_an_entry(script: Script) -> Values:
    def drop() -> None:
        del script.optimizer.state[next(script.model.parameters())]

    return _changes(script, drop)


def scales_the_state(script: Script) -> Values:
    def scale() -> None:
        for entry in script.optimizer.state.values():
            entry["exp_avg"].mul_(0.1)

    return _changes(script, scale)


def puts_a_state(script: Script) -> Values:
    """The state of one parameter is replaced by another."""

    def put() -> None:
        parameter = next(script.model.parameters())
        entry = script.optimizer.state[parameter]
        script.optimizer.state[parameter] = {
            key: torch.full_like(value, 0.01) if key != "step" else value.clone() for key, value in entry.items()
        }

    return _changes(script, put)


def looks_at_the_state(script: Script) -> Values:
    """After every step, and once between backward and the step."""
    script.start()
    found = {}
    for number in range(NUM_STEPS):
        script.optimizer.zero_grad()
        script.loss().backward()
        if number == 2:
            assert len(script.optimizer.state) == len(list(script.model.parameters()))
        script.optimizer.step()
        for name, parameter in script.model.named_parameters():
            assert parameter in script.optimizer.state
            for key, value in script.optimizer.state[parameter].items():
                found[f"{number}.{name}.{key}"] = value.clone()
    return {**script.values(), **found}


def copies_the_optimizer(script: Script) -> Values:
    script.start().steps(2)
    copied = copy.deepcopy(script.optimizer)
    assert type(copied.state) is defaultdict
    found = {
        f"{number}.{key}": value.clone()
        for number, parameter in enumerate(copied.param_groups[0]["params"])
        for key, value in copied.state[parameter].items()
    }
    script.steps(2)
    return {**script.values(), **found}


def clears_between_backward_and_step(script: Script) -> Values:
    script.start().steps(2)
    script.optimizer.zero_grad()
    script.loss().backward()
    script.optimizer.state.clear()
    script.optimizer.step()
    script.step()
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


def _consolidates(script: Script, change: Any, *, to: int | None = None) -> Values:
    def bring_and_change() -> None:
        if not script.is_stock:
            consolidate(script.model, to=to)
        change()

    return _changes(script, bring_and_change)


def scales_what_came_home(script: Script) -> Values:
    def scale() -> None:
        for entry in script.optimizer.state.values():
            entry["exp_avg"].mul_(0.1)

    return _consolidates(script, scale)


def drops_what_came_home(script: Script) -> Values:
    def drop() -> None:
        del script.optimizer.state[next(script.model.parameters())]

    return _consolidates(script, drop)


def looks_at_what_came_home(script: Script) -> Values:
    """At one worker alone, which may read it."""
    found: dict[str, torch.Tensor] = {}

    def look() -> None:
        if script.rank == 0:
            for name, parameter in script.model.named_parameters():
                found[name] = script.optimizer.state[parameter]["exp_avg"].clone()

    values = _consolidates(script, look, to=0)
    for name, parameter in script.model.named_parameters():
        value = found.get(name, torch.empty_like(parameter))
        dist.broadcast(value, 0)
        values[f"{name} at home"] = value
    return values


def scales_and_saves(script: Script) -> Values:
    """What is changed is what is brought home again."""

    def scale_twice() -> None:
        for _ in range(2):
            for entry in script.optimizer.state.values():
                entry["exp_avg"].mul_(0.5)
            if not script.is_stock:
                consolidate(script.model)

    return _consolidates(script, scale_twice)


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
