"""The expected result of lossy and stale strategies: training in one process, by the definition of the strategy.

It uses no plan and no engine, only the effect of codecs (the reference's), staleness and averages on each variable.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

import numpy as np
import torch
from torch import Tensor

from autosync.plan.reference.codecs import decode, encode, orthogonal
from autosync.plan.reference.work import outer_step
from autosync.plan.reference.workload import Array
from autosync.strategy.codecs import Cast, Codec, PowerSGD, Sign, TopK
from autosync.strategy.parts import PartName
from autosync.strategy.representation import Message, Strategy
from autosync.strategy.synchronisers.parameter_server import ParameterServer
from autosync.strategy.synchronisers.periodic import Periodic
from benchmarks.exactness.reference import Training

# Relative to the norm of training's change of each variable.
TOLERANCE = 1e-10
CAST_TOLERANCE = 2e-2
"""The tolerance for casts, whose computation here ignores that sums are rounded on the wire."""
SIGN_TOLERANCE = 1e-6
"""The tolerance for signs, whose means are summed in some order and sent in float32."""

Values: TypeAlias = Mapping[str, Array]


class _AllRanks:
    """The trainings of all ranks in one process.

    All start with rank 0's parameters, and each has its rank's batches.
    """

    def __init__(self, task: str, dtype: str, num_ranks: int) -> None:
        self._made = [Training(task, dtype, rank) for rank in range(num_ranks)]
        self.initial: Values = {
            name: one.detach().numpy().copy() for name, one in self._made[0].model.named_parameters()
        }

    def gradients(self, copies: Sequence[Values]) -> tuple[list[Values], float]:
        """Return every rank's gradients of its next step, at its own parameters, and the learning rate of the step."""
        found = [self._gradients(*pair) for pair in zip(self._made, copies, strict=True)]
        rate = float(self._made[0].optimizer.param_groups[0]["lr"])
        # This advances the schedule; parameters are overwritten in the next step.
        self._made[0].update()
        return found, rate

    def _gradients(self, made: Training, values: Values) -> Values:
        for name, parameter in made.model.named_parameters():
            parameter.detach().copy_(torch.from_numpy(values[name]))
        made.model.zero_grad()
        made.backward()
        found = {}
        for name, parameter in made.model.named_parameters():
            assert parameter.grad is not None, "every variable has a gradient in each step"
            found[name] = (parameter.grad.to_dense() if parameter.grad.is_sparse else parameter.grad).numpy().copy()
        return found


class Meaning:
    """The result of a strategy for a task on one rank, after its last step.

    `numbers` are the positions of variables in the strategy's plan, from which PowerSGD's first factors are drawn.
    """

    def __init__(
        self,
        strategy: Strategy,
        task: str,
        dtype: str,
        *,
        rank: int,
        num_ranks: int,
        num_steps: int,
        numbers: Mapping[str, int],
    ) -> None:
        self._rank = rank
        self._strategy = strategy
        self._num_ranks = num_ranks
        self._num_steps = num_steps
        self._initial = _AllRanks(task, dtype, 1).initial
        self._meant = self._trained(strategy.messages, task, dtype, numbers)
        self._exact = self._trained((), task, dtype, numbers)

    def _trained(self, messages: Sequence[Message], task: str, dtype: str, numbers: Mapping[str, int]) -> list[Values]:
        """Return every rank's parameters at the end; without messages, those of plain training on all batches."""
        ranks = _AllRanks(task, dtype, self._num_ranks)
        by_variable = {_whole(part): message for message in messages for part in message.parts}
        variables = {
            name: _Follower(value, by_variable.get(name), self._num_ranks, numbers[name])
            for name, value in ranks.initial.items()
        }
        copies: list[Values] = [ranks.initial] * self._num_ranks
        for step in range(self._num_steps):
            gradients, rate = ranks.gradients(copies)
            for name, follower in variables.items():
                follower.step([one[name] for one in gradients], step, rate)
            copies = [{name: one.values[rank] for name, one in variables.items()} for rank in range(self._num_ranks)]
        return copies

    def values_differ(self, step: int, values: Mapping[str, Tensor]) -> tuple[list[str], float]:
        """Return the problems of this rank's parameters after the last step, and the error over its tolerance."""
        assert step == self._num_steps - 1, "it is worked out for the last step only"
        found = {name: value.numpy() for name, value in values.items() if name in self._initial}
        off, off_exact = self._far(found, self._meant[self._rank]), self._far(found, self._exact[self._rank])
        limit = _tolerance(self._strategy)
        problems = []
        if not off <= limit:
            problems.append(f"off by {off:.1e} of what training changes ({limit:.0e})")
        if off_exact <= TOLERANCE:
            problems.append("it came out as exact training does, which it is not")
        return problems, off / limit

    def _far(self, found: Values, expected: Values) -> float:
        """Return the largest error of a variable, as a share of training's change of it."""
        shares = []
        for name, start in self._initial.items():
            off = np.linalg.norm(found[name] - expected[name])
            # What is as expected is not off, even where training changes nothing.
            shares.append(off / np.linalg.norm(expected[name] - start) if off else 0.0)
        # It keeps what is no number, which `max` may not.
        return float(np.max(shares))


