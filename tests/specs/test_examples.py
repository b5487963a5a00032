"""Batches that are divided by examples: a part that would stay whole beside divided tensors is refused."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

from autosync.errors import TaskError
from autosync.specs.examples import ShareOfBatches, count_divisible
from autosync.specs.task import Task

COUNT = 3
X = torch.zeros(COUNT, 2)


@dataclass
class LabelledBatch:
    x: torch.Tensor
    labels: Any


class NamedBatch(NamedTuple):
    x: torch.Tensor
    names: Any


@pytest.mark.parametrize(
    ("batch", "what"),
    [
        ({"x": X, "names": ["a", "b", "c"]}, "the list batch['names']"),
        ((X, ("a", "b", "c")), "the tuple batch[1]"),
        ({"x": X, "more": {"sizes": [1, 2, 3]}}, "the list batch['more']['sizes']"),
        ([X, [None, None, {}]], "the list batch[1]"),
        (LabelledBatch(X, np.zeros((COUNT, 4))), "the ndarray batch.labels"),
        (NamedBatch(X, ["a", "b", "c"]), "the list batch[1]"),
    ],
)
def test_a_part_with_an_entry_for_each_example_is_refused_by_name(batch: Any, what: str) -> None:
    with pytest.raises(TaskError) as refused:
        count_divisible(batch)
    assert f"cannot be divided: {what} has an entry for each of its 3 examples" in str(refused.value)
    assert "give a tensor, or leave it out of the batch" in str(refused.value)


@pytest.mark.parametrize(
    "batch",
    [
        X,
        [X, X, X],
        {"x": X, "size": (224, 224, 3), "name": "abc", "count": 3, "names": ["a", "b"]},
        {"x": X, "parts": ["mean", X]},
        LabelledBatch(X, np.zeros((2, COUNT))),
        LabelledBatch(X, np.float64(3)),
        (X, [(X, "abc")]),
    ],
)
def test_other_parts_stay_whole(batch: Any) -> None:
    assert count_divisible(batch) == COUNT


def test_shares_of_such_batches_are_refused() -> None:
    task = Task(
        model=lambda: torch.nn.Linear(2, 1),
        batch=lambda _: {"x": X, "names": ["a", "b", "c"]},
        loss=lambda model, batch: model(batch["x"]).mean(),
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1),
        batch_size=COUNT,
    )
    share = ShareOfBatches(task, (1, 5), 1, lambda rank: torch.Generator().manual_seed(rank))
    with pytest.raises(TaskError, match="an entry for each"):
        share.draw()
