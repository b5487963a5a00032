"""The microbatches of a global batch, and the form of a batch: what must be the same in every step."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

import torch

from autosync.errors import OperationError
from autosync.specs.examples import count_divisible, examples_of


def microbatches_of(batch: Any, count: int, size: int) -> list[Any]:
    """Return the microbatches of a global batch, each with `size` examples."""
    found = count_divisible(batch)
    if found != count * size:
        raise OperationError(
            f"a batch of {found} examples; a step trains on the global batch of {count * size} (the task's batch_size "
            "times the number of workers), and each rank has all of it"
        )
    return [examples_of(batch, place * size, (place + 1) * size) for place in range(count)]


def form_of(batch: Any) -> str:
    """Return in words all of a batch but the values of its tensors."""
    # No object of the batch's classes is made: it would have words where its class expects tensors.
    if isinstance(batch, torch.Tensor):
        return repr(f"{batch.dtype} {list(batch.shape)}".removeprefix("torch."))
    kind = type(batch).__name__
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return f"{kind}({_named(zip(batch._fields, batch, strict=True))})"
    if isinstance(batch, list | tuple):
        return f"{'' if type(batch) is list else kind}[{', '.join(map(form_of, batch))}]"
    if isinstance(batch, Mapping):
        entries = ", ".join(f"{key!r}: {form_of(batch[key])}" for key in batch)
        return f"{'' if type(batch) is dict else kind}{{{entries}}}"
    if dataclasses.is_dataclass(batch) and not isinstance(batch, type):
        return f"{kind}({_named((one.name, getattr(batch, one.name, None)) for one in dataclasses.fields(batch))})"
    return repr(batch)


def _named(parts: Iterable[tuple[str, Any]]) -> str:
    return ", ".join(f"{name}={form_of(part)}" for name, part in parts)


_NUM_BEFORE, _NUM_SHOWN = 40, 120
"""The characters of a form that errors show before the first difference, and in all."""


def refuse_other_form(found: str, wanted: str) -> None:
    """Refuse a form that differs from that of the first batch; the error shows where it does."""
    if found == wanted:
        return
    pairs = enumerate(zip(found, wanted, strict=False))
    first = next((place for place, (one, other) in pairs if one != other), min(len(found), len(wanted)))
    begin = max(0, first - _NUM_BEFORE)
    now, then = (_excerpt(form, begin) for form in (found, wanted))
    raise OperationError(
        f"a batch of another form: {now}, and the first one had {then} (with stages, all batches have one form: the "
        "shapes and types of tensors, and all that is no tensor)"
    )


def _excerpt(form: str, begin: int) -> str:
    end = begin + _NUM_SHOWN
    return f"{'…' if begin else ''}{form[begin:end]}{'…' if end < len(form) else ''}"
