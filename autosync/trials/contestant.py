"""Who contests: one way to train a model, under our engine or under torch's own DistributedDataParallel."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from autosync.errors import InputError
from autosync.strategy.bundle import Bundle


@dataclass(frozen=True, slots=True, kw_only=True)
class Contestant:
    """A bundle's strategy under our engine (the bundle, or its file), or torch's DDP as it ships where there is none.

    `find_unused_parameters` and `bucket_cap_mb` are DDP's options of these names: without the first, DDP refuses
    models that leave parameters out. With `trace` every worker writes a timeline (see `parallelize`); then our engine
    runs what torch's reducer otherwise would, for that tells nothing of its transfers.
    """

    name: str
    bundle: Bundle | Path | str | None = None
    find_unused_parameters: bool = False
    bucket_cap_mb: float | None = None
    trace: Path | None = None

    def __post_init__(self) -> None:
        if self.trace is not None and self.bundle is None:
            raise InputError(
                f"{self.name} cannot be traced", rule="torch's DDP tells nothing of what it does, only our engine does"
            )
