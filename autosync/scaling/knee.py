"""The knee of a scaling curve: the number of nodes beyond which a further one adds little throughput.

Between predicted sizes, the logarithm of the step time is assumed to change linearly with the logarithm of the number
of nodes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

LITTLE = 0.05
"""The gain in throughput below which a further node does not pay."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Knee:
    """The knee of a curve. `num_nodes` is None if every further node up to `most_nodes` adds more than `LITTLE`.

    `is_between` is true if the number lies between predicted sizes. `next_gain` is the share of throughput that one
    node beyond the knee would add.
    """

    num_nodes: int | None
    most_nodes: int
    is_between: bool = False
    next_gain: float | None = None

    def __str__(self) -> str:
        if self.num_nodes is None:
            return f"up to {self.most_nodes} nodes, each further node brings {LITTLE:.0%} or more"
        about = "about " if self.is_between else ""
        noun = "node" if self.num_nodes == 1 else "nodes"
        if self.next_gain is not None and self.next_gain <= 0:
            return f"beyond {about}{self.num_nodes} {noun} a further node brings nothing"
        return f"beyond {about}{self.num_nodes} {noun} a further node brings under {LITTLE:.0%}"


def knee_of(step_seconds: Mapping[int, float], little: float = LITTLE) -> Knee | None:
    """Return the knee of step times by numbers of nodes; None for a single size, which has no curve.

    From the knee on, every further node adds less than the share `little` of throughput.
    """
    if len(step_seconds) < 2:
        return None
    most = max(step_seconds)
    found, next_gain = None, None
    for number in range(most - 1, min(step_seconds) - 1, -1):
        gain = gain_of_another(step_seconds, number)
        if gain >= little:
            break
        found, next_gain = number, gain
    return Knee(
        num_nodes=found,
        most_nodes=most,
        is_between=found is not None and found not in step_seconds,
        next_gain=next_gain,
    )


def gain_of_another(step_seconds: Mapping[int, float], num_nodes: int) -> float:
    """Return the share by which one more node raises throughput. Each node adds its own batch."""
    before, after = (seconds_at(step_seconds, number) for number in (num_nodes, num_nodes + 1))
    return (num_nodes + 1) / num_nodes * before / after - 1


def seconds_at(step_seconds: Mapping[int, float], num_nodes: int) -> float:
    """Return the step time for a number of nodes, which lies within the predicted sizes."""
    if num_nodes in step_seconds:
        return step_seconds[num_nodes]
    below = max(number for number in step_seconds if number < num_nodes)
    above = min(number for number in step_seconds if number > num_nodes)
    share = math.log(num_nodes / below) / math.log(above / below)
    return math.exp((1 - share) * math.log(step_seconds[below]) + share * math.log(step_seconds[above]))
