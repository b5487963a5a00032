"""What the input of a model costs: facts about its dataset and its storage, as a loader measured them."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from autosync.documents import STRICT
from autosync.specs.input_settings import GivenInput, InputSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class InputCost:
    """What a rank needs for one example.

    `example_bytes` come from storage over the node's network interface. `worker_seconds` is the time in which a worker
    makes the example of them: it decodes, transforms and collates. For `cpu_seconds` of it, a processor is busy; all of
    it if that is not known.

    `by_loader`: the model's task has a dataset, so `autosync.loader` reads the examples, in trials too. `stated` are
    the settings under which the task says that it reads them.
    """

    __pydantic_config__ = STRICT

    example_bytes: float = 0.0
    worker_seconds: float = 0.0
    cpu_seconds: float | None = None
    by_loader: bool = False
    stated: GivenInput = None

    def __post_init__(self) -> None:
        values = {"example_bytes": self.example_bytes, "worker_seconds": self.worker_seconds}
        for what, value in (values | {"cpu_seconds": self.cpu_seconds or 0.0}).items():
            if not (math.isfinite(value) and value >= 0):
                raise ValueError(f"{what} {value} cannot be (a finite number of 0 or more)")

    @property
    def usual(self) -> InputSettings | None:
        """The settings of strategies that have none of their own; None if these leave them to the program."""
        return (self.stated or InputSettings()) if self.by_loader else None

    @property
    def processor_share(self) -> float:
        """The share of a worker's time for which a processor is busy."""
        if self.cpu_seconds is None or not self.worker_seconds:
            return 1.0
        return min(self.cpu_seconds / self.worker_seconds, 1.0)

    def dilated(self, factor: float) -> InputCost:
        """Return the cost with work that takes `factor` times as long, and the same bytes."""
        cpu = None if self.cpu_seconds is None else self.cpu_seconds * factor
        return replace(self, worker_seconds=self.worker_seconds * factor, cpu_seconds=cpu)
