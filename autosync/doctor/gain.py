"""The limit of better synchronisation: the step time of stock DDP over the bound of exact strategies.

For a task or a model spec, the whole bound is known (`plan.bound`). For a script, two of its terms are known: the
computation of the slowest rank, and the fewest bytes that must pass each node's link. In both cases the slowest rank's
own work stays in the bound, because no synchronisation makes a slow rank faster.
"""

from __future__ import annotations

from dataclasses import dataclass

from autosync.doctor.evidence import Evidence
from autosync.doctor.timing import Timing, timing_of
from autosync.plan.bound import bound
from autosync.plan.bound_terms import holds, rates_of
from autosync.specs.cluster import ClusterSpec
from autosync.specs.model import ModelSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Gain:
    """The step time of stock DDP, the bound of all exact strategies, and the cause of the bound in words."""

    step_seconds: float
    bound_seconds: float
    because: str

    @property
    def most(self) -> float:
        """The largest speedup over stock DDP that an exact strategy can have, if the bound is known."""
        return max(self.step_seconds / self.bound_seconds, 1.0)

    @property
    def is_known(self) -> bool:
        """Whether the bound is known and holds, as far as this step shows."""
        return self.bound_seconds > 0 and holds(self.bound_seconds, self.step_seconds)


def gain_of_model(evidence: Evidence, model: ModelSpec, cluster: ClusterSpec, *, is_replayed: bool) -> Gain:
    """Return the possible gain for a known model. With `is_replayed`, its compute sleeps for recorded times."""
    timing = timing_of(evidence)
    limit = bound(model, cluster, rates=rates_of(cluster), even_rows=is_replayed)
    seconds, because = limit.seconds, str(limit.largest).partition(": ")[2]
    slowest = _slowest_rank(timing)
    # Ranks that share a machine's processors disturb each other, and another strategy may reduce that.
    if is_replayed or not cluster.is_one_machine:
        seconds, because = max((seconds, because), (slowest, "the slowest rank's own work"))
    return Gain(step_seconds=timing.step_seconds, bound_seconds=seconds, because=because)


def gain_of_script(evidence: Evidence, cluster: ClusterSpec) -> Gain:
    """Return the possible gain for a script, from the notes of its ranks."""
    timing = timing_of(evidence)
    slowest = _slowest_rank(timing), "the slowest rank's own work"
    wires = _least_seconds(evidence, cluster), "what must pass the slowest link"
    seconds, because = max(slowest, wires)
    return Gain(step_seconds=timing.step_seconds, bound_seconds=seconds, because=because)


def _slowest_rank(timing: Timing) -> float:
    """Return the slowest rank's own work in its fastest step, which no strategy can avoid."""
    return max(min(one.input + one.forward + one.backward for one in steps) for steps in timing.parts)


def _least_seconds(evidence: Evidence, cluster: ClusterSpec) -> float:
    """Return the time that the fewest possible bytes take on the slowest link of a node, out of it or into it."""
    workers = [node for node in cluster.nodes if node.role == "worker"]
    if len(workers) < 2:
        return 0.0
    accumulates = any(len(step.passes) > 1 for step in evidence.ranks[0].steps)

    def least(num_ranks: int) -> int:
        # Factors of several passes or several ranks cannot be added, so all of them would travel.
        return sum(
            one.num_bytes if accumulates and one.least_bytes else min(one.num_bytes, num_ranks * one.least_bytes)
            for one in evidence.ranks[0].variables
        )

    known = rates_of(cluster).nodes
    seconds = []
    for node in workers:
        rate_out, rate_in = known.get(node.name, (node.bandwidth_out, node.bandwidth_in))
        others = cluster.num_workers - node.devices
        seconds.append(max(least(node.devices) / rate_out, least(others) / rate_in))
    return max(seconds)
