"""A step has all forward passes before its update, and the updates of all optimizers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from autosync.doctor.timing import parts_of
from autosync.doctor.watch import Watch

NUM_STEPS = 4
UPDATE_SECONDS = 0.5


@pytest.fixture(scope="module", autouse=True)
def alone() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


class Seconds:
    """A clock that only moves with the training: by a second for each forward pass, and by less for each update."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now

    def passes(self, *_: object) -> None:
        self.now += 1.0

    def updates(self, *_: object) -> None:
        self.now += UPDATE_SECONDS


class Training:
    """A training of two layers, each by an optimizer of its own, that is watched."""

    def __init__(self) -> None:
        self.clock = Seconds()
        self.stepped: list[int] = []
        self.watch = Watch(lambda watch: self.stepped.append(len(watch.notes.steps)), clock=self.clock)
        layers = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
        layers.register_forward_hook(self.clock.passes)
        self.model: Any = DistributedDataParallel(layers)
        self.optimizers = [torch.optim.SGD(one.parameters(), lr=0.01) for one in layers]
        for one in self.optimizers:
            one.register_step_pre_hook(self.clock.updates)

    def loss(self) -> Any:
        return self.model(torch.ones(5, 3)).square().mean()


def test_the_updates_of_all_optimizers_belong_to_a_step() -> None:
    training = Training()
    with training.watch.open():
        for _ in range(NUM_STEPS):
            training.loss().backward()
            for one in training.optimizers:
                one.step()
    # The first step shows how many optimizers there are. Later ones end with the last of them.
    assert training.stepped == [1, 2, 3, 4]
    parts = list(map(parts_of, training.watch.notes.steps))
    assert [(one.forward, one.update, one.input) for one in parts] == [(1.0, 1.0, 0.0)] * NUM_STEPS


def test_a_pass_without_gradients_is_computation() -> None:
    training = Training()
    with training.watch.open():
        for _ in range(NUM_STEPS):
            training.loss().backward()
            for one in training.optimizers:
                one.step()
            with torch.no_grad():
                training.loss()
    parts = list(map(parts_of, training.watch.notes.steps))
    assert [(one.forward, one.input) for one in parts] == [(1.0, 0.0)] + [(2.0, 0.0)] * (NUM_STEPS - 1)


def test_two_passes_are_compared_in_one_backward_pass() -> None:
    training = Training()
    with training.watch.open():
        for _ in range(NUM_STEPS):
            (training.loss() - training.loss()).square().backward()
            for one in training.optimizers:
                one.step()
    parts = list(map(parts_of, training.watch.notes.steps))
    assert [(one.forward, one.input) for one in parts] == [(2.0, 0.0)] * NUM_STEPS


def test_closures_make_a_step_each() -> None:
    training = Training()
    optimizer = torch.optim.SGD(training.model.parameters(), lr=0.01)
    optimizer.register_step_pre_hook(training.clock.updates)

    def closure() -> Any:
        loss = training.loss()
        loss.backward()
        return loss

    with training.watch.open():
        for _ in range(NUM_STEPS):
            optimizer.step(closure)
    assert training.stepped == [1, 2, 3, 4]
    assert [one.seconds for one in training.watch.notes.steps] == [1.0 + UPDATE_SECONDS] * NUM_STEPS
