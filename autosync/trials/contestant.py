"""Who contests: one way to train a model, under our engine or under torch's own DistributedDataParallel."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from autosync.errors import InputError
from autosync.strategy.bundle import Bundle
from autosync.strategy.emit.settings import DdpSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class Contestant:
    """A bundle's strategy under our engine (the bundle, or its file), or torch's DDP where there is none.

    `ddp` says how DDP is set up: as it ships unless told otherwise (it refuses models that leave parameters out unless
    `find_unused_parameters` is set). With `trace` every rank writes a timeline (see `parallelize`); then our engine
    runs what torch's reducer otherwise would, for that tells nothing of its transfers. With `plain_sgd` the optimizer
    is not the task's but takes the averaged gradients off the parameters: what a step changes is what arrived.
    """

    name: str
    bundle: Bundle | Path | str | None = None
    ddp: DdpSettings = field(default_factory=DdpSettings)
    trace: Path | None = None
    plain_sgd: bool = False

    def __post_init__(self) -> None:
        if self.trace is not None and self.bundle is None:
            raise InputError(
                f"{self.name} cannot be traced", rule="torch's DDP tells nothing of what it does, only our engine does"
            )
