"""The table of everything that `fuzz_files.py` tries: the kinds of input, their makers, and their weights."""

from __future__ import annotations

import importlib
import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path


class Failure(Exception):  # noqa: N818 - it is a verdict on a reader
    """A reader did something that it must not do."""


Attempt = Callable[[], str]
"""Gives an input to its reader and returns the outcome as a word. Raises `Failure` if the outcome is not allowed."""
Maker = Callable[[random.Random, Path], Attempt]
"""Makes an input in an empty folder."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """One kind of input.

    `place` is a function `module:name`, which takes the kind's name and a folder for other files that it needs, and
    returns a `Maker`. Inputs are distributed by `weight`. Only with `may_start` may readers start programs, and only
    with `may_run` may they run a file that the input names.
    """

    name: str
    place: str
    weight: int
    may_start: bool = False
    may_run: bool = False
    warm_up: int = 12

    def open(self, folder: Path) -> Maker:
        """Return the maker of inputs."""
        module, _, function = self.place.partition(":")
        maker: Maker = getattr(importlib.import_module(module), function)(self.name, folder)
        return maker


KINDS = {
    kind.name: kind
    for kind in (
        Kind(name="cluster", place="benchmarks.fuzz.documents:maker", weight=6),
        Kind(name="resource_spec", place="benchmarks.fuzz.documents:maker", weight=4),
        Kind(name="model", place="benchmarks.fuzz.documents:maker", weight=6),
        Kind(name="strategy", place="benchmarks.fuzz.documents:maker", weight=6),
        Kind(name="bundle", place="benchmarks.fuzz.documents:maker", weight=6),
        Kind(name="task_name", place="benchmarks.fuzz.studies:task_names", weight=3, may_run=True),
        Kind(name="study", place="benchmarks.fuzz.studies:studies", weight=12),
        Kind(name="journal", place="benchmarks.fuzz.studies:journals", weight=12),
        Kind(name="ranker", place="benchmarks.fuzz.learned:maker", weight=10),
        Kind(name="trace", place="benchmarks.fuzz.traces:maker", weight=6),
        Kind(name="checkpoint", place="benchmarks.fuzz.checkpoints:maker", weight=10),
        Kind(name="link", place="benchmarks.fuzz.agents:links", weight=1, may_start=True),
        Kind(name="agent", place="benchmarks.fuzz.agents:agents", weight=2, may_start=True),
        Kind(name="gate", place="benchmarks.fuzz.doors:gates", weight=5),
        Kind(name="channel", place="benchmarks.fuzz.doors:channels", weight=5),
        Kind(name="conversation", place="benchmarks.fuzz.doors:conversations", weight=3, may_start=True),
        Kind(name="evidence", place="benchmarks.fuzz.evidence:maker", weight=3),
        Kind(name="invitation", place="benchmarks.fuzz.servers:maker", weight=4),
        *(
            Kind(name=f"dataset_{form}", place="benchmarks.fuzz.damaged_datasets:maker", weight=2)
            for form in ("parquet", "csv", "jsonl", "packed", "store", "autodist", "names")
        ),
    )
}
