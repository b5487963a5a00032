"""The table of what each communication backend can do; all rules of legality about backends read it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Backend:
    """The abilities of a communication backend.

    `own_rounds`: our engine can run a topology as its own point-to-point rounds (this needs tags, because the rounds of
    several transfers mix). `overtakes`: a later transfer can overtake an earlier one. `serves_without_device`: nodes
    without a device can take part.
    """

    name: str
    own_rounds: bool
    overtakes: bool
    serves_without_device: bool
    max_lanes: int


BACKENDS: Mapping[str, Backend] = {
    "gloo": Backend(name="gloo", own_rounds=True, overtakes=True, serves_without_device=True, max_lanes=64),
    "nccl": Backend(name="nccl", own_rounds=False, overtakes=False, serves_without_device=False, max_lanes=8),
}
