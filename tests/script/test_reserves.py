"""What the loaders of a script have ready, and what steps take of it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset

from autosync.script.reserves import Reserves, num_ready

NUM_WORKERS, PREFETCH = 2, 3


class _Examples(Dataset[torch.Tensor]):
    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.tensor(index)


def _batches(**options: Any) -> Iterator[torch.Tensor]:
    return iter(DataLoader(_Examples(), batch_size=2, **options))


@pytest.fixture
def batches() -> Iterator[Iterator[torch.Tensor]]:
    found = _batches(num_workers=NUM_WORKERS, prefetch_factor=PREFETCH)
    yield found
    found._shutdown_workers()  # type: ignore[attr-defined]


def _wait_until(holds: Callable[[], bool]) -> None:
    until = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < until
        time.sleep(0.01)


def test_a_loader_that_keeps_up_has_as_many_ready_as_before(batches: Iterator[torch.Tensor]) -> None:
    reserves, full = Reserves(), NUM_WORKERS * PREFETCH
    next(batches)
    reserves.batch_is_taken(batches)
    assert reserves.num_ahead == full
    for _ in range(3):
        _wait_until(lambda: num_ready(batches) == full)
        reserves.step_begins()
        next(batches)
        reserves.batch_is_taken(batches)
        _wait_until(lambda: num_ready(batches) == full)
        assert reserves.lost_share() == 0.0


def test_batches_that_are_not_made_good_are_lost(batches: Iterator[torch.Tensor]) -> None:
    reserves, full = Reserves(), NUM_WORKERS * PREFETCH
    next(batches)
    reserves.batch_is_taken(batches)
    _wait_until(lambda: num_ready(batches) == full)
    reserves.step_begins()
    # Without an index to fetch, workers make no further batch.
    batches._sampler_iter = iter(())  # type: ignore[attr-defined]
    for _ in range(4):
        next(batches)
        reserves.batch_is_taken(batches)
    assert num_ready(batches) == full - 4
    assert reserves.num_left() == full - 4
    assert reserves.lost_share() == 1.0
    reserves.step_begins()
    assert reserves.lost_share() == 0.0


def test_a_loader_without_workers_has_none_ready() -> None:
    reserves, batches = Reserves(), _batches()
    for _ in range(2):
        next(batches)
        reserves.batch_is_taken(batches)
    assert reserves.num_ahead == 0
    assert reserves.lost_share() == 0.0
    assert reserves.num_left() == 0


class _Foreign:
    """An iterator of another library."""

    __hash__ = None  # type: ignore[assignment]

    def __eq__(self, other: object) -> bool:
        return True


def test_iterators_of_other_libraries_are_let_through() -> None:
    reserves = Reserves()
    reserves.batch_is_taken(_Foreign())
    assert reserves.num_ahead == 0
    assert num_ready(object()) == 0
