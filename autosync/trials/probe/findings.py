"""Makes warnings about a cluster from its calibration. Pure functions."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from autosync.specs.calibration import Calibration, Estimate, NodeCalibration
from autosync.specs.cluster import ClusterSpec, Node
from autosync.trials.probe.rack_search import RackSearch
from autosync.trials.probe.racks import sentence
from autosync.trials.probe.reach import CLAIM_KEPT, node_reach, rack_reach
from autosync.trials.probe.request import RankAnswer
from autosync.units import format_rate, format_time

CLAIM_EXCEEDED = 1.25
UNLIKE = 1.15
"""A node is slower than nodes that are alike if it differs from them by at least this factor."""
IMBALANCE = 1.15
NOISY = 0.05
BUSY = 0.6
DUPLEX_KEPT = 0.75
FASTER_INTERFACE = 1.5

FindingKind = Literal[
    "slow_link",
    "fast_link",
    "half_duplex",
    "shared_link",
    "unclear_links",
    "slow_node",
    "interface",
    "imbalance",
    "noisy",
    "busy",
    "backend",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One warning: its kind, its subject (a node, a rack, or empty), and its message."""

    kind: FindingKind
    subject: str
    message: str

    def __str__(self) -> str:
        return f"{self.subject}: {self.message}" if self.subject else self.message


def find(cluster: ClusterSpec, calibration: Calibration, answers: Sequence[RankAnswer]) -> tuple[Finding, ...]:
    """Return all warnings about a cluster. `answers` are the answers of the ranks, with facts about their systems."""
    of_links = list(links(cluster, calibration))
    slow = {finding.subject for finding in of_links if finding.kind == "slow_link"}
    return (
        *of_links,
        # A node that is slower than its file claims gets no second warning that it is slower than the others.
        *(finding for finding in unlike_nodes(cluster, calibration) if finding.subject not in slow),
        *interfaces(cluster, calibration, answers),
        *imbalance(cluster, calibration),
        *noise(cluster, calibration),
    )


def links(cluster: ClusterSpec, calibration: Calibration) -> Iterator[Finding]:
    """Yield warnings about links that differ from the file, or that cannot be full in both directions at once."""
    doubts = "; with two nodes it may as well be the other end" if len(cluster.nodes) == 2 else ""
    doubts += _doubt(calibration)
    for measured in calibration.nodes:
        index = cluster.node_index(measured.name)
        node = cluster.nodes[index]
        out, into = (node_reach(cluster, index, out=way) for way in (True, False))
        yield from _claim(node.name, "out", measured.rate_out, node.bandwidth_out, allowed=out, doubts=doubts)
        yield from _claim(node.name, "in", measured.rate_in, node.bandwidth_in, allowed=into, doubts=doubts)
        if node.intra_bandwidth is not None:
            yield from _claim(node.name, "within", measured.rate_within, node.intra_bandwidth)
        yield from _duplex(measured)
    positions = {rack.name: position for position, rack in enumerate(cluster.racks)}
    for rack in calibration.racks:
        claimed = cluster.racks[positions[rack.name]]
        out, into = (rack_reach(cluster, calibration, positions[rack.name], out=way) for way in (True, False))
        yield from _claim(rack.name, "out of the rack", rack.rate_out, claimed.uplink_out, allowed=out)
        yield from _claim(rack.name, "into the rack", rack.rate_in, claimed.uplink_in, allowed=into)


def _claim(
    subject: str,
    direction: str,
    measured: Estimate | None,
    claimed: float,
    *,
    allowed: float = math.inf,
    doubts: str = "",
) -> Iterator[Finding]:
    """Yield a warning if a link differs from the file's rate. The links at its ends allow the rate `allowed`."""
    if measured is None:
        return
    expected = min(claimed, allowed)
    compared = f"{format_rate(measured.value)} {direction}, where the file says {format_rate(claimed)}"
    if measured.high < CLAIM_KEPT * expected:
        if allowed < claimed:
            compared += f" and the links at its ends allow {format_rate(allowed)}"
        message = f"the link is slower than claimed: {compared} ({measured.value / expected:.0%}){doubts}"
        yield Finding(kind="slow_link", subject=subject, message=message)
    elif measured.low > CLAIM_EXCEEDED * claimed:
        yield Finding(kind="fast_link", subject=subject, message=f"the link is faster than claimed: {compared}")


def _duplex(node: NodeCalibration) -> Iterator[Finding]:
    for direction, alone, both in (
        ("out", node.rate_out, node.rate_out_both),
        ("in", node.rate_in, node.rate_in_both),
    ):
        if alone is not None and both is not None and both.high < DUPLEX_KEPT * alone.low:
            what = f"{format_rate(both.value)} {direction} while both directions are full"
            yield Finding(
                kind="half_duplex", subject=node.name, message=f"{what}, {format_rate(alone.value)} when alone"
            )


def shared_links(cluster: ClusterSpec, search: RackSearch) -> Iterator[Finding]:
    """Yield warnings about links that nodes share although the file states no rack, and about a search in doubt."""
    for uplink in search.uplinks:
        yield Finding(kind="shared_link", subject="", message=sentence(cluster, uplink, search))
    if search.doubt is not None:
        message = f"whether nodes share links{' besides' if search.uplinks else ''} is unknown: {search.doubt}"
        yield Finding(kind="unclear_links", subject="", message=message)


