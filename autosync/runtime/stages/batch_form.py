"""The microbatches of a global batch, and the form of a batch: what must be the same in every step."""

from __future__ import annotations

from typing import Any

import torch

from autosync.errors import OperationError
from autosync.specs.examples import examples_of, num_examples
from autosync.specs.task_run import map_tensors


def microbatches_of(batch: Any, count: int, size: int) -> list[Any]:
    """Return the microbatches of a global batch, each with `size` examples."""
    found = num_examples(batch)
    if found != count * size:
        raise OperationError(
            f"a batch of {found} examples; a step trains on the global batch of {count * size} (the task's batch_size "
            "times the number of workers), and each rank has all of it"
        )
    return [examples_of(batch, place * size, (place + 1) * size) for place in range(count)]


def form_of(batch: Any) -> str:
    """Return in words all of a batch but the values of its tensors."""
    return repr(map_tensors(batch, _form_of_tensor))


def _form_of_tensor(tensor: torch.Tensor) -> Any:
    return f"{tensor.dtype} {list(tensor.shape)}".removeprefix("torch.")
