"""Reads what a script has written: its losses from a log, and tensors from its checkpoints."""

import csv
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """The losses of a run's steps, and its tensors after the last one (none, if the run was ended before)."""

    losses: tuple[float, ...]
    tensors: Mapping[str, Tensor]


def read(folder: Path, *, losses: str, weights: str | None) -> Written:
    """Read the files of these names in a script's output folder; patterns of names are allowed.

    Raises FileNotFoundError for a file that the script has not written.
    """
    return Written(
        losses=losses_in(found(folder, losses)),
        tensors={} if weights is None else tensors_in(found(folder, weights)),
    )


def found(folder: Path, pattern: str) -> Path:
    """Return the file or folder of a name, the last one if several fit."""
    paths = sorted(folder.glob(pattern))
    if not paths:
        raise FileNotFoundError(f"the script has not written {pattern}")
    return paths[-1]


def losses_in(path: Path) -> tuple[float, ...]:
    """Return the values of `loss` (or `train_loss`) in a log of JSON lines or of comma-separated values.

    A log has several losses in a line if the script trains several models; each counts.
    """
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".csv":
        lines: list[Mapping[str, Any]] = list(csv.DictReader(text.splitlines()))
    else:
        # A script that is ended may leave a torn last line.
        lines = [json.loads(line) for line in text.splitlines() if line.endswith("}")]
    return tuple(
        float(value)
        for line in lines
        for name, value in line.items()
        if (name == "loss" or name.startswith(("train_loss", "loss_"))) and value not in ("", None)
    )


def tensors_in(path: Path) -> dict[str, Tensor]:
    """Return all tensors of a checkpoint, by the path that leads to each."""
    if path.suffix == ".safetensors":
        return dict(load_file(path))
    # The scripts are this suite's own, so their pickles are too.
    return dict(_tensors("", torch.load(path, map_location="cpu", weights_only=False)))


def _tensors(place: str, value: Any) -> Iterator[tuple[str, Tensor]]:
    if isinstance(value, Tensor):
        yield place, value.to_dense() if value.is_sparse else value
    elif isinstance(value, Mapping):
        for name, one in value.items():
            yield from _tensors(f"{place}.{name}" if place else str(name), one)
    elif isinstance(value, list | tuple):
        for number, one in enumerate(value):
            yield from _tensors(f"{place}[{number}]", one)
