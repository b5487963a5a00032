"""Plans the transfers that measure every link by itself: a pure function of the cluster.

A node's link is measured against several peers whose links are together much wider than the node's claimed rate, so
that the result is a property of the node and not of a peer. Every rank computes the same schedule by itself.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Literal

from autosync.specs.cluster import ClusterSpec
from autosync.specs.uplinks import ends_of_uplink, nodes_behind, racks_around, reach
from autosync.trials.probe.request import StreamKind

PEERS_WIDER = 3.0
"""The peers' links are together this many times as wide as the node's link, if the cluster has enough."""
MIN_PEERS = 3
WITHIN_RATE = 1e9
"""The rate between ranks of one node, if the file gives none."""

_CHUNKS_A_SECOND = 150
_MIN_CHUNK_BYTES = 16 * 1024
_MAX_CHUNK_BYTES = 4 * 2**20

SMALL_BYTES = 8
_LEAST_LARGE_BYTES = 64 * 1024
_LARGE_SECONDS = 0.002


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeFlow:
    """Chunks from one rank to another, sent as fast as possible."""

    source: int
    destination: int
    chunk_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Stream:
    """Simultaneous flows that together fill the link of the subject, a node or a rack."""

    kind: StreamKind
    subject: str
    flows: tuple[ProbeFlow, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Trip:
    """Messages from one rank to another that measure one direction of a node's link."""

    kind: Literal["out", "in"]
    subject: str
    source: int
    destination: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """All transfers between single ranks, in order."""

    streams: tuple[Stream, ...]
    trips: tuple[Trip, ...]


def all_workers(cluster: ClusterSpec) -> ClusterSpec:
    """Return the cluster with all nodes as workers, because server-only nodes have links to measure too."""
    nodes = tuple(replace(node, role="worker", devices=max(node.devices, 1)) for node in cluster.nodes)
    return replace(cluster, nodes=nodes, alike=(), calibration=None)


def probe_ranks(cluster: ClusterSpec) -> tuple[int, ...]:
    """Return for each rank of the cluster its number in the probe, whose ranks are those of `all_workers`.

    The launcher starts the ranks of the cluster itself: it numbers servers last, and reserves no devices for them.
    """
    numbers = {(rank.node, rank.local): rank.index for rank in all_workers(cluster).ranks}
    return tuple(numbers[rank.node, rank.local] for rank in cluster.ranks)


def plan_schedule(cluster: ClusterSpec) -> Schedule:
    """Plan the transfers on a cluster whose nodes are all workers."""
    assert all(node.role == "worker" for node in cluster.nodes), "only workers have ranks to measure with"
    ranks = cluster.worker_groups()
    streams = [*_within_streams(cluster, ranks)]
    trips: list[Trip] = []
    if len(cluster.nodes) > 1:
        for index, node in enumerate(cluster.nodes):
            outward = peers_of(cluster, index, out=True)
            inward = peers_of(cluster, index, out=False)
            out = _flows(ranks, [(index, peer) for peer in outward], node.bandwidth_out)
            into = _flows(ranks, [(peer, index) for peer in inward], node.bandwidth_in)
            streams.append(Stream(kind="out", subject=node.name, flows=out))
            streams.append(Stream(kind="in", subject=node.name, flows=into))
            streams.append(Stream(kind="both", subject=node.name, flows=out + into))
            here = ranks[index][0]
            there, back = ranks[outward[0]][0], ranks[inward[0]][0]
            trips.append(Trip(kind="out", subject=node.name, source=here, destination=there))
            trips.append(Trip(kind="in", subject=node.name, source=back, destination=here))
        for rack in range(len(cluster.racks)):
            streams += _rack_streams(cluster, ranks, rack)
    return Schedule(streams=tuple(streams), trips=tuple(trips))


def chunk_bytes(rate: float, num_flows: int) -> int:
    """Return the chunk size for a link of this rate: small compared with a stream's window, but not costly."""
    return int(min(max(rate / (_CHUNKS_A_SECOND * num_flows), _MIN_CHUNK_BYTES), _MAX_CHUNK_BYTES))


