"""Hooks of the script, registered before the model is made parallel or after."""

from collections.abc import Callable
from typing import Any

import torch
from environment import Env, Run, Values, behaviour, enter, momentum, task
from torch import Tensor, nn


def _hooked(e: Env, hook: Callable[[Run, list[Any]], Any], *, before: bool, **more: Any) -> Values:
    """Trains with a hook; what it has seen is of interest as well as what comes of it."""
    run = e.run(task(optimizer=momentum, **more))
    seen: list[Any] = []
    if before:
        hook(run, seen)
    run.start()
    if not before:
        hook(run, seen)
    run.steps()
    return {"seen": seen, **run.values()}


def _tensor(run: Run, seen: list[Any]) -> None:
    """A hook on a parameter changes the gradient of this rank before it is averaged."""
    run.model[2].weight.register_hook(lambda grad: grad * 2)
    run.model[0].bias.register_hook(lambda grad: seen.append(float(grad.sum())))


def _accumulated(run: Run, seen: list[Any]) -> None:
    """It changes the gradient in place when it is there."""
    for p in run.parameters():
        p.register_post_accumulate_grad_hook(lambda p: p.grad.mul_(0.5))


def _accumulated_counts(run: Run, seen: list[Any]) -> None:
    for number, p in enumerate(run.parameters()):
        p.register_post_accumulate_grad_hook(lambda p, number=number: seen.append(number) if number in (0, 5) else None)


def _forward(run: Run, seen: list[Any]) -> None:
    run.model[2].register_forward_hook(lambda m, x, y: y * 1.5)
    run.model[0].register_forward_pre_hook(lambda m, x: (x[0] + 0.1,))
    run.model.register_forward_hook(lambda m, x, y: seen.append(float(y.sum())))


def _backward(run: Run, seen: list[Any]) -> None:
    run.model[2].register_full_backward_hook(lambda m, gi, go: seen.append(float(go[0].sum())))
    run.model[1].register_full_backward_hook(lambda m, gi, go: (gi[0] * 0.5,))
    run.model[4].register_full_backward_pre_hook(lambda m, go: (go[0] * 1.5,))


def _step_pre(run: Run, seen: list[Any]) -> None:
    run.optimizer.register_step_pre_hook(lambda o, a, k: seen.append("before"))


def _step_post(run: Run, seen: list[Any]) -> None:
    run.optimizer.register_step_post_hook(lambda o, a, k: seen.append("after"))


def _step_pre_changes(run: Run, seen: list[Any]) -> None:
    """A weight decay of the script's own, by a hook on the step, as some libraries have it."""

    def decay(*_: Any) -> None:
        with torch.no_grad():
            for p in run.parameters():
                p.mul_(0.99)

    run.optimizer.register_step_pre_hook(decay)


def _step_pre_changes_gradients(run: Run, seen: list[Any]) -> None:
    def halve(*_: Any) -> None:
        for p in run.parameters():
            p.grad.mul_(0.5)

    run.optimizer.register_step_pre_hook(halve)


def _step_post_reads(run: Run, seen: list[Any]) -> None:
    """It reads the parameters that the step has made."""
    run.optimizer.register_step_post_hook(
        lambda *_: seen.append(float(sum(p.detach().abs().sum() for p in run.parameters())))
    )


def _step_post_changes(run: Run, seen: list[Any]) -> None:
    def clamp(*_: Any) -> None:
        with torch.no_grad():
            for p in run.parameters():
                p.clamp_(-0.2, 0.2)

    run.optimizer.register_step_post_hook(clamp)


def _step_pre_changes_rate(run: Run, seen: list[Any]) -> None:
    def warm(*_: Any) -> None:
        run.optimizer.param_groups[0]["lr"] *= 0.7

    run.optimizer.register_step_pre_hook(warm)


