"""The costs on a cluster: of its profile, with what its file states and what its probe found.

A figure that the cluster file states counts. Otherwise a probe of the cluster replaces the profile's figure, where it
measures one.
"""

from __future__ import annotations

import math
from dataclasses import replace
from statistics import median

from autosync.specs.calibration import Calibration, Curve, Estimate
from autosync.specs.cluster import ClusterSpec
from autosync.specs.cost_profiles import cost_profile, with_figures
from autosync.specs.costs import Costs, ProcessorCosts

EMULATING_PROCESSORS = 2
"""The processors of the machine that emulates a cluster, if no probe counted them: those of the machine on which the
shipped records were measured."""


def usual_costs(cluster: ClusterSpec) -> Costs:
    """Return the default costs of simulators. They do not depend on the machine that simulates."""
    return costs_of(cluster, num_processors=_num_processors(cluster))


def _num_processors(cluster: ClusterSpec) -> int | None:
    """Return how many processors the nodes of an emulated cluster share, by its probe; None if nodes are real."""
    if not cluster.is_emulated:
        return None
    counted = cluster.calibration.num_processors if cluster.calibration is not None else None
    return counted or EMULATING_PROCESSORS


def costs_of(cluster: ClusterSpec, *, num_processors: int | None = None) -> Costs:
    """Return the costs on a cluster, whose ranks share so many processors of one machine (None: they do not)."""
    stated = dict(cluster.costs.figures) if cluster.costs is not None else {}
    ordinary = with_figures(cost_profile(cluster.profile_of_costs).costs, stated)
    calibration = cluster.calibration
    if calibration is None:
        return replace(ordinary, num_processors=num_processors)
    num_processors = num_processors if calibration.emulated else None
    if calibration.backend != cluster.backend:
        # Its messages and rounds were those of another backend. For rates of links see `specs.link_calibration`.
        return replace(ordinary, num_processors=num_processors)
    processor = ordinary.processor.times(_slowness(calibration, ordinary))
    probed = replace(
        ordinary,
        processor=processor,
        round_seconds=_round_seconds(cluster, calibration, ("ring", "halving_doubling")) or ordinary.round_seconds,
        native_round_seconds=_round_seconds(cluster, calibration, ("native",)) or ordinary.native_round_seconds,
        num_processors=num_processors,
        hop_seconds=max(ordinary.hop_seconds, _hop_seconds(calibration, processor)),
    )
    return with_figures(probed, stated)


def _slowness(calibration: Calibration, costs: Costs) -> float:
    """Return how many times as long the processors take as those of the costs' figures, by a probe's small messages."""
    found = [one.message_cpu_seconds.value for one in calibration.nodes if one.message_cpu_seconds is not None]
    usual = costs.probed_message_seconds
    return median(found) / usual if usual and found and median(found) > 0 else 1.0


def _hop_seconds(calibration: Calibration, processor: ProcessorCosts) -> float:
    """Return the travel time of a message between hosts, without the processor time of its ends."""
    found = [node.latency_seconds.value for node in calibration.nodes if node.latency_seconds is not None]
    return median(found) - processor.of_message(native=True) if found else 0.0


def _round_seconds(cluster: ClusterSpec, calibration: Calibration, algorithms: tuple[str, ...]) -> float | None:
    """Return the time of a round.

    The shortest all-reduces have almost no bytes, so their time is that of their rounds.
    """
    found = [
        _without_bytes(cluster, curve) / _num_rounds(curve.algorithm, cluster.num_workers)
        for curve in calibration.curves
        if curve.collective == "all_reduce" and curve.algorithm in algorithms and curve.points
    ]
    return median(found) if found else None


def _without_bytes(cluster: ClusterSpec, curve: Curve) -> float:
    shortest = min(curve.points, key=lambda point: point.num_bytes)
    slowest = min(min(node.bandwidth_out, node.bandwidth_in) for node in cluster.nodes)
    return max(1e-5, shortest.seconds.value - 2 * shortest.num_bytes / slowest)


def _num_rounds(algorithm: str, num_members: int) -> int:
    if algorithm == "halving_doubling":
        return 2 * max(1, (num_members - 1).bit_length())
    return 2 * max(1, num_members - 1)


def flow_limit(cluster: ClusterSpec, node: int, costs: Costs) -> float:
    """Return the most bytes a second of one connection out of a node; infinite if it can fill the link.

    A connection uses one interface. NCCL opens as many rings as there are interfaces, which are simulated as one.
    """
    limit, facts = math.inf if costs.flow_limit is None else costs.flow_limit, cluster.nodes[node]
    if cluster.backend == "nccl":
        return limit * facts.nics
    return limit if facts.nics == 1 else min(limit, facts.bandwidth_out / facts.nics)


def link_rate(claimed: float, measured: Estimate | None, share: float) -> float:
    """Return a link's payload bytes a second: as probed, else this share of the rate in its file."""
    return measured.value if measured is not None and measured.value > 0 else claimed * share
