"""What `preset_matrix.py --run` holds presets against: training in one process, as the strategy's words mean it.

No plan and no engine is in this. An exact strategy means the average of all gradients, whatever it says; a lossy or
stale one means what its codecs (the reference's), its staleness and its averages make of each variable.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

import numpy as np
import torch
from preset_task import LEARNING_RATE, NUM_STEPS, task

from autosync.plan.reference.codecs import decode, encode, orthogonal
from autosync.plan.reference.work import outer_step
from autosync.plan.reference.workload import Array
from autosync.strategy.representation import (
    Codec,
    Message,
    ParameterServer,
    PartName,
    Periodic,
    PowerSGD,
    Strategy,
    TopK,
)

SEED = 11

Values: TypeAlias = Mapping[str, Array]


class Ranks:
    """The task on so many ranks, as the trial service trains it: one start for all, other batches on each."""

    def __init__(self, num_ranks: int) -> None:
        self._task = task()
        torch.manual_seed(SEED)
        self._model = self._task.model()
        self.initial: Values = {name: one.detach().numpy().copy() for name, one in self._model.named_parameters()}
        self._batches = [torch.Generator().manual_seed(SEED * 1_000_003 + rank) for rank in range(num_ranks)]

    def gradients(self, copies: Sequence[Values]) -> list[Values]:
        """Every rank's gradients of its next batch, at its own parameters."""
        return [self._gradients(*pair) for pair in zip(copies, self._batches, strict=True)]

    def _gradients(self, values: Values, generator: torch.Generator) -> Values:
        for name, parameter in self._model.named_parameters():
            parameter.detach().copy_(torch.from_numpy(values[name]))
        self._model.zero_grad()
        self._task.loss(self._model, self._task.batch(generator)).backward()  # type: ignore[no-untyped-call]
        found = {}
        for name, parameter in self._model.named_parameters():
            assert parameter.grad is not None, "everything has a gradient in each step"
            found[name] = (parameter.grad.to_dense() if parameter.grad.is_sparse else parameter.grad).numpy().copy()
        return found


def initial_values() -> Values:
    """What every rank begins with."""
    return Ranks(0).initial


def meant(strategy: Strategy | None, num_ranks: int, numbers: Mapping[str, int]) -> list[Values]:
    """Every rank's parameters after the steps that count, by a strategy or (None) by plain training on all batches.

    `numbers` are the positions of variables in the strategy's plan, from which PowerSGD's first factors are drawn.
    """
    ranks = Ranks(num_ranks)
    changing = () if strategy is None or strategy.is_exact else strategy.messages
    messages = {_whole(part): message for message in changing for part in message.parts}
    followers = {
        name: _Follower(value, messages.get(name), num_ranks, numbers[name]) for name, value in ranks.initial.items()
    }
    copies: list[Values] = [ranks.initial] * num_ranks
    for step in range(NUM_STEPS):
        gradients = ranks.gradients(copies)
        for name, follower in followers.items():
            follower.step([one[name] for one in gradients], step)
        copies = [{name: one.values[rank] for name, one in followers.items()} for rank in range(num_ranks)]
    return copies


def _whole(part: str) -> str:
    name = PartName.parse(part)
    assert name.whole, "lossy and stale presets cut nothing"
    return name.variable


class _Follower:
    """One variable on all ranks: `values` are those in use."""

    def __init__(self, initial: Array, message: Message | None, num_ranks: int, number: int) -> None:
        synchroniser = message.synchroniser if message is not None else None
        self.values = [initial] * num_ranks
        self._coding = _Coding(message.codec if message is not None else None, initial.shape, num_ranks, number)
        self._periodic = synchroniser if isinstance(synchroniser, Periodic) else None
        self._delay = synchroniser.staleness if isinstance(synchroniser, ParameterServer) else 0
        self._versions = [initial]
        self._anchor, self._momentum = initial.copy(), np.zeros(initial.shape)

    def step(self, gradients: Sequence[Array], step: int) -> None:
        if self._periodic is not None:
            self._drift(gradients, step, self._periodic)
            return
        self._versions.append(self._versions[-1] - LEARNING_RATE * self._coding.mean(gradients))
        late = max(0, len(self._versions) - 1 - self._delay)
        self.values = [self._versions[late]] * len(gradients)

    def _drift(self, gradients: Sequence[Array], step: int, periodic: Periodic) -> None:
        self.values = [v - LEARNING_RATE * g for v, g in zip(self.values, gradients, strict=True)]
        if (step + 1) % periodic.every:
            return
        average = np.mean(self.values, axis=0)
        if periodic.outer is not None:
            outer_step(average, self._anchor, self._momentum, periodic.outer)
        self.values = [average] * len(gradients)


class _Coding:
    """A codec on one variable, with what each rank keeps of it."""

    def __init__(self, codec: Codec | None, shape: tuple[int, ...], num_ranks: int, number: int) -> None:
        self._codec = codec
        self._residuals = [np.zeros(int(np.prod(shape))) for _ in range(num_ranks)]
        self._velocities = [np.zeros(int(np.prod(shape))) for _ in range(num_ranks)]
        self._right = np.zeros((0, 0))
        if isinstance(codec, PowerSGD):
            columns = int(np.prod(shape[1:]))
            self._right = np.random.default_rng(number).standard_normal((columns, codec.rank))

    def mean(self, gradients: Sequence[Array]) -> Array:
        """The average that all ranks get."""
        codec, shape = self._codec, gradients[0].shape
        if codec is None:
            return np.asarray(np.mean(gradients, axis=0))
        if isinstance(codec, PowerSGD):
            return self._by_factors([one.reshape(shape[0], -1) for one in gradients]).reshape(shape)
        decoded = [self._through(codec, rank, one.reshape(-1)) for rank, one in enumerate(gradients)]
        return np.asarray(np.mean(decoded, axis=0)).reshape(shape)

    def _through(self, codec: Codec, rank: int, gradient: Array) -> Array:
        momentum = codec.momentum if isinstance(codec, TopK) else 0.0
        self._velocities[rank] = momentum * self._velocities[rank] + gradient
        values = self._velocities[rank] + self._residuals[rank]
        content = encode(codec, values)
        decoded = decode(codec, content, len(values))
        if codec.error_feedback:
            self._residuals[rank] = values - decoded
        if isinstance(codec, TopK):
            self._velocities[rank][content[0]] = 0
        return decoded

    def _by_factors(self, matrices: Sequence[Array]) -> Array:
        held = [one.reshape(matrices[0].shape) for one in self._residuals]
        matrices = [one + more for one, more in zip(matrices, held, strict=True)]
        basis = orthogonal(np.sum([one @ self._right for one in matrices], axis=0))
        self._right = np.mean([one.T @ basis for one in matrices], axis=0)
        product: Array = basis @ self._right.T
        self._residuals = [(one - product).reshape(-1) for one in matrices]
        return product
