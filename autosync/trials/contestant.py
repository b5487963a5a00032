"""A contestant of a comparison: one way to train a model, with our engine or with torch's DistributedDataParallel."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from autosync.strategy.bundle import Bundle
from autosync.strategy.emit.settings import DdpSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class Contestant:
    """A bundle's strategy under our engine (the bundle or its file), or torch's DDP if `bundle` is None.

    `ddp` has the settings of DDP, by default as it ships. It then refuses models that leave parameters without a
    gradient; `find_unused_parameters` allows them, and with a bundle it is passed to `parallelize`, which otherwise
    does as the bundle's profile says. With `trace` every worker writes a timeline (see `parallelize`). Then our engine
    also runs strategies that torch's reducer would run otherwise, because the reducer records no transfers, and DDP
    sends its messages by a communication hook, which records them. With `plain_sgd` the task's optimizer is replaced by
    one that subtracts the averaged gradients from the parameters, so the change of a step is the gradient that arrived.
    """

    name: str
    bundle: Bundle | Path | str | None = None
    ddp: DdpSettings = field(default_factory=DdpSettings)
    trace: Path | None = None
    plain_sgd: bool = False
