"""What a trial's ranks did for their input, in a mean step."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from autosync.documents import STRICT

PARTS = ("wait_seconds", "copy_seconds", "read_seconds", "decode_seconds", "collate_seconds")


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredInput:
    """The input of a mean step, by rank.

    A rank waited `wait_seconds` for its batches, and copied them to its device in `copy_seconds`. With `in_step`, these
    waits are known to be a part of the step's time, as in a script. If they came from
    `autosync.loader`, its workers read, decoded and collated for the other times, and `request_rates` has for each
    serving host the bytes a second of one request, over all ranks. Times of workers are not waits: they work ahead.
    """

    __pydantic_config__ = STRICT

    wait_seconds: tuple[float, ...]
    copy_seconds: tuple[float, ...] = ()
    read_seconds: tuple[float, ...] = ()
    decode_seconds: tuple[float, ...] = ()
    collate_seconds: tuple[float, ...] = ()
    request_rates: Mapping[str, float] = field(default_factory=dict)
    in_step: bool = False

    def __post_init__(self) -> None:
        for name in PARTS:
            seconds = getattr(self, name)
            if seconds and len(seconds) != len(self.wait_seconds):
                raise ValueError(f"{name} of {len(seconds)} ranks, wait_seconds of {len(self.wait_seconds)} (the same)")
            if not all(math.isfinite(one) and one >= 0 for one in seconds):
                raise ValueError(f"{name} {list(seconds)} cannot be (finite, 0 or more)")
        if not all(math.isfinite(rate) and rate > 0 for rate in self.request_rates.values()):
            raise ValueError(f"request_rates {dict(self.request_rates)} cannot be (finite, above 0)")
