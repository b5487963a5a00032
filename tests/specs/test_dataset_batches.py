"""Tasks with a dataset in place of a function that draws batches."""

import functools
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

from autosync.errors import TaskError
from autosync.specs.dataset_batches import DatasetBatches
from autosync.specs.input_settings import InputSettings
from autosync.specs.task import Task
from autosync.specs.task_run import draw_batch


class Numbers:
    def __init__(self, count: int = 20) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, number: int) -> torch.Tensor:
        return torch.tensor([float(number)])


def task_of(**fields: Any) -> Task:
    return Task(
        **{
            "model": lambda: nn.Linear(1, 1),
            "loss": lambda model, batch: model(batch).mean(),
            "optimizer": lambda parameters: torch.optim.SGD(parameters, lr=0.1),
            "batch_size": 8,
            **fields,
        }
    )


@pytest.mark.parametrize("given", [Numbers(), Numbers, functools.partial(Numbers, 9), list(map(float, range(20)))])
def test_batches_have_distinct_examples(given: Any) -> None:
    batch = draw_batch(task_of(dataset=given), torch.Generator().manual_seed(1))
    assert len(set(batch.flatten().tolist())) == len(batch) == 8


def test_a_dataset_is_made_once_and_its_batches_are_collated() -> None:
    made = []

    def dataset() -> Numbers:
        made.append(Numbers())
        return made[-1]

    task = task_of(dataset=dataset, collate=lambda examples: torch.stack(examples) * 2)
    renamed = replace(task, name="other")
    for one in (task, renamed, task):
        assert set(draw_batch(one, torch.Generator().manual_seed(1)).flatten().tolist()) <= set(range(0, 40, 2))
    assert len(made) == 1
    assert len(draw_batch(replace(task, batch_size=3), torch.Generator())) == 3


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({}, r"batch: is missing \(a task has batch, or dataset in its place\)"),
        ({"dataset": 5}, r"dataset: is 5 \(a dataset with __len__ and __getitem__"),
        ({"dataset": Numbers, "batch": lambda _: None}, r"batch: is given beside dataset"),
        ({"batch": lambda _: None, "collate": list}, r"collate: is given without dataset"),
        ({"dataset": Numbers, "collate": 1}, r"collate: is 1"),
        ({"batch": lambda _: None, "input": {"num_workers": 2}}, r"input: is given without dataset"),
        ({"dataset": Numbers, "input": 8}, r"input: is 8 \(names of input settings with their values"),
        (
            {"dataset": Numbers, "input": {"num_worker": 8}},
            r"'num_worker' is no input setting .*did you mean 'num_workers'",
        ),
        ({"dataset": Numbers, "input": {"num_workers": -1}}, r"input\.num_workers: is -1 \(a whole number from 0"),
    ],
)
def test_wrong_fields_are_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(TaskError, match=message):
        task_of(**fields)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (lambda: 5, r"dataset\(\) returned a value of type int"),
        (Numbers(3), "the dataset has 3 examples, and a batch 8"),
    ],
)
def test_a_wrong_dataset_is_found_when_it_is_made(given: Any, message: str) -> None:
    with pytest.raises(TaskError, match=message):
        draw_batch(task_of(dataset=given), torch.Generator())


def test_same_batches_keep_the_dataset() -> None:
    one = DatasetBatches(Numbers, 8, None)
    again, larger = DatasetBatches(Numbers, 8, None), DatasetBatches(Numbers, 9, None)
    assert again.or_same(one) is one
    assert larger.or_same(one) is larger
    assert one.or_same(None) is one


@pytest.mark.parametrize("given", [{"num_workers": 8}, InputSettings(num_workers=8)])
def test_a_task_states_how_it_reads(given: Any) -> None:
    task = task_of(dataset=Numbers, input=given)
    assert task.stated_input == replace(task, name="other").stated_input == InputSettings(num_workers=8)
    assert task_of(dataset=Numbers).stated_input is None
