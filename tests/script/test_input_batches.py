"""A script's sampler under other input settings: the same batches and the same draws, or an error."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, Sampler

from autosync.script.input_door import InputDoor
from autosync.script.input_guard import InputChangesError
from autosync.specs.input_settings import InputSettings

NUM_PASSES = 2


class Examples(Dataset[int]):
    def __init__(self, num_examples: int) -> None:
        self.num_examples = num_examples
        self.scale = 1

    def __len__(self) -> int:
        return self.num_examples

    def __getitem__(self, number: int) -> int:
        return number * self.scale


@pytest.fixture
def under(monkeypatch: pytest.MonkeyPatch) -> Callable[[InputSettings], None]:
    """Gives all loaders these settings from then on."""
    stock = vars(DataLoader)["_get_iterator"]

    def begin(settings: InputSettings) -> None:
        door = InputDoor(settings, is_training=lambda: True, tell=lambda _line: None)
        monkeypatch.setattr(DataLoader, "_get_iterator", door.replacing(stock))

    return begin


def _passes(make: Callable[[], DataLoader[Any]], num_left: int | None, draw: Callable[[Any], object]) -> list[object]:
    """Return the batches of some passes, and what a loop draws after each batch and each pass.

    With `num_left`, a pass is left when so many batches are left, without asking once more.
    """
    found: list[object] = []
    loader = make()
    for _ in range(NUM_PASSES):
        for batch in islice(loader, None if num_left is None else len(loader) - num_left):
            found += [batch.tolist(), draw(loader)]
        found.append(draw(loader))
    return found


def _drawn(loader: Any) -> float:
    return torch.rand(1, generator=loader.generator).item()


SETTINGS = [
    (0, False, InputSettings(num_workers=2, prefetch_factor=3)),
    (1, False, InputSettings(num_workers=2, prefetch_factor=3)),
    (1, True, InputSettings(num_workers=2, prefetch_factor=1)),
    (2, False, InputSettings(num_workers=1, prefetch_factor=1)),
    (1, False, InputSettings(num_workers=0)),
]


@pytest.mark.parametrize(("own", "persistent", "settings"), SETTINGS)
@pytest.mark.parametrize("num_examples", [9, 10, 16])
def test_a_shuffled_loader_with_a_generator_draws_as_before(
    under: Any, own: int, persistent: bool, settings: InputSettings, num_examples: int
) -> None:
    """The sampler of torch draws once more at its end, if it is asked."""

    def make(*, drop_last: bool = False) -> DataLoader[Any]:
        return DataLoader(
            Examples(num_examples),
            batch_size=3,
            shuffle=True,
            drop_last=drop_last,
            generator=torch.Generator().manual_seed(1),
            num_workers=own,
            persistent_workers=persistent,
        )

    def passes() -> list[list[object]]:
        found = [_passes(make, num_left, _drawn) for num_left in (None, 0, 1)]
        return [*found, _passes(lambda: make(drop_last=True), None, _drawn)]

    expected = passes()
    under(settings)
    assert passes() == expected


class Reshuffled(Sampler[int]):
    """Shuffles its numbers for the next pass at the end of each."""

    def __init__(self, *, length: int = 10) -> None:
        self._numbers = list(range(10))
        self._length = length

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[int]:
        yield from self._numbers
        random.shuffle(self._numbers)


@pytest.mark.parametrize(("own", "settings"), [(own, settings) for own, _, settings in SETTINGS])
def test_another_sampler_draws_at_its_end_as_before(under: Any, own: int, settings: InputSettings) -> None:
    def make() -> DataLoader[Any]:
        random.seed(1)
        return DataLoader(Examples(10), batch_size=2, sampler=Reshuffled(), num_workers=own)

    def passes() -> list[list[object]]:
        return [_passes(make, num_left, lambda _loader: random.random()) for num_left in (None, 0, 2)]

    expected = passes()
    under(settings)
    assert passes() == expected


def test_a_sampler_with_more_than_its_length_is_refused(under: Any) -> None:
    under(InputSettings(num_workers=1))
    with pytest.raises(InputChangesError, match="more batches than its length says"):
        list(DataLoader(Examples(10), batch_size=2, sampler=Reshuffled(length=6)))


def test_a_change_of_the_dataset_is_seen_before_the_next_batch(under: Any) -> None:
    dataset = Examples(12)
    # All batches are asked for at once.
    under(InputSettings(num_workers=2, prefetch_factor=8))
    for num_read in (1, 3):
        running = iter(DataLoader(dataset, batch_size=3))
        for _ in range(num_read):
            next(running)
        dataset.scale += 1
        with pytest.raises(InputChangesError, match=r"the script changes its dataset \(scale\) while it reads it"):
            next(running)
        del running


def test_a_change_after_the_last_batch_is_allowed(under: Any) -> None:
    dataset = Examples(12)
    under(InputSettings(num_workers=2, prefetch_factor=8))
    running = iter(DataLoader(dataset, batch_size=3))
    found = [next(running).tolist() for _ in range(4)]
    dataset.scale = 3
    assert list(running) == []
    assert [number for batch in found for number in batch] == list(range(12))
