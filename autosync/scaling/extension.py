"""Changes a measured cluster to another number of worker nodes, or to other links.

Measured nodes stay as they are. Nothing is known of nodes that do not exist yet, so they are assumed to be like the
measured ones: the medians of their rates, speeds and measurements, the most common numbers of devices and interfaces,
and no new rack. `assumptions` explains this to users.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields, replace
from statistics import median
from typing import Any, TypeVar

from autosync.errors import InputError
from autosync.specs.calibration import Calibration, Estimate, NodeCalibration
from autosync.specs.cluster import ClusterSpec, Node
from autosync.specs.cluster_rules import MAX_NODES
from autosync.strategy.wording import count
from autosync.units import format_rate

T = TypeVar("T")

_RATES = ("rate_out", "rate_in", "rate_out_both", "rate_in_both")


def num_worker_nodes(cluster: ClusterSpec) -> int:
    """Return the number of nodes that train."""
    return len(_workers(cluster))


def extended(cluster: ClusterSpec, num_nodes: int) -> ClusterSpec:
    """Return the cluster with `num_nodes` worker nodes: the first ones of the file, then new ones like them.

    Nodes that only serve stay. If the number does not change, the cluster itself is returned.
    """
    if not 1 <= num_nodes <= MAX_NODES:
        raise InputError(f"{num_nodes} nodes", rule=f"1 to {MAX_NODES} nodes")
    missing = num_nodes - num_worker_nodes(cluster)
    if missing == 0:
        return cluster
    if missing < 0:
        return _shrunk(cluster, num_nodes)
    if cluster.shares_loopback:
        raise InputError(
            f"{num_nodes} nodes of {cluster.name}, which has {num_worker_nodes(cluster)}",
            rule=f"with launcher {cluster.launcher} all nodes are this machine, so further nodes would not add to it",
            hint="predict for a cluster file whose nodes have links of their own",
        )
    return _grown(cluster, missing)


def with_links(cluster: ClusterSpec, rate: float) -> ClusterSpec:
    """Return the cluster with links of another rate.

    If the cluster was probed, each link keeps its probed share of the nominal rate. Latency, the cost of messages,
    transfers within nodes and the uplinks of racks stay as they are.
    """
    nodes = tuple([replace(node, bandwidth_out=rate, bandwidth_in=rate) for node in cluster.nodes])
    if cluster.calibration is None:
        return replace(cluster, nodes=nodes)
    measured = [_at_rate(one, cluster.nodes[cluster.node_index(one.name)], rate) for one in cluster.calibration.nodes]
    calibration = replace(cluster.calibration, nodes=tuple(measured), curves=(), step_seconds=None, step_variation=None)
    return replace(cluster, nodes=nodes, calibration=calibration)


def at_rate_ends(cluster: ClusterSpec) -> tuple[ClusterSpec, ...]:
    """Return the cluster with all probed rates at the low ends of their intervals, and with all at the high ends.

    The result is empty if the cluster was not probed.
    """
    return tuple([_at_ends(cluster, end) for end in ("low", "high")] if cluster.calibration is not None else [])


def assumptions(cluster: ClusterSpec, sizes: Sequence[int], link: float | None) -> list[str]:
    """Return the assumptions of a prediction for these numbers of nodes, one sentence for each."""
    there = num_worker_nodes(cluster)
    found = []
    if max(sizes) > there:
        node = _typical(cluster)
        rank = f"{count(node.devices, 'rank')}, {_link_in_words(node)}"
        rank += f", compute {node.compute:g}" if node.compute != 1.0 else ""
        rack = " and join the racks that there are" if cluster.racks else ""
        source = "the measured nodes" if cluster.calibration is not None else "the nodes of the cluster file"
        found.append(f"New nodes are like the median of {source} ({rank}){rack}.")
    if min(sizes) < there:
        found.append(f"Fewer than {count(there, 'node')} are the first ones of the cluster file.")
    if link is not None:
        kept = ", of which payload gets the share that was probed" if cluster.calibration is not None else ""
        found.append(f"All links have {format_rate(link)}{kept}; messages cost as much time as before.")
    if cluster.is_emulated:
        found.append("All nodes are emulated on one machine and share its processors.")
    return found


def _link_in_words(node: Node) -> str:
    if node.bandwidth_out == node.bandwidth_in:
        return format_rate(node.bandwidth_out)
    return f"{format_rate(node.bandwidth_out)} out, {format_rate(node.bandwidth_in)} in"


def _workers(cluster: ClusterSpec) -> list[Node]:
    return [node for node in cluster.nodes if node.role == "worker"]


def _shrunk(cluster: ClusterSpec, num_nodes: int) -> ClusterSpec:
    kept = {node.name for node in _workers(cluster)[:num_nodes]}
    kept |= {node.name for node in cluster.nodes if node.role == "server"}
    nodes = tuple([node for node in cluster.nodes if node.name in kept])
    homes = {node.rack for node in nodes}
    homes |= {rack.rack for rack in cluster.racks if rack.name in homes}
    racks = tuple([rack for rack in cluster.racks if rack.name in homes])
    alike = [tuple(name for name in names if name in kept) for names in cluster.alike]
    calibration = cluster.calibration
    if calibration is not None:
        calibration = _without_whole(
            replace(
                calibration,
                nodes=tuple([node for node in calibration.nodes if node.name in kept]),
                racks=tuple([rack for rack in calibration.racks if any(rack.name == one.name for one in racks)]),
            )
        )
    return replace(
        cluster, nodes=nodes, racks=racks, alike=tuple([one for one in alike if one]), calibration=calibration
    )


def _grown(cluster: ClusterSpec, missing: int) -> ClusterSpec:
    model = _typical(cluster)
    names = itertools.islice(_free_names(cluster), missing)
    racks = _racks_for(cluster, missing)
    new = [replace(model, name=name, host=name, rack=rack) for name, rack in zip(names, racks, strict=True)]
    calibration = cluster.calibration
    if calibration is not None:
        measured = _typical_measurements(cluster, calibration)
        added = [replace(measured, name=node.name) for node in new] if measured is not None else []
        calibration = _without_whole(replace(calibration, nodes=(*calibration.nodes, *added)))
    # Ranks are numbered in the order of nodes, workers first, so the measured ones keep their numbers.
    return replace(cluster, nodes=(*cluster.nodes, *new), alike=_with_new(cluster, new), calibration=calibration)


def _without_whole(calibration: Calibration) -> Calibration:
    """Return a calibration without measurements of all nodes together, which hold only for that number of nodes."""
    return replace(calibration, curves=(), step_seconds=None, step_variation=None)


def _typical(cluster: ClusterSpec) -> Node:
    """Return a worker node with the medians of the workers' figures, and the name, host and rack of the first one."""
    workers = _workers(cluster)
    return replace(
        workers[0],
        devices=_most_common([node.devices for node in workers]),
        bandwidth_out=median(node.bandwidth_out for node in workers),
        bandwidth_in=median(node.bandwidth_in for node in workers),
        intra_bandwidth=_median([node.intra_bandwidth for node in workers]),
        intra_total=_median([node.intra_total for node in workers]),
        nics=_most_common([node.nics for node in workers]),
        compute=median(node.compute for node in workers),
        storage=_median([node.storage for node in workers]),
        memory_bytes=min([node.memory_bytes for node in workers if node.memory_bytes is not None], default=None),
    )


