"""The network of `sequence`, in torch: a bidirectional GRU over variables, and a score from its states."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeAlias

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load as read_tensors
from safetensors.torch import save as write_tensors
from torch import Tensor, nn

from autosync.errors import InputError
from autosync.simulators.features.context import CONTEXT
from autosync.simulators.learned.variables import VARIABLE_NAMES
from autosync.simulators.shared.arrays import Floats

Weights: TypeAlias = Mapping[str, Tensor]
Table: TypeAlias = tuple[Floats, Floats, Floats, Floats]
"""The values of variables, the target score of each row, and the ends of the measured interval."""

WIDTH = 24
_BATCH = 48
_STEPS_ANEW = 240
_STEPS_ON_PRIOR = 80
_SHARPNESS = 25.0
_ROWS_AT_ONCE = 256
_MAX_WEIGHT = 1e6


class Network(nn.Module):
    """The network that scores strategies. A score is the log of seconds without the part common to all strategies."""

    def __init__(self) -> None:
        super().__init__()
        self.reads = nn.Linear(len(VARIABLE_NAMES) + len(CONTEXT), WIDTH)
        self.remembers = nn.GRU(WIDTH, WIDTH, batch_first=True, bidirectional=True)
        self.scores = nn.Linear(4 * WIDTH, 1)

    def forward(self, values: Tensor) -> Tensor:
        """Return one score for each row; `values` is by row, variable and feature."""
        steps, _ = self.remembers(torch.tanh(self.reads(values)))
        whole = torch.cat((steps.mean(dim=1), steps.amax(dim=1)), dim=1)
        scores: Tensor = self.scores(whole).squeeze(1)
        return scores


def trained(tables: Sequence[Table], *, begin: Weights | None, passes: int | None = None) -> Weights:
    """Return the weights after training; the same input gives the same weights.

    `passes` is the number of steps for each table.
    """
    steps = (_STEPS_ANEW if begin is None else _STEPS_ON_PRIOR) if passes is None else passes * len(tables)
    with _one_thread(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        network = Network()
        if begin is not None:
            network.load_state_dict(dict(begin))
        optimizer = torch.optim.Adam(network.parameters(), lr=5e-3 if begin is None else 1e-3)
        rng = np.random.default_rng(0)
        for step in range(steps):
            values, wanted, low, high = tables[step % len(tables)]
            rows = rng.permutation(len(wanted))[:_BATCH]
            optimizer.zero_grad()
            scores = network(torch.from_numpy(values[rows].astype(np.float32)))
            loss = _loss(scores, *(torch.from_numpy(one[rows]).float() for one in (wanted, low, high)))
            torch.autograd.backward(loss)
            nn.utils.clip_grad_norm_(network.parameters(), 1.0)
            optimizer.step()
    return {name: tensor.detach().clone() for name, tensor in network.state_dict().items()}


@contextmanager
def _one_thread() -> Iterator[None]:
    """Run torch on one thread. The network is too small for several: they would mostly wait for one another."""
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(num_threads)


def _loss(scores: Tensor, wanted: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """Return the logistic loss over pairs that are not ties, plus a little of the squared error."""
    faster, slower = torch.nonzero(high[:, None] < low[None, :], as_tuple=True)
    error = torch.mean((scores - wanted) ** 2)
    if len(faster) == 0:
        return error
    odds = _SHARPNESS * (scores[slower] - scores[faster])
    return torch.mean(nn.functional.softplus(-odds)) / _SHARPNESS + 0.2 * error


def scores_of(weights: Weights, values: Floats) -> Floats:
    """Return one score for each row."""
    network = Network()
    network.load_state_dict(dict(weights))
    with _one_thread(), torch.no_grad():
        found = [
            network(torch.from_numpy(values[start : start + _ROWS_AT_ONCE].astype(np.float32)))
            for start in range(0, len(values), _ROWS_AT_ONCE)
        ]
    return torch.cat(found).double().numpy()


def weights_to_bytes(weights: Weights) -> bytes:
    """Return weights as safetensors, which hold numbers and shapes but no code."""
    return bytes(write_tensors(dict(weights)))


def weights_from_bytes(content: bytes) -> Weights:
    """Return the weights in safetensors; raise if they do not fit this network."""
    try:
        found: dict[str, Any] = read_tensors(content)
    except (SafetensorError, ValueError, KeyError) as error:
        raise InputError(f"no tensors: {str(error)[:200]}", rule="safetensors") from error
    wanted = {name: tuple(tensor.shape) for name, tensor in Network().state_dict().items()}
    shapes = {name: tuple(tensor.shape) for name, tensor in found.items()}
    if shapes != wanted:
        raise InputError("other tensors than this network has", rule=f"{len(wanted)} tensors with their shapes")
    for name, tensor in found.items():
        if tensor.dtype != torch.float32 or not bool((tensor.abs() <= _MAX_WEIGHT).all()):
            raise InputError(f"{name} holds no weights", rule=f"float32, finite, up to {_MAX_WEIGHT:g}")
    return found
