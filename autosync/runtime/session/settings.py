"""The settings of a session."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The options that `parallelize` was called with."""

    timeout_seconds: float
    init_sync: bool
    broadcast_buffers: bool
    hand_off: bool
    checks: bool
    batch_size: int | None = None
    trace: Path | None
    find_unused_parameters: bool = False
