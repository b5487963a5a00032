"""Turns samples into a calibration: medians with their 95 % intervals. Pure functions without clock or cluster."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from autosync.specs.calibration import Curve, CurvePoint, Estimate, NodeCalibration, RackCalibration
from autosync.specs.cluster import ClusterSpec
from autosync.trials.probe.request import (
    BatchSamples,
    FlowSamples,
    ProbeSettings,
    RankAnswer,
    StreamKind,
    TripSamples,
)
from autosync.trials.statistics import bootstrap_interval

NUM_LONG_SIZES = 3
"""The number of the largest round-trip sizes that are used for bursts: these take long on the wire."""
_MOST_HIDDEN = 0.75


def estimate(samples: Sequence[float]) -> Estimate:
    """Return the median with its interval, rounded to six digits: no measurement is more precise."""
    interval = bootstrap_interval(samples)
    low, value, high = (float(f"{max(0.0, x):.6g}") for x in (interval.low, interval.value, interval.high))
    return Estimate(value=value, low=low, high=high)


def window_rates(flows: Sequence[FlowSamples], *, begin: float, end: float, num_windows: int) -> list[float]:
    """Return the bytes per second of all flows of a stream together, for each of `num_windows` windows of time.

    A flow's bytes are taken to grow evenly between arrivals. The flows are added up, so it does not matter how they
    share the link.
    """
    edges = np.linspace(begin, end, num_windows + 1)
    total = np.zeros(num_windows + 1)
    for flow in flows:
        times = np.array([0.0, *flow.arrival_seconds])
        total += np.interp(edges, times, flow.chunk_bytes * np.arange(len(times)))
    return [float(rate) for rate in np.diff(total) / np.diff(edges)]


def burst_samples(trips: Mapping[int, Sequence[float]], rate: float) -> list[float]:
    """Return estimates of the burst, the bytes that pass at once: one for each message that is long on the wire.

    After a pause, a message of `s` bytes takes the time of the smallest message plus, at the link's rate, the time of
    the bytes beyond the burst: `T(s) = T(0) + max(0, s - burst) / rate`. Sizes that a burst may hide completely are
    left out.
    """
    smallest = min(trips)
    start = float(np.median(trips[smallest]))
    found: list[float] = []
    for size in sorted(trips)[-NUM_LONG_SIZES:]:
        bursts = [size - rate * (seconds - start) for seconds in trips[size]]
        if size > smallest and np.median(bursts) <= _MOST_HIDDEN * size:
            found += (max(0.0, burst) for burst in bursts)
    return found


def seconds_per_message(batches: Sequence[BatchSamples], *, cpu: bool) -> list[float]:
    """Return the time that one more message takes: the median slope between batches of different length.

    There is one figure for each repetition.
    """
    taken: dict[int, list[float]] = defaultdict(list)
    for batch in batches:
        taken[batch.num_messages] += batch.cpu_seconds if cpu else batch.seconds
    pairs = list(itertools.combinations(sorted(taken), 2))
    repetitions = min(map(len, taken.values()), default=0) if pairs else 0
    return [
        float(np.median([(taken[many][i] - taken[few][i]) / (many - few) for few, many in pairs]))
        for i in range(repetitions)
    ]


def calibrate_nodes(
    cluster: ClusterSpec, settings: ProbeSettings, answers: Sequence[RankAnswer]
) -> tuple[NodeCalibration, ...]:
    """Return the calibration of each node; `cluster` must have a rank on every node."""
    samples = _Samples.of(answers)
    rates = {
        node.name: (_rate(samples.flows[node.name], "out", settings), _rate(samples.flows[node.name], "in", settings))
        for node in cluster.nodes
    }
    nodes = []
    for node, ranks in zip(cluster.nodes, cluster.worker_groups(), strict=True):
        out, into = rates[node.name]
        flows, trips, batches = samples.flows[node.name], samples.trips[node.name], samples.batches[node.name]
        both = [flow for flow in flows if flow.kind == "both"]
        carried = answers[ranks[0]].interfaces
        nodes.append(
            NodeCalibration(
                name=node.name,
                rate_out=out,
                rate_in=into,
                rate_out_both=_rate([flow for flow in both if flow.source in ranks], "both", settings),
                rate_in_both=_rate([flow for flow in both if flow.destination in ranks], "both", settings),
                burst_out_bytes=_burst(cluster, [trip for trip in trips if trip.kind == "out"], rates),
                burst_in_bytes=_burst(cluster, [trip for trip in trips if trip.kind == "in"], rates),
                latency_seconds=_latency([trip for trip in trips if trip.kind == "out"]),
                message_seconds=_estimate_if(seconds_per_message(batches, cpu=False)),
                message_cpu_seconds=_estimate_if(seconds_per_message(batches, cpu=True)),
                rate_within=_rate(flows, "within", settings),
                compute_seconds=tuple(estimate(answers[rank].compute_seconds) for rank in ranks),
                interface=carried[0].name if carried and out is not None else None,
            )
        )
    return tuple(nodes)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Samples:
    """The samples of all ranks, by the node or rack that they measure."""

    flows: Mapping[str, list[FlowSamples]]
    trips: Mapping[str, list[TripSamples]]
    batches: Mapping[str, list[BatchSamples]]

    @classmethod
    def of(cls, answers: Sequence[RankAnswer]) -> _Samples:
        flows: defaultdict[str, list[FlowSamples]] = defaultdict(list)
        trips: defaultdict[str, list[TripSamples]] = defaultdict(list)
        batches: defaultdict[str, list[BatchSamples]] = defaultdict(list)
        for answer in answers:
            for flow in answer.flows:
                flows[flow.subject].append(flow)
            for trip in answer.trips:
                trips[trip.subject].append(trip)
            for batch in answer.batches:
                batches[batch.subject].append(batch)
        return cls(flows=flows, trips=trips, batches=batches)


def calibrate_racks(
    cluster: ClusterSpec, settings: ProbeSettings, answers: Sequence[RankAnswer]
) -> tuple[RackCalibration, ...]:
    """Return the calibrations of the racks' uplinks."""
    samples = _Samples.of(answers)
    racks = []
    for rack in cluster.racks:
        flows = samples.flows[rack.name]
        out, into = _rate(flows, "rack_out", settings), _rate(flows, "rack_in", settings)
        if out is not None and into is not None:
            racks.append(RackCalibration(name=rack.name, rate_out=out, rate_in=into))
    return tuple(racks)


