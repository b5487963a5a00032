"""The examples of a task's batches: counts them, cuts batches into examples, and joins them again.

A batch is divisible if it has tensors, and the first axis of every tensor counts the examples. Nothing else in it is
divided, so it must not have a list with an entry for each example. Shares of the global batch need such batches. The
global batch of a step is what the ranks would draw with even shares, one batch behind the other; a rank draws the
batches that its share overlaps and keeps its examples. So every division of the batch trains on the same examples.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any

from autosync.errors import Problem, TaskError
from autosync.specs.task import Task
from autosync.specs.task_run import draw_batch, map_tensors

if TYPE_CHECKING:
    import torch


def count_divisible(batch: Any) -> int:
    """Return the number of examples in a whole batch; raise TaskError if a part of it would not be divided."""
    count = num_examples(batch)
    for what in _entries(batch, count, ""):
        raise _indivisible(
            f"{what} has an entry for each of its {count} examples, and only tensors are divided (give a tensor, or "
            "leave it out of the batch)"
        )
    return count


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
            count = count_divisible(batch)
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


def _entries(part: Any, count: int, place: str) -> Iterator[str]:
    """Yield in words the parts of a batch besides tensors that have as many entries as it has examples."""
    if _has_entries(part, count):
        yield f"the {type(part).__name__} batch{place}"
        return
    for name, one in _parts(part):
        yield from _entries(one, count, f"{place}{name}")


def _has_entries(part: Any, count: int) -> bool:
    import torch

    if isinstance(part, list | tuple):
        # Numbers in a tuple are mostly a size, as that of an image.
        is_size = isinstance(part, tuple) and all(isinstance(one, int | float) for one in part)
        return len(part) == count and not is_size and not any(_tensors(one) for one in part)
    if isinstance(part, torch.Tensor | Mapping) or dataclasses.is_dataclass(part):
        return False
    shape = getattr(part, "shape", None)
    return isinstance(shape, tuple) and bool(shape) and shape[0] == count


def _parts(part: Any) -> Iterator[tuple[str, Any]]:
    """Yield the parts of a part of a batch, with what comes after its own name to name them."""
    if isinstance(part, Mapping):
        yield from ((f"[{key!r}]", one) for key, one in part.items())
    elif isinstance(part, list | tuple):
        yield from ((f"[{number}]", one) for number, one in enumerate(part))
    elif dataclasses.is_dataclass(part) and not isinstance(part, type):
        yield from ((f".{field.name}", getattr(part, field.name)) for field in dataclasses.fields(part))


def _indivisible(reason: str) -> TaskError:
    rule = "with shares, the first axis of every tensor of a batch counts its batch_size examples"
    return TaskError([Problem(what=f"the batch cannot be divided: {reason}", rule=rule, path=("batch",))])
