"""The examples of a task's batches: counts them, cuts batches into examples, and joins them again.

A batch is divisible if it has tensors, and the first axis of every tensor counts the examples. Shares of the global
batch need such batches. The global batch of a step is what the ranks would draw with even shares, one batch behind the
other; a rank draws the batches that its share overlaps and keeps its examples. So every division of the batch trains on
the same examples.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any

from autosync.errors import Problem, TaskError
from autosync.specs.task import Task
from autosync.specs.task_run import draw_batch, map_tensors

if TYPE_CHECKING:
    import torch


def num_examples(batch: Any) -> int:
    """Return the number of examples in a divisible batch; raise TaskError if it is none."""
    tensors = _tensors(batch)
    if not tensors:
        raise _indivisible("it has no tensors")
    if any(not tensor.ndim for tensor in tensors):
        raise _indivisible("it has a tensor without axes")
    counts = sorted({len(tensor) for tensor in tensors})
    if len(counts) > 1:
        raise _indivisible(f"the first axes of its tensors have {counts[0]} to {counts[-1]} entries")
    return counts[0]


def examples_of(batch: Any, begin: int, end: int) -> Any:
    """Return the examples `begin` to `end` of a divisible batch, as a batch."""
    return map_tensors(batch, lambda tensor: tensor[begin:end])


def join_batches(batches: Sequence[Any]) -> Any:
    """Return one batch with the examples of several divisible batches of one structure."""
    import torch

    if len(batches) == 1:
        return batches[0]
    columns = list(zip(*map(_tensors, batches), strict=True))
    joined = iter([torch.cat(column) for column in columns])
    return map_tensors(batches[0], lambda _: next(joined))


class ShareOfBatches:
    """Draws one rank's share of each global batch.

    `shares` are the examples of each rank, and `generator_of` makes the generator with which a rank draws its batches
    when shares are even.
    """

    def __init__(
        self, task: Task, shares: Sequence[int], rank: int, generator_of: Callable[[int], torch.Generator]
    ) -> None:
        self._task = task
        cuts = [0, *accumulate(shares)]
        self._begin, self._end = cuts[rank], cuts[rank + 1]
        size = task.batch_size
        blocks = pairwise(range(0, cuts[-1] + 1, size))
        self._blocks = [(start, stop) for start, stop in blocks if start < self._end and stop > self._begin]
        self._generators = [generator_of(start // size) for start, _ in self._blocks]

    def draw(self) -> Any:
        """Draw this rank's examples of the next global batch."""
        pieces = []
        for (start, stop), generator in zip(self._blocks, self._generators, strict=True):
            batch = draw_batch(self._task, generator)
            count = num_examples(batch)
            if count != stop - start:
                raise _indivisible(f"it has {count} examples, and batch_size says {stop - start}")
            first, last = max(self._begin, start) - start, min(self._end, stop) - start
            pieces.append(batch if (first, last) == (0, count) else examples_of(batch, first, last))
        return join_batches(pieces)


def _tensors(batch: Any) -> list[torch.Tensor]:
    """Return all tensors of a batch, in a fixed order."""
    found: list[torch.Tensor] = []

    def note(tensor: torch.Tensor) -> torch.Tensor:
        found.append(tensor)
        return tensor

    map_tensors(batch, note)
    return found


def _indivisible(reason: str) -> TaskError:
    rule = "with shares, the first axis of every tensor of a batch counts its batch_size examples"
    return TaskError([Problem(what=f"the batch cannot be divided: {reason}", rule=rule, path=("batch",))])