def _tolerance(strategy: Strategy) -> float:
    codecs = [message.codec for message in strategy.messages]
    if any(isinstance(codec, Cast) for codec in codecs):
        return CAST_TOLERANCE
    return SIGN_TOLERANCE if any(isinstance(codec, Sign) for codec in codecs) else TOLERANCE


def _whole(part: str) -> str:
    name = PartName.parse(part)
    assert name.whole, "lossy and stale presets cut nothing"
    return name.variable


class _Follower:
    """One variable on all ranks; `values` are the current ones."""

    def __init__(self, initial: Array, message: Message | None, num_ranks: int, number: int) -> None:
        synchroniser = message.synchroniser if message is not None else None
        self.values = [initial] * num_ranks
        self._coding = _Coding(message.codec if message is not None else None, initial.shape, num_ranks, number)
        self._periodic = synchroniser if isinstance(synchroniser, Periodic) else None
        self._delay = synchroniser.staleness if isinstance(synchroniser, ParameterServer) else 0
        self._versions = [initial]
        self._anchor, self._momentum = initial.copy(), np.zeros(initial.shape)

    def step(self, gradients: Sequence[Array], step: int, rate: float) -> None:
        if self._periodic is not None:
            self._drift(gradients, step, rate, self._periodic)
            return
        self._versions.append(self._versions[-1] - rate * self._coding.mean(gradients))
        late = max(0, len(self._versions) - 1 - self._delay)
        self.values = [self._versions[late]] * len(gradients)

    def _drift(self, gradients: Sequence[Array], step: int, rate: float, periodic: Periodic) -> None:
        self.values = [v - rate * g for v, g in zip(self.values, gradients, strict=True)]
        if (step + 1) % periodic.every:
            return
        average = np.mean(self.values, axis=0)
        if periodic.outer is not None:
            outer_step(average, self._anchor, self._momentum, periodic.outer)
        self.values = [average] * len(gradients)


class _Coding:
    """A codec on one variable, with the state that each rank keeps for it."""

    def __init__(self, codec: Codec | None, shape: tuple[int, ...], num_ranks: int, number: int) -> None:
        self._codec = codec
        self._residuals = [np.zeros(int(np.prod(shape))) for _ in range(num_ranks)]
        self._velocities = [np.zeros(int(np.prod(shape))) for _ in range(num_ranks)]
        self._right = np.zeros((0, 0))
        if isinstance(codec, PowerSGD):
            columns = int(np.prod(shape[1:]))
            self._right = np.random.default_rng(number).standard_normal((columns, codec.rank))

    def mean(self, gradients: Sequence[Array]) -> Array:
        """Return the average that all ranks get."""
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
