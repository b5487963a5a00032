"""The input settings of a bundle, on DataLoaders that know nothing of them."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, Sampler, get_worker_info
from torch.utils.data._utils import worker as torch_worker

import autosync
from autosync.script.input_door import InputDoor
from autosync.script.input_guard import InputChangesError
from autosync.specs.input_settings import InputSettings

NUM_EXAMPLES = 12
WORKERS = InputSettings(num_workers=2, prefetch_factor=3, worker_threads=2)


class Numbers(Dataset[Any]):
    """Examples with their number, the worker that made them and its threads; `draw` may draw random numbers."""

    def __init__(self, draw: Callable[[], object] = int) -> None:
        self.draw = draw
        self.note = 0

    def __len__(self) -> int:
        return NUM_EXAMPLES

    def __getitem__(self, number: int) -> tuple[int, int, int]:
        self.draw()
        # Not by get_worker_info, which is refused.
        worker = torch_worker._worker_info
        return number, -1 if worker is None else worker.id, torch.get_num_threads()


@pytest.fixture
def told() -> list[str]:
    return []


@pytest.fixture
def through(monkeypatch: pytest.MonkeyPatch, told: list[str]) -> Callable[..., list[list[int]]]:
    """Reads all batches of a loader through a door with these settings."""

    def read(loader: DataLoader[Any], settings: InputSettings = WORKERS, *, is_training: bool = True) -> list[Any]:
        door = InputDoor(settings, is_training=lambda: is_training, tell=told.append)
        with monkeypatch.context() as patch:
            patch.setattr(DataLoader, "_get_iterator", door.replacing(vars(DataLoader)["_get_iterator"]))
            try:
                return [[part.tolist() for part in batch] for batch in loader]
            except Exception as error:  # noqa: BLE001 - it goes on
                # Its frames hold torch's iterator. If that is garbage in a cycle, Python closes its queues first, and
                # then each worker that waits at one costs 5 seconds.
                raise error.with_traceback(None) from None

    return read


def test_workers_read_the_same_batches(through: Any, told: list[str]) -> None:
    loader = DataLoader(Numbers(), batch_size=3, shuffle=True)
    torch.manual_seed(1)
    expected = [numbers.tolist() for numbers, *_ in loader]
    after = torch.rand(1)
    torch.manual_seed(1)
    found = through(loader)
    assert torch.rand(1) == after
    assert [numbers for numbers, *_ in found] == expected
    assert {worker for _, workers, _ in found for worker in workers} == {0, 1}
    assert {number for *_, threads in found for number in threads} == {2}
    # The loader keeps what the script gave it.
    assert (loader.num_workers, loader.prefetch_factor, loader.worker_init_fn) == (0, None, None)
    assert told == ["input: the script has no workers, its bundle 2 workers, prefetch 3, 2 threads each"]


def test_a_loader_that_has_the_settings_is_left_alone(through: Any, told: list[str]) -> None:
    # Its sampler would be refused if it were asked at other times.
    loader = DataLoader(Numbers(), batch_size=3, sampler=Late(), num_workers=2, prefetch_factor=3)
    assert len(through(loader, InputSettings(num_workers=2, prefetch_factor=3, read_bytes=4096))) == 4
    assert len(through(DataLoader(Numbers(), batch_size=3), InputSettings(num_workers=0, worker_threads=3))) == 4
    assert not told
    assert {threads for *_, parts in through(loader, replace(WORKERS, worker_threads=1)) for threads in parts} == {1}


def test_other_workers_than_the_scripts_read_the_same_batches(through: Any) -> None:
    loader = DataLoader(Numbers(), batch_size=3, num_workers=1, persistent_workers=True)
    for _ in range(2):
        found = through(loader)
        assert [numbers for numbers, *_ in found] == [[0, 1, 2], [3, 4, 5], [6, 7, 8], [9, 10, 11]]
        assert {worker for _, workers, _ in found for worker in workers} == {0, 1}
    alone = DataLoader(Numbers(), batch_size=3, num_workers=1)
    found = through(alone, InputSettings(num_workers=0))
    assert {worker for _, workers, _ in found for worker in workers} == {-1}


_OWN = np.random.default_rng(0)


@pytest.mark.parametrize("settings", [WORKERS, InputSettings(num_workers=0)])
@pytest.mark.parametrize("draw", [torch.rand, random.random, np.random.rand, _OWN.random, random.Random(3).random])
def test_a_dataset_that_draws_random_numbers_is_refused(
    through: Any, draw: Callable[..., object], settings: InputSettings
) -> None:
    dataset = Numbers((lambda: torch.rand(1)) if draw is torch.rand else draw)
    own = 0 if settings.num_workers else 1
    with pytest.raises(InputChangesError, match=r"^the dataset draws random numbers, and these depend on") as caught:
        through(DataLoader(dataset, batch_size=3, num_workers=own), settings)
    assert "Traceback" not in str(caught.value)
    # With as many workers as the script has, each worker's numbers are the same.
    assert through(DataLoader(dataset, batch_size=3, num_workers=2))


class Remembering(Numbers):
    """Keeps something of each example in its own memory."""

    def __init__(self, what: str) -> None:
        super().__init__(getattr(self, what))
        self.kept: dict[int, int] = {}
        self.file: object = None
        self.sums = torch.zeros(1)

    def counts(self) -> None:
        self.note += 1

    def caches(self) -> None:
        self.kept[len(self.kept)] = 1

    def begins_late(self) -> None:
        self.late = getattr(self, "late", 0) + 1

    def adds_up(self) -> None:
        self.sums += 1

    def opens(self) -> None:
        self.file = self.file or object()


@pytest.mark.parametrize(
    ("what", "attribute"), [("counts", "note"), ("caches", "kept"), ("adds_up", "sums"), ("begins_late", "late")]
)
@pytest.mark.parametrize("wrap", [lambda one: one, lambda one: torch.utils.data.Subset(one, range(NUM_EXAMPLES))])
def test_a_dataset_that_remembers_examples_is_refused(
    through: Any, what: str, attribute: str, wrap: Callable[[Any], Any]
) -> None:
    for own, settings in ((0, WORKERS), (1, InputSettings(num_workers=0))):
        loader = DataLoader(wrap(Remembering(what)), batch_size=3, num_workers=own)
        with pytest.raises(
            InputChangesError, match=rf"changes itself while it makes examples \((dataset\.)?{attribute}"
        ):
            through(loader, settings)
    assert through(DataLoader(Remembering(what), batch_size=3, num_workers=2))


def test_a_dataset_may_open_its_file_with_its_first_example(through: Any) -> None:
    assert len(through(DataLoader(Remembering("opens"), batch_size=3))) == 4


@pytest.mark.parametrize(("own", "settings"), [(0, WORKERS), (1, WORKERS), (1, InputSettings(num_workers=0))])
def test_a_dataset_that_asks_for_its_worker_is_refused(through: Any, own: int, settings: InputSettings) -> None:
    dataset = Numbers(get_worker_info)
    with pytest.raises(InputChangesError, match=r"the dataset asks which worker makes an example"):
        through(DataLoader(dataset, batch_size=3, num_workers=own), settings)
    assert through(DataLoader(dataset, batch_size=3, num_workers=2))


def _note_worker(worker: int) -> None:
    info = get_worker_info()
    assert info is not None
    info.dataset.note = worker + 1


def _open_file(_worker: int) -> None:
    info = get_worker_info()
    assert info is not None
    info.dataset.file = object()


def test_a_worker_init_fn_that_gives_each_worker_another_dataset_is_refused(through: Any) -> None:
    loader = DataLoader(Numbers(), batch_size=3, num_workers=1, worker_init_fn=_note_worker)
    with pytest.raises(InputChangesError, match=r"changed for each worker by worker_init_fn \(note\)"):
        through(loader)
    assert through(DataLoader(Numbers(), batch_size=3, num_workers=2, worker_init_fn=_note_worker))
    opened = DataLoader(Remembering("opens"), batch_size=3, num_workers=1, worker_init_fn=_open_file)
    assert through(opened)


class Late(Sampler[int]):
    """Draws each number when it is asked for it."""

    def __iter__(self) -> Iterator[int]:
        for _ in range(NUM_EXAMPLES):
            yield int(torch.randint(NUM_EXAMPLES, ()))


def test_a_sampler_that_draws_late_is_refused(through: Any) -> None:
    with pytest.raises(InputChangesError, match="the sampler draws random numbers between batches"):
        through(DataLoader(Numbers(), batch_size=3, sampler=Late()))


def test_a_dataset_that_the_script_changes_meanwhile_is_refused(
    monkeypatch: pytest.MonkeyPatch, told: list[str]
) -> None:
    dataset = Numbers()
    door = InputDoor(InputSettings(num_workers=1, prefetch_factor=1), is_training=lambda: True, tell=told.append)
    monkeypatch.setattr(DataLoader, "_get_iterator", door.replacing(vars(DataLoader)["_get_iterator"]))
    batches = iter(DataLoader(dataset, batch_size=3))
    next(batches)
    dataset.note = 1000
    with pytest.raises(InputChangesError, match=r"the script changes its dataset \(note\)"):
        list(batches)
    # Between two passes it may: workers begin anew.
    later = DataLoader(dataset, batch_size=3)
    for note in range(2):
        dataset.note = note
        assert len(list(later)) == 4
    assert len(told) == 2, "once for each loader"


@pytest.mark.parametrize(("own", "settings"), [(0, WORKERS), (2, InputSettings(num_workers=0))])
def test_draws_between_the_start_of_a_loop_and_its_first_batch_are_refused(
    monkeypatch: pytest.MonkeyPatch, told: list[str], own: int, settings: InputSettings
) -> None:
    def begun(*, shuffle: bool, generator: torch.Generator | None = None) -> list[Iterator[Any]]:
        one = DataLoader(Numbers(), batch_size=3, num_workers=own, shuffle=shuffle, generator=generator)
        return [iter(one), iter(DataLoader(Numbers(), batch_size=3, num_workers=own, shuffle=shuffle))]

    door = InputDoor(settings, is_training=lambda: True, tell=told.append)
    stock = vars(DataLoader)["_get_iterator"]
    monkeypatch.setattr(DataLoader, "_get_iterator", door.replacing(stock))
    # Two shuffled loaders side by side, as zip reads them.
    pair = begun(shuffle=True)
    with pytest.raises(InputChangesError, match="between the start of a loop and its first batch"):
        next(pair[0])
    # Without draws of the sampler, or with draws from a generator of its own, the order is the same.
    for pair in (begun(shuffle=False), begun(shuffle=True, generator=torch.Generator())):
        assert len(next(pair[0])[0]) == 3
    # One after the other is no such case.
    torch.manual_seed(1)
    found = [next(iter(DataLoader(Numbers(), batch_size=3, num_workers=own, shuffle=True)))[0] for _ in range(2)]
    monkeypatch.setattr(DataLoader, "_get_iterator", stock)
    torch.manual_seed(1)
    for numbers in found:
        expected = next(iter(DataLoader(Numbers(), batch_size=3, num_workers=own, shuffle=True)))[0]
        assert numbers.tolist() == expected.tolist()


class Endless(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(6))


def test_loaders_that_cannot_be_changed_keep_the_scripts_settings(through: Any, told: list[str]) -> None:
    found = [numbers.tolist() for numbers in DataLoader(Endless(), batch_size=3)]
    assert found == [[0, 1, 2], [3, 4, 5]]
    loader = DataLoader(Numbers(), batch_size=3, num_workers=1, in_order=False)
    assert {worker for _, workers, _ in through(loader) for worker in workers} == {0}
    assert told[-1].endswith("keeps the script's, because without in_order the order of batches depends on the workers")
    prepared = DataLoader(Numbers(), batch_size=3, num_workers=1, worker_init_fn=_open_file)
    assert {worker for _, workers, _ in through(prepared, InputSettings(num_workers=0)) for worker in workers} == {0}
    assert told[-1].endswith("keeps the script's, because its worker_init_fn needs workers")


def test_evaluation_and_loaders_of_autosync_keep_their_settings(through: Any, told: list[str]) -> None:
    evaluation = DataLoader(Numbers(), batch_size=3)
    with torch.no_grad():
        assert {worker for _, workers, _ in through(evaluation) for worker in workers} == {-1}
    assert {worker for _, workers, _ in through(evaluation, is_training=False) for worker in workers} == {-1}
    own = autosync.loader(Numbers(), InputSettings(num_workers=0), batch_size=3)
    assert {worker for _, workers, _ in through(own) for worker in workers} == {-1}
    assert not told


def test_a_script_with_a_data_loader_trains_as_under_stock_ddp(ranks: Any, compare: Any) -> None:
    expected = ranks.run("loads", None)
    found = ranks.run("loads", "with_workers")
    assert found.codes == expected.codes == (0, 0), found.logs
    for one, other in zip(found.saved, expected.saved, strict=True):
        compare(one, other, "saved", 1e-12)
    assert "workers {'training': [0, 1], 'held': [-1]}" in found.logs[0]
    assert "autosync: input: the script has no workers, its bundle 2 workers, prefetch 2" in found.logs[0]
    assert "autosync: input" not in found.logs[1]


def test_a_script_whose_dataset_draws_is_refused_before_its_first_step(ranks: Any) -> None:
    found = ranks.run("loads", "with_workers", key="loads-draws", arguments=["draws"])
    assert all(found.codes)
    assert "the dataset draws random numbers" in found.logs[0]
    assert found.saved == (None, None)
