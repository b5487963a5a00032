"""The input of tasks with a dataset: what a profile measures, and the batches of ranks in trials."""

import multiprocessing
import time
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

from autosync.errors import InputError
from autosync.inputs.task_input import TaskBatches, with_input
from autosync.specs.input_settings import InputSettings
from autosync.specs.task import Task
from autosync.testing.simulators import two_layers


class Numbers:
    def __init__(self, count: int = 24) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, number: int) -> int:
        return number


class Counted(Numbers):
    """Counts the examples that all workers have made."""

    def __init__(self) -> None:
        super().__init__(4000)
        self.made = multiprocessing.get_context().Value("q", 0)

    def __getitem__(self, number: int) -> int:
        time.sleep(0.002)
        with self.made.get_lock():
            self.made.value += 1
        return number


class Slow(Numbers):
    def __getitem__(self, number: int) -> int:
        time.sleep(0.002)
        return number


class Broken(Numbers):
    def __getitem__(self, number: int) -> int:
        raise OSError("the disk is gone")


def task_of(dataset: Any) -> Task:
    return Task(
        model=lambda: nn.Linear(1, 1),
        dataset=dataset,
        loss=lambda model, batch: model(batch).mean(),
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1),
        batch_size=4,
    )


def _drawn(settings: InputSettings | None, rank: int, count: int, **more: Any) -> list[list[int]]:
    batches = TaskBatches(task_of(Numbers), settings, rank=rank, num_ranks=2, seed=3, **more)
    try:
        return [batches.draw().tolist() for _ in range(count)]
    finally:
        batches.close()


def test_all_settings_train_on_the_same_examples() -> None:
    usual = [_drawn(None, rank, 6) for rank in (0, 1)]
    assert sorted(number for one in usual for batch in one[:3] for number in batch) == list(range(24))
    # Another epoch has another order.
    assert usual[0][:3] != usual[0][3:]
    for settings in (InputSettings(num_workers=0), InputSettings(num_workers=3, prefetch_factor=1)):
        assert [_drawn(settings, rank, 6) for rank in (0, 1)] == usual


def test_shares_divide_the_same_steps() -> None:
    even, uneven = ([_drawn(None, rank, 3, shares=shares) for rank in (0, 1)] for shares in ((), (1, 7)))
    assert [len(batch) for batch in uneven[0]] == [1, 1, 1]
    for step in range(3):
        assert sorted(even[0][step] + even[1][step]) == sorted(uneven[0][step] + uneven[1][step])


def test_paused_workers_do_nothing() -> None:
    dataset = Counted()
    settings = InputSettings(num_workers=1, prefetch_factor=50)
    batches = TaskBatches(task_of(lambda: dataset), settings, rank=0, num_ranks=1, seed=0)
    try:
        batches.draw()
        batches.pause()
        made = dataset.made.value
        assert made < 200
        time.sleep(0.2)
        assert dataset.made.value == made
        batches.go_on()
        for _ in range(60):
            batches.draw()
        assert dataset.made.value > made
    finally:
        batches.close()


@pytest.mark.parametrize("num_workers", [0, 1])
def test_errors_of_the_dataset_are_the_tasks(num_workers: int) -> None:
    batches = TaskBatches(task_of(Broken), InputSettings(num_workers=num_workers), rank=0, num_ranks=1, seed=0)
    with pytest.raises(InputError, match=r"reading the dataset raised .*OSError: the disk is gone"):
        batches.draw()
    batches.close()


def test_a_dataset_smaller_than_a_step_is_refused() -> None:
    with pytest.raises(InputError, match="has 6 examples"):
        TaskBatches(task_of(lambda: Numbers(6)), None, rank=0, num_ranks=2, seed=0)


def test_a_task_reads_as_it_states() -> None:
    task = replace(task_of(Slow), input={"num_workers": 1})
    batches = TaskBatches(task, None, rank=0, num_ranks=1, seed=0)
    assert batches.num_turns == 1
    batches.close()
    model, found = with_input(two_layers(), task, seconds=0.2)
    assert found.settings.num_workers == 1
    assert model.input is not None
    assert model.input.stated == model.input.usual == InputSettings(num_workers=1)


def test_a_profile_measures_the_dataset() -> None:
    model, found = with_input(two_layers(), task_of(Slow), InputSettings(num_workers=1), seconds=0.2)
    assert model.input is not None
    assert model.input.by_loader
    assert 0.002 <= model.input.worker_seconds < 0.05
    assert model.input.example_bytes == 0
    assert found.settings.num_workers == 1
