"""Scripts that look at the state of their optimizer, change it or copy it, also after `consolidate`."""

import copy
from collections import defaultdict
from typing import Any

import torch
import torch.distributed as dist
from expectation_script import NUM_STEPS, Script, Values

from autosync.runtime.checkpoints.calls import consolidate


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
