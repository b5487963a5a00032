"""What the ranks of a strategy read in a step: bytes from storage, and the work of making examples of them."""

from __future__ import annotations

from dataclasses import dataclass

from autosync.specs.cluster import ClusterSpec
from autosync.specs.input_settings import InputSettings
from autosync.specs.model import ModelSpec
from autosync.strategy.representation import Strategy


@dataclass(frozen=True, slots=True, kw_only=True)
class Reads:
    """What the ranks of a plan read in a step, and how.

    `num_bytes` and `work_seconds` are those of each worker rank's batch; `processor_share` is the share of the work for
    which it needs a processor. `rates` has what storage gives each node.
    """

    settings: InputSettings
    num_bytes: tuple[int, ...]
    work_seconds: tuple[float, ...]
    processor_share: float = 1.0
    example_bytes: float
    rates: tuple[float | None, ...]

    def classes(self) -> list[list[int]]:
        """Return the worker ranks by the size of their batches."""
        found: dict[int, list[int]] = {}
        for rank, size in enumerate(self.num_bytes):
            found.setdefault(size, []).append(rank)
        return list(found.values())


def settings_of(strategy: Strategy, model: ModelSpec) -> InputSettings | None:
    """Return the settings under which a strategy's ranks read; None if the program has its own, which are not known."""
    return strategy.input or (None if model.input is None else model.input.usual)


def reads_of(strategy: Strategy, model: ModelSpec, cluster: ClusterSpec) -> Reads | None:
    """Return what a strategy's ranks read; None if it has no input settings, or if the model's input costs nothing."""
    cost, settings = model.input, settings_of(strategy, model)
    if cost is None or settings is None or not (cost.example_bytes or cost.worker_seconds):
        return None
    shares = strategy.shares or (model.batch_size,) * cluster.num_workers
    examples = [share * model.accumulation_steps for share in shares]
    return Reads(
        settings=settings,
        num_bytes=tuple(round(count * cost.example_bytes) for count in examples),
        work_seconds=tuple(count * cost.worker_seconds for count in examples),
        processor_share=cost.processor_share,
        example_bytes=cost.example_bytes,
        rates=tuple(node.storage for node in cluster.nodes),
    )
