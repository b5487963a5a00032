"""Measures loads on the ranks: several nodes send to several others at the same time."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence

import torch
import torch.distributed as dist

from autosync import documents
from autosync.specs.cluster import ClusterSpec
from autosync.trials.meters import cpu_share, read_meters
from autosync.trials.probe.analysis import window_rates
from autosync.trials.probe.loads import AloneRates, stars_of
from autosync.trials.probe.rack_search import next_loads
from autosync.trials.probe.request import FlowSamples, HostLoad, LoadSamples, ProbeSettings, StreamKind
from autosync.trials.probe.schedule import ProbeFlow, chunk_bytes
from autosync.trials.probe.streams import run_flows

_LEADER = 0
# A way that is far slower than its nodes gets smaller chunks, but not so small that a rank's late wake-up empties it.
_LEAST_CHUNK_SHARE = 0.25
_MORE_THAN_SEEN = 2.0


def searches(cluster: ClusterSpec, settings: ProbeSettings) -> bool:
    """Return whether nodes of the cluster may share links that its file does not state."""
    return not cluster.racks and not cluster.shares_loopback and settings.most_loads > 0


class LoadRank:
    """Takes part in loads on this rank. `cluster` must have a rank on every node."""

    def __init__(self, cluster: ClusterSpec, settings: ProbeSettings, rank: int, begin: Callable[[str], None]) -> None:
        self._groups = cluster.worker_groups()
        self._names = [node.name for node in cluster.nodes]
        self._settings = settings
        self._rank = rank
        self._begin = begin
        # The bytes per second that a way had when it was last measured.
        self._seen: dict[tuple[int, int], float] = {}

    def search(self, rates: Mapping[str, Mapping[StreamKind, float]]) -> tuple[LoadSamples, ...]:
        """Measure all loads of a search; `rates` are the rates of each node alone. All ranks return the same."""
        alone = AloneRates(
            out=tuple(rates[name]["out"] for name in self._names), into=tuple(rates[name]["in"] for name in self._names)
        )
        measured: list[LoadSamples] = []
        while loads := self._agreed(measured, alone):
            stage = _STAGES[loads[0].purpose]
            for number, load in enumerate(loads):
                self._begin(f"{stage}, {number + 1} of {len(loads)}")
                measured.append(self._measure(load, alone))
        return tuple(measured)

    def _agreed(self, measured: Sequence[LoadSamples], alone: AloneRates) -> tuple[HostLoad, ...]:
        """Return the next loads, which the first rank chooses: other processors might round differently."""
        text = b""
        if self._rank == _LEADER:
            plain = [documents.to_plain(load) for load in next_loads(measured, alone, self._settings.most_loads)]
            text = json.dumps(plain).encode()
        length = torch.tensor([len(text)])
        dist.broadcast(length, _LEADER)
        content = torch.zeros(int(length.item()), dtype=torch.uint8)
        if self._rank == _LEADER:
            content = torch.tensor(list(text), dtype=torch.uint8)
        dist.broadcast(content, _LEADER)
        return tuple(documents.from_plain(load, into=HostLoad) for load in json.loads(bytes(content.tolist())))

    def _measure(self, load: HostLoad, alone: AloneRates) -> LoadSamples:
        settings = self._settings
        flows = self._flows(load, alone)
        before = read_meters(None)
        arrivals = run_flows(
            flows, rank=self._rank, seconds=settings.stream_seconds, timeout_seconds=settings.timeout_seconds
        )
        busy = torch.tensor([cpu_share(before, read_meters(None))], dtype=torch.float64)
        rates = torch.zeros(len(flows), dtype=torch.float64)
        for position, seconds in arrivals.items():
            rates[position] = self._rate(flows[position], seconds)
        dist.all_reduce(rates)
        dist.all_reduce(busy, dist.ReduceOp.MAX)
        found = [float(rate) for rate in rates.tolist()]
        self._seen |= dict(zip(load.ways, found, strict=True))
        return LoadSamples(load=load, rates=tuple(found), cpu_share=float(busy.item()))

    def _flows(self, load: HostLoad, alone: AloneRates) -> list[ProbeFlow]:
        """Return a flow for each way; a node with several ranks spreads its flows over its ranks."""
        flows: dict[int, ProbeFlow] = {}
        for star in stars_of(load.ways, alone):
            for way in star.ways:
                source, destination = load.ways[way]
                claimed = min(star.rate, alone.out[source], alone.into[destination]) / len(star.ways)
                expected = max(
                    _LEAST_CHUNK_SHARE * claimed, _MORE_THAN_SEEN * self._seen.get((source, destination), claimed)
                )
                senders, receivers = self._groups[source], self._groups[destination]
                flows[way] = ProbeFlow(
                    source=senders[way % len(senders)],
                    destination=receivers[way % len(receivers)],
                    chunk_bytes=chunk_bytes(min(claimed, expected), 1),
                )
        return [flows[way] for way in sorted(flows)]

    def _rate(self, flow: ProbeFlow, seconds: tuple[float, ...]) -> float:
        """Return the rate of a flow that ended here."""
        samples = FlowSamples(
            kind="out",
            subject="",
            round=0,
            source=flow.source,
            destination=flow.destination,
            chunk_bytes=flow.chunk_bytes,
            arrival_seconds=seconds,
        )
        begin, end = self._settings.settle_seconds, self._settings.stream_seconds
        (rate,) = window_rates([samples], begin=begin, end=end, num_windows=1)
        return rate


_STAGES = {
    "screen": "links that nodes may share",
    "again": "slow nodes again",
    "alone": "groups of nodes, alone and together",
}
