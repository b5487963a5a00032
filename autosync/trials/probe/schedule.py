"""Who sends what to whom, so that every link is measured and none is taken for another: a pure function of the cluster.

A node's link is measured against several peers whose links are together much wider than its own claim, so that what is
found is the node's and not a peer's. Every rank works the same schedule out for itself.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Literal

from autosync.specs.cluster import ClusterSpec, Node, Rack
from autosync.trials.probe.request import StreamKind

PEERS_WIDER = 3.0
"""How many times as wide as a node's own link those of its peers are, where the cluster has as much."""
MIN_PEERS = 3
WITHIN_RATE = 1e9
"""Between ranks of one node, where the file says nothing."""

_CHUNKS_A_SECOND = 150
_MIN_CHUNK_BYTES = 16 * 1024
_MAX_CHUNK_BYTES = 4 * 2**20

SMALL_BYTES = 8
_LEAST_LARGE_BYTES = 64 * 1024
_LARGE_SECONDS = 0.002


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeFlow:
    """Chunks from one rank to another as fast as they go."""

    source: int
    destination: int
    chunk_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Stream:
    """Flows at the same time that together fill the link of a subject: a node or a rack."""

    kind: StreamKind
    subject: str
    flows: tuple[ProbeFlow, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Trip:
    """Messages from one rank to another, over one direction of a node's link."""

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
    """The cluster with a rank on every node: launchers start workers, and nodes that only serve have links too."""
    nodes = tuple(replace(node, role="worker", devices=max(node.devices, 1)) for node in cluster.nodes)
    return replace(cluster, nodes=nodes, alike=(), calibration=None)


def plan_schedule(cluster: ClusterSpec) -> Schedule:
    """What to measure on a cluster all of whose nodes are workers."""
    assert all(node.role == "worker" for node in cluster.nodes), "only workers have ranks to measure with"
    ranks = cluster.worker_groups()
    streams = [*_within_streams(cluster, ranks)]
    trips: list[Trip] = []
    if len(cluster.nodes) > 1:
        for index, node in enumerate(cluster.nodes):
            outward = _peers(cluster, index, out=True)
            inward = _peers(cluster, index, out=False)
            out = _flows(ranks, [(index, peer) for peer in outward], node.bandwidth_out)
            into = _flows(ranks, [(peer, index) for peer in inward], node.bandwidth_in)
            streams.append(Stream(kind="out", subject=node.name, flows=out))
            streams.append(Stream(kind="in", subject=node.name, flows=into))
            streams.append(Stream(kind="both", subject=node.name, flows=out + into))
            here = ranks[index][0]
            there, back = ranks[outward[0]][0], ranks[inward[0]][0]
            trips.append(Trip(kind="out", subject=node.name, source=here, destination=there))
            trips.append(Trip(kind="in", subject=node.name, source=back, destination=here))
        for rack in cluster.racks:
            streams += _rack_streams(cluster, ranks, rack)
    return Schedule(streams=tuple(streams), trips=tuple(trips))


def chunk_bytes(rate: float, num_flows: int) -> int:
    """Chunks for a link of this rate: small enough to tell windows of a stream apart, large enough to cost little."""
    return int(min(max(rate / (_CHUNKS_A_SECOND * num_flows), _MIN_CHUNK_BYTES), _MAX_CHUNK_BYTES))


def adapted(stream: Stream, outward: Collection[int], rates: Mapping[StreamKind, float]) -> Stream:
    """A node's stream for the rates that were seen, so that a file that claims too much costs little time.

    It matters most where both directions are full: what one asks for passes the queue of the other, and gets its own
    share only if both queues are equally long. `outward` are the node's own ranks.
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


def _peers(cluster: ClusterSpec, index: int, *, out: bool) -> list[int]:
    """The nodes at the other end: those of the same rack first, wide links first, then the next ones in the file."""
    node = cluster.nodes[index]

    def width(peer: int) -> float:
        return cluster.nodes[peer].bandwidth_in if out else cluster.nodes[peer].bandwidth_out

    others = [peer for peer in range(len(cluster.nodes)) if peer != index]
    others.sort(
        key=lambda peer: (
            cluster.nodes[peer].rack != node.rack,
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
    """A flow for each way between nodes; a node with several ranks spreads them over its ranks."""
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


def _rack_streams(cluster: ClusterSpec, ranks: tuple[tuple[int, ...], ...], rack: Rack) -> Iterator[Stream]:
    """All nodes of a rack at once, each with one node elsewhere."""

    def positions(inside: bool) -> list[int]:  # noqa: FBT001 - the two halves of the cluster
        return [index for index, node in enumerate(cluster.nodes) if _stands_in(node, rack) == inside]

    inside, outside = positions(True), positions(False)  # noqa: FBT003
    if not inside or not outside:
        return
    longest = max(len(inside), len(outside))
    pairs = [(inside[i % len(inside)], outside[i % len(outside)]) for i in range(longest)]
    yield Stream(kind="rack_out", subject=rack.name, flows=_flows(ranks, pairs, rack.uplink_out))
    back = [(source, destination) for destination, source in pairs]
    yield Stream(kind="rack_in", subject=rack.name, flows=_flows(ranks, back, rack.uplink_in))


def _stands_in(node: Node, rack: Rack) -> bool:
    return node.rack == rack.name


def trip_bytes(rate: float) -> tuple[int, ...]:
    """Sizes of messages over a link: the smallest, some that a bucket lets pass, three that are long on the wire."""
    large = max(int(rate * _LARGE_SECONDS), _LEAST_LARGE_BYTES)
    return (SMALL_BYTES, 4096, 16384, large, 2 * large, 4 * large)
