"""Passes that fail: no epoch ends early in silence, and the next pass has workers that live."""

import os
import re
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NoReturn

import pytest
import torch

import autosync
from autosync.errors import OperationError
from autosync.inputs.loader import InputLoader
from autosync.inputs.tar_shards import TarShards
from autosync.specs.input_settings import InputSettings
from tests.helpers.shards import write_shards

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning")

ALL = list(range(12))
TWO_WORKERS = InputSettings(num_workers=2)


def _epoch(batches: InputLoader) -> list[int]:
    return [number for batch in batches for number in batch.tolist()]


def _failure(batches: InputLoader) -> str:
    """Return what a pass that fails says."""
    try:
        _epoch(batches)
    except OperationError as error:
        return str(error)
    pytest.fail("the pass has not failed")


def _stop(_any: object = None) -> NoReturn:
    next(iter(()))
    raise AssertionError


class _Numbers:
    """A dataset whose example 5 may do something."""

    def __init__(self, do: Callable[[], object] = int) -> None:
        self._do = do

    def __len__(self) -> int:
        return len(ALL)

    def __getitem__(self, number: int) -> torch.Tensor:
        if number == 5:
            self._do()
        return torch.tensor(number)


class _Batches(_Numbers):
    def __getitems__(self, numbers: Sequence[int]) -> list[torch.Tensor]:
        return [self[number] for number in numbers]


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize(
    ("dataset", "collate", "who"),
    [
        (_Numbers(_stop), None, "the dataset, asked for example 5,"),
        (_Batches(_stop), None, "the dataset, asked for the examples 4, 5,"),
        (_Numbers(), _stop, "the collate function"),
    ],
)
def test_a_stop_iteration_of_the_users_code_does_not_end_the_epoch(
    dataset: Any, collate: Any, who: str, num_workers: int
) -> None:
    settings = InputSettings(num_workers=num_workers)
    batches = autosync.loader(dataset, settings, batch_size=2, shuffle=False, collate_fn=collate)
    place = r"StopIteration in _stop \(\S+test_loader_failures\.py:\d+"
    assert re.match(rf"{who} raised {place}", _failure(batches))
    assert batches.epoch == 0


def test_a_stop_iteration_of_decode_names_the_sample(tmp_path: Path) -> None:
    shards = TarShards(write_shards(tmp_path, [4]), decode=_stop)
    batches = autosync.loader(shards, TWO_WORKERS, batch_size=2)
    assert re.search(r"StopIteration .* while decoding the sample 'some/00000\d' of .*tar", _failure(batches))


def test_a_stop_iteration_from_elsewhere_does_not_end_the_epoch_either() -> None:
    batches = autosync.loader(_Numbers(), InputSettings(num_workers=1), batch_size=2, worker_init_fn=_stop)
    assert "would end the epoch 6 steps early: Caught StopIteration" in _failure(batches)


class _Once:
    """Does something in the first process that asks, and never again."""

    def __init__(self, mark: Path, do: Callable[[], object]) -> None:
        self._mark = mark
        self._do = do

    def __call__(self) -> None:
        if not self._mark.exists():
            self._mark.touch()
            self._do()


@pytest.mark.parametrize(
    ("do", "words"),
    [(lambda: os.kill(os.getpid(), signal.SIGKILL), "failed: DataLoader worker"), (lambda: time.sleep(4), "timed out")],
)
def test_after_a_failure_of_workers_the_next_pass_has_new_ones(
    tmp_path: Path, do: Callable[[], object], words: str
) -> None:
    dataset = _Numbers(_Once(tmp_path / "done", do))
    batches = autosync.loader(dataset, TWO_WORKERS, batch_size=2, shuffle=False, timeout_seconds=2)
    assert words in _failure(batches)
    assert _epoch(batches) == ALL
    assert _epoch(batches) == ALL


def _begun(batches: InputLoader, fetch: Callable[[], object]) -> Iterator[Any]:
    """A pass that has given one batch, and fetches the next one so."""
    running = iter(batches)
    next(running)
    batches._iterator._next_data = fetch  # type: ignore[union-attr]
    return running


def test_a_connection_that_a_dying_worker_broke_is_its_failure() -> None:
    batches = autosync.loader(_Numbers(), TWO_WORKERS, batch_size=2, shuffle=False)

    def fetch() -> NoReturn:
        os.kill(batches._start.processes[0], signal.SIGKILL)
        raise ConnectionResetError

    with pytest.raises(OperationError, match=r"worker 0 of the input pipeline on .* failed: DataLoader worker"):
        next(_begun(batches, fetch))
    assert _epoch(batches) == ALL


def test_a_connection_that_broke_while_all_workers_live_keeps_its_error() -> None:
    def fetch() -> NoReturn:
        raise EOFError("of something else")

    batches = autosync.loader(_Numbers(), TWO_WORKERS, batch_size=2, shuffle=False)
    with pytest.raises(EOFError, match="of something else"):
        next(_begun(batches, fetch))


def test_workers_that_ended_between_passes_are_replaced() -> None:
    batches = autosync.loader(_Numbers(), TWO_WORKERS, batch_size=2, shuffle=False)
    assert _epoch(batches) == ALL
    # torch raises it wherever the rank is at that time.
    with pytest.raises(RuntimeError, match="is killed by signal"):
        _end_and_wait(batches._start.processes[0])
    assert _epoch(batches) == ALL


def _end_and_wait(process: int) -> None:
    os.kill(process, signal.SIGKILL)
    # Another thread may get the signal, and one long sleep would go on.
    for _ in range(200):
        time.sleep(0.1)


def test_after_an_interrupt_the_next_pass_has_new_workers() -> None:
    def interrupted() -> NoReturn:
        raise KeyboardInterrupt

    batches = autosync.loader(_Numbers(), TWO_WORKERS, batch_size=2, shuffle=False)
    with pytest.raises(KeyboardInterrupt):
        next(_begun(batches, interrupted))
    assert _epoch(batches) == ALL
