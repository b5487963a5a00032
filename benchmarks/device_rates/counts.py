"""Counts the operations of a training step by class, as `autosync profile --times computed` counts them."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import torch

from autosync.specs.profile.computed_clock import ComputedClock
from autosync.specs.profile.operations import CLASSES, OperationClass
from benchmarks.device_rates.networks import NETWORKS

_BATCHES = (4, 8)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Counts:
    """The operations of a step, one a row: class (its position in `CLASSES`), arithmetic operations, and bytes."""

    kinds: npt.NDArray[np.intp]
    operations: npt.NDArray[np.float64]
    num_bytes: npt.NDArray[np.float64]


@dataclass(slots=True)
class _Recorder:
    """Stands for a device, and keeps what it is asked."""

    name: str = "recorder"
    rows: list[tuple[int, float, float]] = field(default_factory=list)

    def seconds(self, kind: OperationClass, operations: float, num_bytes: float) -> float:
        self.rows.append((CLASSES.index(kind), operations, num_bytes))
        return 0.0

    def describe(self) -> str:
        return self.name


def counts_of(network: str, batch: int) -> Counts:
    """Return the counts of a step with a batch. All are of the first degree in the batch, so two batches tell them."""
    (kinds, few), (_, many) = (_counted(network, size) for size in _BATCHES)
    share = (batch - _BATCHES[0]) / (_BATCHES[1] - _BATCHES[0])
    found = few + share * (many - few)
    return Counts(kinds=kinds, operations=found[:, 0], num_bytes=found[:, 1])


@functools.cache
def _counted(network: str, batch: int) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.float64]]:
    known = NETWORKS[network]
    recorder = _Recorder()
    clock = ComputedClock(recorder)
    with torch.device("meta"):
        model = known.build()
    clock.strip(model)
    with clock:
        known.loss(model, batch).backward()  # type: ignore[no-untyped-call]
    parameters = sum(one.numel() for one in model.parameters())
    update = known.updates * parameters * 4 * (3 + 2 * known.state_slots)
    rows: Sequence[tuple[int, float, float]] = [*recorder.rows, (CLASSES.index("memory"), 0.0, update)]
    table = np.array(rows, dtype=np.float64)
    return table[:, 0].astype(np.intp), table[:, 1:]
