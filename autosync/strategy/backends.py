"""What each communication backend can do, in one table: legality depends on the backend here and nowhere else."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Backend:
    """`own_rounds`: we may run a topology as point-to-point rounds of our own (needs tags, for rounds of several
    transfers mix). `overtakes`: a transfer that started later may go first. `serves_without_device`: a node without a
    device can take part.
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
