"""The dataset of a task, and batches of it where no loader is needed: in profiles, and where stages are tried."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

RULE = "a dataset with __len__ and __getitem__, or a function of no arguments that returns one"


class DatasetBatches:
    """Draws batches of distinct examples from a dataset, in this process. It is the `batch` of a task with a dataset.

    `given` is the dataset, or a function that returns it, which is called once.
    """

    def __init__(self, given: Any, batch_size: int, collate: Callable[[list[Any]], Any] | None) -> None:
        self.given = given
        self.collate = collate
        self._batch_size = batch_size
        self._made: Any = None

    def or_same(self, other: Any) -> DatasetBatches:
        """Return another value if it draws the same batches, for it may have its dataset already; else this one."""
        is_same = isinstance(other, DatasetBatches) and self.identity == other.identity
        return other if is_same else self

    @property
    def identity(self) -> tuple[int, int, int]:
        """What the batches depend on."""
        return id(self.given), self._batch_size, id(self.collate)

    @property
    def dataset(self) -> Any:
        """The dataset itself."""
        if self._made is None:
            is_made = hasattr(self.given, "__getitem__") and not isinstance(self.given, type)
            self._made = self.given if is_made else self.given()
            if not hasattr(self._made, "__len__") or not hasattr(self._made, "__getitem__"):
                raise TypeError(f"dataset() returned a value of type {type(self._made).__name__} (must be {RULE})")
            if len(self._made) < self._batch_size:
                raise ValueError(f"the dataset has {len(self._made)} examples, and a batch {self._batch_size}")
        return self._made

    def __call__(self, generator: torch.Generator) -> Any:
        import torch
        from torch.utils.data import default_collate

        dataset = self.dataset
        numbers = torch.randperm(len(dataset), generator=generator)[: self._batch_size].tolist()
        whole: Any = getattr(dataset, "__getitems__", None)
        examples = list(whole(numbers)) if callable(whole) else [dataset[number] for number in numbers]
        return (self.collate or default_collate)(examples)


def is_dataset(value: Any) -> bool:
    """Return whether a value is a dataset, or may be a function that returns one."""
    return callable(value) or (hasattr(value, "__len__") and hasattr(value, "__getitem__"))
