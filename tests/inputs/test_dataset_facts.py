"""Subclasses and wrappers of datasets give their own examples."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from torch.utils.data import DataLoader, Subset

import autosync
from autosync.errors import InputError
from autosync.inputs.tar_shards import TarShards, reads_through_autosync
from autosync.specs.input_settings import InputSettings
from tests.helpers.shards import number_of, write_shards

ALONE = InputSettings(num_workers=0)


@pytest.fixture
def shards(tmp_path: Path) -> list[Path]:
    return write_shards(tmp_path, [3, 5])


def _numbers(dataset: Any) -> list[int]:
    batches = autosync.loader(dataset, ALONE, batch_size=2, shuffle=False)
    return [number for batch in batches for number in batch.tolist()]


class _Negative(TarShards):
    def __getitem__(self, number: int) -> Any:
        return -super().__getitem__(number)


class _NegativeBatches(_Negative):
    def __getitems__(self, numbers: Sequence[int]) -> list[Any]:
        return [-one for one in super().__getitems__(numbers)]


class _Larger(_NegativeBatches):
    def __getitem__(self, number: int) -> Any:
        return 100 + super().__getitem__(number)


def test_a_subclass_with_its_own_examples_gives_them(shards: list[Path]) -> None:
    negative = [-number for number in range(8)]
    dataset = _Negative(shards, decode=number_of)
    assert _numbers(dataset) == negative
    assert [one for batch in DataLoader(dataset, batch_size=2) for one in batch.tolist()] == negative
    assert _numbers(Subset(dataset, range(1, 4))) == [-1, -2, -3]
    assert _numbers(_Larger(shards, decode=number_of)) == [100 + one for one in negative]


def test_a_subclass_with_its_own_batches_gives_them(shards: list[Path]) -> None:
    class _Counting(TarShards):
        num_batches = 0

        def __getitems__(self, numbers: Sequence[int]) -> list[Any]:
            type(self).num_batches += 1
            return super().__getitems__(numbers)

    assert _numbers(_Counting(shards, decode=number_of)) == list(range(8))
    assert _Counting.num_batches == 4


class _FirstFour:
    """Passes all that it has not on to a dataset."""

    def __init__(self, base: Any) -> None:
        self._base = base

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self._base, name)

    def __len__(self) -> int:
        return 4

    def __getitem__(self, number: int) -> int:
        return 10 * int(self._base[number])


def test_a_wrapper_is_not_taken_for_what_it_wraps(shards: list[Path]) -> None:
    dataset = _FirstFour(TarShards(shards, decode=number_of))
    assert callable(dataset.with_settings)
    assert not reads_through_autosync(dataset)
    assert _numbers(dataset) == [0, 10, 20, 30]


def test_shards_that_do_not_add_up_to_the_length_are_refused(shards: list[Path]) -> None:
    class _Shorter(TarShards):
        def __len__(self) -> int:
            return 4

    with pytest.raises(InputError, match="its length is 4, and its shard_sizes add up to 8"):
        _numbers(_Shorter(shards, decode=number_of))
