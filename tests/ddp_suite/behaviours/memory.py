"""Memory: objects that share a parameter's memory, and ways to a value that torch does not report."""

import ctypes
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from environment import Env, Values, behaviour, momentum, task
from torch import Tensor


def _after_each_step(e: Env, keep: Callable[[Tensor], Any], read: Callable[[Any], float]) -> Values:
    """Keep something of the last layer's weight before training, and read it after each step."""
    run = e.start(task(optimizer=momentum))
    kept = keep(run.parameters()[-2])
    found = []
    for _ in range(5):
        run.step()
        found.append(read(kept))
    return {"found": found, **run.values()}


def _sum(memory: bytes) -> float:
    """The sum of the numbers in some memory: the suite's models have float64."""
    return float(np.frombuffer(memory, dtype=np.float64).sum())


@behaviour
def keeps_an_array(e: Env) -> Values:
    return _after_each_step(e, lambda p: p.detach().numpy(), lambda kept: float(kept.sum()))


@behaviour
def keeps_data(e: Env) -> Values:
    return _after_each_step(e, lambda p: p.data, lambda kept: float(kept.sum()))


@behaviour
def keeps_a_storage(e: Env) -> Values:
    return _after_each_step(e, lambda p: p.untyped_storage(), lambda kept: _sum(bytes(kept.tolist())))


@behaviour
def keeps_a_capsule(e: Env) -> Values:
    return _after_each_step(e, lambda p: torch.from_dlpack(p.detach()), lambda kept: float(kept.sum()))


@behaviour
def reads_by_an_address(e: Env) -> Values:
    def read(weight: Tensor) -> float:
        return _sum(ctypes.string_at(weight.data_ptr(), weight.numel() * weight.element_size()))

    return _after_each_step(e, lambda p: p, read)


@behaviour
def reads_by_vmap(e: Env) -> Values:
    return _after_each_step(e, lambda p: p, lambda p: float(torch.vmap(torch.sum)(p).sum()))


@behaviour
def reads_by_grad(e: Env) -> Values:
    return _after_each_step(e, lambda p: p, lambda p: float(torch.func.grad(lambda x: (x * x).sum())(p).sum()))


@behaviour
def reads_by_hessian(e: Env) -> Values:
    return _after_each_step(e, lambda p: p, lambda p: float(torch.func.hessian(lambda x: (x**3).sum())(p).sum()))


@behaviour
def writes_an_array(e: Env) -> Values:
    def write(kept: Any) -> float:
        kept *= 0.9
        return float(kept.sum())

    return _after_each_step(e, lambda p: p.detach().numpy(), write)


@behaviour
def writes_by_foreach(e: Env) -> Values:
    def write(weight: Tensor) -> float:
        with torch.no_grad():
            torch._foreach_mul_([weight], 0.9)
        return float(weight.sum())

    return _after_each_step(e, lambda p: p, write)


@behaviour
def writes_a_row(e: Env) -> Values:
    def write(weight: Tensor) -> float:
        with torch.no_grad():
            weight[0] = 0.5
        return float(weight.sum())

    return _after_each_step(e, lambda p: p, write)


def _keeps_gradients(e: Env, keep: Callable[[Tensor], Any]) -> Values:
    """Keep each step's gradients without a copy, and read all of them at the end."""
    run = e.start(task(optimizer=momentum))
    kept = []
    for _ in range(4):
        run.optimizer.zero_grad()
        run.loss().backward()
        kept.append([keep(_gradient(p)) for p in run.parameters()])
        run.optimizer.step()
    return {"found": [[torch.as_tensor(one).clone() for one in step] for step in kept], **run.values()}


def _gradient(parameter: Tensor) -> Tensor:
    assert parameter.grad is not None
    return parameter.grad


@behaviour
def keeps_gradients(e: Env) -> Values:
    return _keeps_gradients(e, lambda gradient: gradient)


@behaviour
def keeps_views_of_gradients(e: Env) -> Values:
    return _keeps_gradients(e, lambda gradient: gradient.detach().view(-1))


@behaviour
def keeps_arrays_of_gradients(e: Env) -> Values:
    return _keeps_gradients(e, lambda gradient: gradient.numpy())


def _reads_after_the_step(e: Env, made: Any, *, clips: bool = False) -> Values:
    """Read the gradients of each second step after it, and once more when the next forward pass has been made."""
    run, found = e.start(made), []
    for number in range(5):
        loss = run.loss()
        if number % 2:
            found.append([_gradient(p).sum() for p in run.parameters()])
        run.optimizer.zero_grad()
        loss.backward()
        if clips:
            torch.nn.utils.clip_grad_norm_(run.model.parameters(), 0.1)
        run.optimizer.step()
        if number % 2 == 0:
            found.append([_gradient(p).clone() for p in run.parameters()])
    return {"found": found, **run.values()}


@behaviour
def reads_gradients_after_the_step(e: Env) -> Values:
    return _reads_after_the_step(e, task(optimizer=momentum))


@behaviour
def reads_clipped_gradients_after_the_step(e: Env) -> Values:
    return _reads_after_the_step(e, task(optimizer=momentum, clip_norm=0.1), clips=True)


@behaviour
def reads_gradients_after_a_step_that_changes_them(e: Env) -> Values:
    """As torch's own SGD does with Nesterov momentum, if it updates many tensors at once."""
    nesterov = lambda parameters: torch.optim.SGD(parameters, lr=0.05, momentum=0.9, nesterov=True)  # noqa: E731 - the only use
    return _reads_after_the_step(e, task(optimizer=nesterov))


@behaviour
def adds_gradients_of_two_passes(e: Env) -> Values:
    """As scripts that balance two losses do: the gradients of the first pass are kept while the second one runs."""
    run = e.start(task(optimizer=momentum))
    for _ in range(4):
        run.optimizer.zero_grad()
        run.loss().backward()
        first = [_gradient(p) for p in run.parameters()]
        run.optimizer.zero_grad()
        run.loss().backward()
        for parameter, gradient in zip(run.parameters(), first, strict=True):
            parameter.grad = 0.3 * gradient + 0.7 * _gradient(parameter)
        run.optimizer.step()
    return run.values()