def calibrate_curves(answers: Sequence[RankAnswer]) -> tuple[Curve, ...]:
    """Return the time of all-reduces by algorithm and size; the time of each is that of its slowest rank."""
    workers = [answer for answer in answers if answer.collectives]
    points: dict[str, list[CurvePoint]] = {}
    for same in zip(*(answer.collectives for answer in workers), strict=True):
        slowest = [max(seconds) for seconds in zip(*(samples.seconds for samples in same), strict=True)]
        point = CurvePoint(num_bytes=same[0].num_bytes, seconds=estimate(slowest))
        points.setdefault(same[0].algorithm, []).append(point)
    return tuple(Curve(collective="all_reduce", algorithm=name, points=tuple(found)) for name, found in points.items())


def step_samples(answers: Sequence[RankAnswer]) -> list[float]:
    """Return the times of the mixed steps, each on its slowest rank."""
    return [max(ranks) for ranks in zip(*(a.step_seconds for a in answers if a.step_seconds), strict=True)]


def variation(samples: Sequence[float]) -> float:
    """Return the coefficient of variation: the standard deviation divided by the mean."""
    return float(f"{np.std(samples, ddof=1) / np.mean(samples):.4g}")


def _rate(flows: Iterable[FlowSamples], kind: StreamKind, settings: ProbeSettings) -> Estimate | None:
    """Estimate the rate of the streams of a kind from the windows of all their rounds; None without such streams."""
    rounds: dict[int, list[FlowSamples]] = {}
    for flow in flows:
        if flow.kind == kind:
            rounds.setdefault(flow.round, []).append(flow)
    rates = [
        rate
        for same in rounds.values()
        for rate in window_rates(
            same, begin=settings.settle_seconds, end=settings.stream_seconds, num_windows=settings.num_windows
        )
    ]
    return _estimate_if(rates)


def _burst(
    cluster: ClusterSpec, trips: Sequence[TripSamples], rates: Mapping[str, tuple[Estimate | None, Estimate | None]]
) -> Estimate | None:
    """Estimate the burst between two nodes, with the rate of the narrower end; None if a rate is unknown."""
    if not trips:
        return None
    out = rates[cluster.nodes[cluster.ranks[trips[0].source].node].name][0]
    into = rates[cluster.nodes[cluster.ranks[trips[0].destination].node].name][1]
    if out is None or into is None:
        return None
    return _estimate_if(burst_samples(_by_size(trips), min(out.value, into.value)))


def _latency(trips: Sequence[TripSamples]) -> Estimate | None:
    by_size = _by_size(trips)
    return _estimate_if([seconds / 2 for seconds in by_size[min(by_size)]]) if by_size else None


def _by_size(trips: Sequence[TripSamples]) -> dict[int, tuple[float, ...]]:
    """Return the times of each size, from all rounds."""
    found: dict[int, tuple[float, ...]] = {}
    for trip in trips:
        found[trip.num_bytes] = found.get(trip.num_bytes, ()) + trip.seconds
    return found


def _estimate_if(samples: Sequence[float]) -> Estimate | None:
    return estimate(samples) if samples else None