def adapted(stream: Stream, outward: Collection[int], rates: Mapping[StreamKind, float]) -> Stream:
    """Return a node's stream with chunks for the measured rates, so that a false claim of the file costs little time.

    This matters most if both directions are full: the credits of one direction pass the queue of the other, and each
    direction gets its share only if both queues are equally long. `outward` are the node's own ranks.
    """
    if stream.kind not in ("out", "in", "both"):
        return stream
    directions: list[StreamKind] = ["out" if flow.source in outward else "in" for flow in stream.flows]
    flows = tuple(
        replace(flow, chunk_bytes=chunk_bytes(rates[direction], directions.count(direction)))
        if direction in rates
        else flow
        for flow, direction in zip(stream.flows, directions, strict=True)
    )
    return replace(stream, flows=flows)


def peers_of(cluster: ClusterSpec, index: int, *, out: bool) -> list[int]:
    """Return the peers of a node: nodes of the same rack first, then wide links, then the order of the file."""
    node, around = cluster.nodes[index], racks_around(cluster)

    def width(peer: int) -> float:
        return cluster.nodes[peer].bandwidth_in if out else cluster.nodes[peer].bandwidth_out

    others = [peer for peer in range(len(cluster.nodes)) if peer != index]
    others.sort(
        key=lambda peer: (
            sum(mine != its for mine, its in zip(around[index], around[peer], strict=True)),
            -width(peer),
            (peer - index) % len(cluster.nodes),
        )
    )
    wanted = PEERS_WIDER * (node.bandwidth_out if out else node.bandwidth_in)
    chosen: list[int] = []
    for peer in others:
        if len(chosen) >= MIN_PEERS and sum(map(width, chosen)) >= wanted:
            break
        chosen.append(peer)
    return chosen


def _flows(ranks: tuple[tuple[int, ...], ...], ways: list[tuple[int, int]], rate: float) -> tuple[ProbeFlow, ...]:
    """Return a flow for each pair of nodes; a node with several ranks spreads its flows over its ranks."""
    return tuple(
        ProbeFlow(
            source=ranks[source][number % len(ranks[source])],
            destination=ranks[destination][number % len(ranks[destination])],
            chunk_bytes=chunk_bytes(rate, len(ways)),
        )
        for number, (source, destination) in enumerate(ways)
    )


def _within_streams(cluster: ClusterSpec, ranks: tuple[tuple[int, ...], ...]) -> Iterator[Stream]:
    for node, own in zip(cluster.nodes, ranks, strict=True):
        if len(own) > 1:
            size = chunk_bytes(node.intra_bandwidth or WITHIN_RATE, 1)
            flow = ProbeFlow(source=own[0], destination=own[1], chunk_bytes=size)
            yield Stream(kind="within", subject=node.name, flows=(flow,))


def _rack_streams(cluster: ClusterSpec, ranks: tuple[tuple[int, ...], ...], position: int) -> Iterator[Stream]:
    """Yield the streams between the nodes of a rack and nodes elsewhere: all pairs send at the same time."""
    rack, inside, outside = cluster.racks[position], nodes_behind(cluster)[position], nodes_beyond(cluster, position)
    if not inside or not outside:
        return
    longest = max(len(inside), len(outside))
    pairs = [(inside[i % len(inside)], outside[i % len(outside)]) for i in range(longest)]
    yield Stream(kind="rack_out", subject=rack.name, flows=_flows(ranks, pairs, rack.uplink_out))
    back = [(source, destination) for destination, source in pairs]
    yield Stream(kind="rack_in", subject=rack.name, flows=_flows(ranks, back, rack.uplink_in))


def nodes_beyond(cluster: ClusterSpec, rack: int) -> list[int]:
    """Return the nodes that fill a rack's uplink: those of its pod if they are fast enough, or else all others."""
    around, inside, facts = racks_around(cluster), nodes_behind(cluster)[rack], cluster.racks[rack]
    others = [index for index in range(len(cluster.nodes)) if index not in inside]
    if facts.rack is None:
        return others
    _, upper = ends_of_uplink(cluster, rack)
    near = [index for index in others if around[index][0] == upper[0]]
    takes, gives = (reach(cluster, upper, near, to_nodes=way) for way in (True, False))
    return near if takes >= facts.uplink_out and gives >= facts.uplink_in else others


def trip_bytes(rate: float) -> tuple[int, ...]:
    """Return message sizes for a link: the smallest, two that fit in a bucket, and three that take long on the wire."""
    large = max(int(rate * _LARGE_SECONDS), _LEAST_LARGE_BYTES)
    return (SMALL_BYTES, 4096, 16384, large, 2 * large, 4 * large)
