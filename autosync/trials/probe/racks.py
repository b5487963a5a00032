"""Turns the shared uplinks that a search found into racks of the cluster, and into sentences."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from autosync.specs.calibration import Calibration, RackCalibration
from autosync.specs.cluster import ClusterSpec, Rack
from autosync.specs.cluster_racks import RackProposal, with_racks
from autosync.trials.probe.loads import AloneRates
from autosync.trials.probe.rack_search import RackSearch, SharedUplink, UplinkRate
from autosync.units import format_rate


def alone_rates(calibration: Calibration) -> AloneRates | None:
    """Return the measured rates of all nodes, or None if one was not measured."""
    out = [node.rate_out.value for node in calibration.nodes if node.rate_out is not None]
    into = [node.rate_in.value for node in calibration.nodes if node.rate_in is not None]
    if not len(out) == len(into) == len(calibration.nodes):
        return None
    return AloneRates(out=tuple(out), into=tuple(into))


def with_found_racks(cluster: ClusterSpec, search: RackSearch) -> ClusterSpec:
    """Return the calibrated cluster with a rack for each uplink of the search.

    A direction that the nodes do not share has the sum of the nodes' rates. If as many nodes stand outside as inside,
    these are a rack too.
    """
    calibration = cluster.calibration
    assert calibration is not None, "the cluster was measured"
    proposals: list[RackProposal] = []
    measured: list[RackCalibration] = []
    for uplink in search.uplinks:
        for side in _sides(uplink, search, len(cluster.nodes)):
            name = f"rack-{len(proposals) + 1}"
            proposals.append(_proposal(cluster, side, name))
            if side.out is not None and side.into is not None:
                measured.append(RackCalibration(name=name, rate_out=side.out.together, rate_in=side.into.together))
    found = with_racks(replace(cluster, calibration=None), proposals)
    return replace(found, calibration=replace(calibration, racks=(*calibration.racks, *measured)))


def _sides(uplink: SharedUplink, search: RackSearch, num_nodes: int) -> list[SharedUplink]:
    if not _others_alike(uplink, search, num_nodes):
        return [uplink]
    others = tuple(node for node in range(num_nodes) if node not in uplink.group)
    return [uplink, replace(uplink, group=others, out=uplink.into, into=uplink.out)]


def _others_alike(uplink: SharedUplink, search: RackSearch, num_nodes: int) -> bool:
    """Return whether nothing tells if the nodes of an uplink share it, or all others."""
    return 2 * len(uplink.group) == num_nodes and len(search.uplinks) == 1


def _proposal(cluster: ClusterSpec, uplink: SharedUplink, name: str) -> RackProposal:
    nodes = [cluster.nodes[position] for position in uplink.group]
    out = sum(node.bandwidth_out for node in nodes) if uplink.out is None else uplink.out.together.value
    into = sum(node.bandwidth_in for node in nodes) if uplink.into is None else uplink.into.together.value
    rack = Rack(name=name, uplink_out=_rounded(out), uplink_in=_rounded(into))
    return RackProposal(rack=rack, members=tuple(node.name for node in nodes))


def _rounded(rate: float) -> float:
    """Round a rate to three digits in bits: no measurement of it is more precise."""
    return float(f"{rate * 8:.3g}") / 8


def sentence(cluster: ClusterSpec, uplink: SharedUplink, search: RackSearch) -> str:
    """Return what was found about an uplink of the search, and how sure it is, in words."""
    names = [cluster.nodes[position].name for position in uplink.group]
    directions = ((uplink.out, "towards the others"), (uplink.into, "from the others"))
    shared = [(rate, where) for rate, where in directions if rate is not None]
    told = f"{_listed(names)} share {' and '.join(_shared(rate, where) for rate, where in shared)}"
    told += "".join(f"; {where} they share nothing" for rate, where in directions if rate is None)
    if _others_alike(uplink, search, len(cluster.nodes)):
        told += "; the others may as well share it, and become a rack too"
    return f"{told}; {_sureness([rate for rate, _ in shared])}"


def _shared(rate: UplinkRate, where: str) -> str:
    value = format_rate(_rounded(rate.together.value))
    return f"{value} {where} (one after another {format_rate(_rounded(rate.in_sum.value))} in sum)"


def _sureness(rates: Sequence[UplinkRate]) -> str:
    agreeing, rounds = sum(rate.num_agreeing for rate in rates), sum(rate.num_rounds for rate in rates)
    return f"{'sure' if agreeing == rounds else 'likely'}: {agreeing} of {rounds} measurements agree"


def _listed(names: Sequence[str]) -> str:
    return " and ".join([", ".join(names[:-1]), names[-1]]) if len(names) > 1 else names[0]