HOOKS = {
    "hook_on_gradients": _tensor,
    "hook_when_accumulated": _accumulated,
    "hook_when_accumulated_counts": _accumulated_counts,
    "hook_on_forward": _forward,
    "hook_on_backward": _backward,
    "hook_before_step": _step_pre,
    "hook_after_step": _step_post,
    "hook_before_step_changes_parameters": _step_pre_changes,
    "hook_before_step_changes_gradients": _step_pre_changes_gradients,
    "hook_after_step_reads_parameters": _step_post_reads,
    "hook_after_step_changes_parameters": _step_post_changes,
    "hook_before_step_changes_rate": _step_pre_changes_rate,
}
for _name, _hook in HOOKS.items():
    enter(f"{_name}_from_before", lambda e, hook=_hook: _hooked(e, hook, before=True), group="hooks")
    enter(f"{_name}_from_after", lambda e, hook=_hook: _hooked(e, hook, before=False), group="hooks")


@behaviour
def hook_registered_in_the_midst(e: Env) -> Values:
    run = e.start(task(optimizer=momentum))
    run.steps(2)
    for p in run.parameters():
        p.register_post_accumulate_grad_hook(lambda p: p.grad.mul_(0.5))
    run.steps(2)
    return run.values()


@behaviour
def hook_taken_away_in_the_midst(e: Env) -> Values:
    run = e.start(task(optimizer=momentum))
    handles = [p.register_hook(lambda grad: grad * 3) for p in run.parameters()]
    run.steps(2)
    for handle in handles:
        handle.remove()
    run.steps(2)
    return run.values()


@behaviour
def hook_of_all_modules(e: Env) -> Values:
    """A global hook, as profilers have it."""
    calls: list[str] = []
    handle = nn.modules.module.register_module_forward_hook(lambda m, x, y: calls.append(type(m).__name__))
    try:
        run = e.start(task())
        calls.clear()
        run.steps(2)
    finally:
        handle.remove()
    return {"calls": [name for name in calls if name in ("Linear", "Tanh", "Sequential")], **run.values()}


@behaviour
def hook_of_all_optimizers(e: Env) -> Values:
    from torch.optim.optimizer import register_optimizer_step_post_hook

    run = e.start(task())
    calls: list[str] = []
    handle = register_optimizer_step_post_hook(lambda o, a, k: calls.append(type(o).__name__))
    try:
        run.steps(3)
    finally:
        handle.remove()
    return {"calls": calls, **run.values()}


@behaviour
def hook_on_an_activation(e: Env) -> Values:
    seen: list[float] = []

    def look(_: nn.Module, __: Any, y: Tensor) -> None:
        y.register_hook(lambda grad: seen.append(float(grad.sum())))

    run = e.start(task())
    run.model[1].register_forward_hook(look)
    run.steps()
    return {"seen": seen, **run.values()}


@behaviour
def hook_on_the_called_model(e: Env) -> Values:
    """On what `parallelize` gives back, which under DDP is the wrapper."""
    seen: list[Any] = []
    run = e.start(task())
    run.called.register_forward_pre_hook(lambda m, x: seen.append(tuple(x[0].shape)))
    run.called.register_forward_hook(lambda m, x, y: seen.append(float(y.sum())))
    run.called.register_full_backward_hook(lambda m, gi, go: seen.append("backward"))
    run.steps()
    return {"seen": [str(one) if isinstance(one, tuple) else one for one in seen], **run.values()}


@behaviour
def optimizer_in_backward(e: Env) -> Values:
    """Each parameter's own optimizer steps as soon as its gradient is there: before it is averaged, under DDP."""
    run = e.run(task())
    optimizers = {p: torch.optim.SGD([p], lr=0.05) for p in run.parameters()}
    run.start()

    def update(p: Tensor) -> None:
        optimizers[p].step()
        optimizers[p].zero_grad()

    for p in run.parameters():
        p.register_post_accumulate_grad_hook(update)
    for _ in range(3):
        run.loss().backward()
    return run.values()


@behaviour
def hook_counts_under_accumulation(e: Env) -> Values:
    counts = [0] * 6
    run = e.run(task())
    for number, p in enumerate(run.parameters()):

        def count(_: Tensor, number: int = number) -> None:
            counts[number] += 1

        p.register_post_accumulate_grad_hook(count)
    run.start()
    for _ in range(3):
        run.optimizer.zero_grad()
        with run.no_sync():
            run.loss().backward()
        run.loss().backward()
        run.optimizer.step()
    return {"counts": counts, **run.values()}