def _most_common(numbers: Sequence[int]) -> int:
    """Return the number that occurs most often, the smallest of several."""
    times = Counter(numbers)
    return min(times, key=lambda number: (-times[number], number))


def _typical_measurements(cluster: ClusterSpec, calibration: Calibration) -> NodeCalibration | None:
    """Return the medians of the workers' measurements; None if no worker was measured."""
    workers = {node.name for node in _workers(cluster)}
    measured = [one for one in calibration.nodes if one.name in workers]
    if not measured:
        return None
    found: dict[str, Any] = {}
    for field in fields(NodeCalibration):
        values = [getattr(one, field.name) for one in measured]
        estimates = [value for value in values if isinstance(value, Estimate)]
        if estimates:
            found[field.name] = _median_estimate(estimates)
    return NodeCalibration(name=measured[0].name, **found)


def _median_estimate(estimates: Sequence[Estimate]) -> Estimate:
    """Return the median of estimates. Its interval covers all of theirs, because a new node may be like any of them."""
    return Estimate(
        value=median(one.value for one in estimates),
        low=min(one.low for one in estimates),
        high=max(one.high for one in estimates),
    )


def _median(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return median(known) if known else None


def _free_names(cluster: ClusterSpec) -> Iterator[str]:
    taken = {node.name for node in cluster.nodes} | {node.host for node in cluster.nodes}
    return (name for name in (f"new-{number}" for number in itertools.count()) if name not in taken)


def _racks_for(cluster: ClusterSpec, num_new: int) -> list[str | None]:
    """Return the racks of new nodes. Each goes to the rack with the fewest workers; no rack counts as one rack too."""
    workers = _workers(cluster)
    num_in = Counter(node.rack for node in workers)
    found: list[str | None] = []
    for _ in range(num_new):
        rack = min(num_in, key=lambda one: num_in[one])
        num_in[rack] += 1
        found.append(rack)
    return found


def _with_new(cluster: ClusterSpec, new: Sequence[Node]) -> tuple[tuple[str, ...], ...]:
    """Return the classes of equal nodes. A new node joins the class of its equals, or a new class."""
    by_name = {node.name: node for node in cluster.nodes}
    classes = [list(names) for names in cluster.alike]
    of_facts = {_facts(by_name[names[0]]): names for names in classes}
    for node in new:
        if _facts(node) not in of_facts:
            of_facts[_facts(node)] = []
            classes.append(of_facts[_facts(node)])
        of_facts[_facts(node)].append(node.name)
    return tuple([tuple(names) for names in classes])


def _facts(node: Node) -> Node:
    return replace(node, name="", host="")


def _at_rate(measured: NodeCalibration, node: Node, rate: float) -> NodeCalibration:
    """Return measurements of a node whose link has another rate."""
    factor = {"out": rate / node.bandwidth_out, "in": rate / node.bandwidth_in}
    changed: dict[str, Any] = {
        name: _changed(getattr(measured, name), _times(factor[name.split("_")[1]])) for name in _RATES
    }
    # The size of a burst depends on the link, and it is unknown for a link of another rate.
    return replace(measured, **changed, burst_out_bytes=None, burst_in_bytes=None)


def _times(factor: float) -> Callable[[Estimate], Estimate]:
    return lambda one: Estimate(value=one.value * factor, low=one.low * factor, high=one.high * factor)


def _at_ends(cluster: ClusterSpec, end: str) -> ClusterSpec:
    def to_end(one: Estimate) -> Estimate:
        value = getattr(one, end)
        return Estimate(value=value, low=value, high=value)

    calibration = cluster.calibration
    assert calibration is not None, "asked of probed clusters"
    nodes = []
    for one in calibration.nodes:
        changed: dict[str, Any] = {name: _changed(getattr(one, name), to_end) for name in _RATES}
        nodes.append(replace(one, **changed))
    racks = [
        replace(rack, rate_out=_changed(rack.rate_out, to_end), rate_in=_changed(rack.rate_in, to_end))
        for rack in calibration.racks
    ]
    return replace(cluster, calibration=replace(calibration, nodes=tuple(nodes), racks=tuple(racks)))


def _changed(value: T | None, change: Callable[[T], T]) -> T | None:
    return None if value is None else change(value)