def unlike_nodes(cluster: ClusterSpec, calibration: Calibration) -> Iterator[Finding]:
    """Yield warnings about nodes that are slower than others that the file declares alike or gives the same rates."""
    for names in _classes(cluster):
        nodes = [node for node in calibration.nodes if node.name in names]
        for what, read, text in _FIGURES:
            for position, node in enumerate(nodes):
                mine = read(node)
                others = [read(other) for other in nodes[:position] + nodes[position + 1 :]]
                known = [other for other in others if other is not None]
                if mine is not None and len(known) >= 2 and _is_worse(mine, known, is_rate=text is format_rate):
                    typical = float(np.median([other.value for other in known]))
                    message = f"slower than those alike: {what} {text(mine.value)}, theirs {text(typical)}"
                    yield Finding(kind="slow_node", subject=node.name, message=message + _doubt(calibration))


_FIGURES: tuple[tuple[str, Callable[[NodeCalibration], Estimate | None], Callable[[float], str]], ...] = (
    ("out", lambda node: node.rate_out, format_rate),
    ("in", lambda node: node.rate_in, format_rate),
    ("a message's processor time", lambda node: node.message_cpu_seconds, format_time),
)


def _classes(cluster: ClusterSpec) -> list[set[str]]:
    """Return the declared classes, and classes of the remaining nodes for which the file gives the same figures."""
    declared = [set(names) for names in cluster.alike]
    taken = set().union(*declared)
    same: dict[object, set[str]] = {}
    for node in cluster.nodes:
        if node.name not in taken:
            same.setdefault(_claims(node), set()).add(node.name)
    return [*declared, *same.values()]


def _claims(node: Node) -> object:
    return (node.role, node.devices, node.bandwidth_out, node.bandwidth_in, node.rack)


def _is_worse(mine: Estimate, others: Sequence[Estimate], *, is_rate: bool) -> bool:
    """Return whether a figure is UNLIKE times worse than the others' median, and its interval lies beyond theirs."""
    typical = float(np.median([other.value for other in others]))
    if is_rate:
        return mine.value * UNLIKE < typical and mine.high < float(np.median([other.low for other in others]))
    return mine.value > UNLIKE * typical and mine.low > float(np.median([other.high for other in others]))


def interfaces(cluster: ClusterSpec, calibration: Calibration, answers: Sequence[RankAnswer]) -> Iterator[Finding]:
    """Yield warnings about the wrong interface: not the chosen one, loopback between machines, or a slower one."""
    leaders = dict(zip((node.name for node in calibration.nodes), _leaders(calibration), strict=True))
    for node in calibration.nodes:
        answer = answers[leaders[node.name]]
        used = node.interface
        if used is None:
            continue
        chosen = answer.chosen_interface
        if chosen is not None and used not in chosen.split(","):
            message = f"its traffic goes over {used}, although GLOO_SOCKET_IFNAME is {chosen}"
            yield Finding(kind="interface", subject=node.name, message=message)
        elif used == "lo" and not cluster.shares_loopback:
            message = "its traffic with other nodes stays on the loopback interface"
            yield Finding(kind="interface", subject=node.name, message=message)
        speeds = {one.name: one.bytes_per_second for one in answer.interfaces if one.bytes_per_second is not None}
        fastest = max(speeds, key=lambda name: speeds[name], default=used)
        if used in speeds and speeds[fastest] > FASTER_INTERFACE * speeds[used]:
            message = (
                f"its traffic goes over {used} ({format_rate(speeds[used])}); "
                f"{fastest} has {format_rate(speeds[fastest])}: name it in GLOO_SOCKET_IFNAME"
            )
            yield Finding(kind="interface", subject=node.name, message=message)


def _leaders(calibration: Calibration) -> list[int]:
    """Return the first rank of each node, in the cluster with a rank on every node."""
    leaders, rank = [], 0
    for node in calibration.nodes:
        leaders.append(rank)
        rank += max(1, len(node.compute_seconds))
    return leaders


def imbalance(cluster: ClusterSpec, calibration: Calibration) -> Iterator[Finding]:
    """Yield warnings about workers with ranks that compute slower than most. Steps wait for no others."""
    workers = {node.name for node in cluster.nodes if node.role == "worker"}
    ranks = [(node.name, rank) for node in calibration.nodes if node.name in workers for rank in node.compute_seconds]
    if len(ranks) < 2:
        return
    typical = float(np.median([rank.value for _, rank in ranks]))
    for name in dict.fromkeys(name for name, _ in ranks):
        slow = [rank for owner, rank in ranks if owner == name and rank.low > IMBALANCE * typical]
        if slow:
            factor = max(rank.value for rank in slow) / typical
            message = f"computes {factor:.2f} times as long as most: every step waits for it{_doubt(calibration)}"
            yield Finding(kind="imbalance", subject=name, message=message)


def noise(cluster: ClusterSpec, calibration: Calibration) -> Iterator[Finding]:
    """Yield warnings about steps that vary, busy processors, and a backend other than the measured one."""
    if calibration.step_variation is not None and calibration.step_variation > NOISY:
        message = f"equal steps vary by {calibration.step_variation:.1%}: something else runs, or the links are shared"
        yield Finding(kind="noisy", subject="", message=message)
    if _is_busy(calibration):
        message = f"the processors were busy for {calibration.cpu_share:.0%} of the time: the hosts share them"
        yield Finding(kind="busy", subject="", message=message)
    if cluster.backend != calibration.backend:
        message = f"measured with {calibration.backend}; {cluster.backend}, which the file names, may do better"
        yield Finding(kind="backend", subject="", message=message)


def _is_busy(calibration: Calibration) -> bool:
    return calibration.emulated and calibration.cpu_share > BUSY


def _doubt(calibration: Calibration) -> str:
    """Return words that doubt a warning if the processors of a testbed were busy: that slows all its hosts at times."""
    return "; or these processors are too busy to tell" if _is_busy(calibration) else ""
