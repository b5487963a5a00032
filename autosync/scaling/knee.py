"""The knee of a scaling curve: the number of nodes beyond which a further one adds little throughput.

Between predicted sizes, the logarithm of the throughput is assumed to change linearly with the logarithm of the number
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


def knee_of(samples_per_second: Mapping[int, float], little: float = LITTLE) -> Knee | None:
    """Return the knee of throughputs by numbers of nodes; None for a single size, which has no curve.

    From the knee on, every further node adds less than the share `little` of throughput.
    """
    if len(samples_per_second) < 2:
        return None
    most = max(samples_per_second)
    found, next_gain = None, None
    for number in range(most - 1, min(samples_per_second) - 1, -1):
        gain = gain_of_another(samples_per_second, number)
        if gain >= little:
            break
        found, next_gain = number, gain
    return Knee(
        num_nodes=found,
        most_nodes=most,
        is_between=found is not None and found not in samples_per_second,
        next_gain=next_gain,
    )


def gain_of_another(samples_per_second: Mapping[int, float], num_nodes: int) -> float:
    """Return the share by which one more node raises throughput."""
    before, after = (throughput_at(samples_per_second, number) for number in (num_nodes, num_nodes + 1))
    return after / before - 1


def throughput_at(samples_per_second: Mapping[int, float], num_nodes: int) -> float:
    """Return the throughput of a number of nodes, which lies within the predicted sizes."""
    if num_nodes in samples_per_second:
        return samples_per_second[num_nodes]
    below = max(number for number in samples_per_second if number < num_nodes)
    above = min(number for number in samples_per_second if number > num_nodes)
    share = math.log(num_nodes / below) / math.log(above / below)
    # By node, so that equal throughputs by node are exactly equal in between.
    low, high = (math.log(samples_per_second[number] / number) for number in (below, above))
    return num_nodes * math.exp((1 - share) * low + share * high)
