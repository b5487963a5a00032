"""One rank of a probe: `python -m autosync.trials.probe.rank ADDRESS`.

Every rank computes the same schedule, takes part in its steps one after another, and answers with its measurements.
"""

from __future__ import annotations

import datetime as dt
import itertools
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist

from autosync import documents
from autosync.specs.cluster import ClusterSpec
from autosync.specs.cluster_file import parse_cluster
from autosync.specs.task_file import load_task
from autosync.trials.meters import cpu_share, read_meters
from autosync.trials.probe import machine
from autosync.trials.probe.analysis import window_rates
from autosync.trials.probe.collectives import ALGORITHMS, Workers, compute
from autosync.trials.probe.host_loads import LoadRank, searches
from autosync.trials.probe.messages import run_batches, run_trips
from autosync.trials.probe.request import (
    ANSWER_KIND,
    BACKEND,
    SETTINGS_KIND,
    VERSION,
    BatchSamples,
    CollectiveSamples,
    FlowSamples,
    LoadSamples,
    ProbeSettings,
    RankAnswer,
    StreamKind,
    TripSamples,
)
from autosync.trials.probe.schedule import (
    Schedule,
    Stream,
    adapted,
    all_workers,
    plan_schedule,
    probe_ranks,
    trip_bytes,
)
from autosync.trials.probe.speeds import pass_seconds
from autosync.trials.probe.streams import run_flows
from autosync.trials.rank_device import rank_device
from autosync.trials.rank_requests import Answer, Request, serve_requests
from autosync.trials.rendezvous import open_on_first_rank, rendezvous_store
from autosync.units import format_size


class ProbeRank:
    """Runs this rank's part of a probe, stage by stage; all ranks go through the same stages."""

    def __init__(
        self,
        cluster: ClusterSpec,
        settings: ProbeSettings,
        rank: int,
        *,
        task: str | None,
        tell: Callable[[str], None],
    ) -> None:
        self._tell = tell
        self._task = task
        self._settings = settings
        self._rank = rank
        self._cluster = all_workers(cluster)
        self._schedule: Schedule = plan_schedule(self._cluster)
        # Ranks of worker nodes train, the others only serve.
        trains = [node.role == "worker" for node in cluster.nodes]
        self._workers = [r.index for r in self._cluster.ranks if trains[r.node]]
        groups = self._cluster.worker_groups()
        self._own_ranks = {node.name: ranks for node, ranks in zip(self._cluster.nodes, groups, strict=True)}
        # The measured bytes per second out of and into each node; filled as streams are measured.
        self._seen: dict[str, dict[StreamKind, float]] = {}
        self._in_turn = cluster.is_one_machine
        self._group = dist.new_group(self._workers, timeout=dt.timedelta(seconds=settings.timeout_seconds))

    def measure(self) -> RankAnswer:
        """Run all stages and return this rank's measurements."""
        before = read_meters(None)
        interfaces = machine.interface_bytes()
        flows: list[FlowSamples] = []
        for number in range(self._settings.num_rounds):
            for stream in self._schedule.streams:
                if stream.kind != "within":
                    flows += self._stream(stream, number)
        carried = machine.interfaces_since(interfaces)
        for stream in self._schedule.streams:
            if stream.kind == "within":
                flows += self._stream(stream, 0)
        loads: tuple[LoadSamples, ...] = ()
        if searches(self._cluster, self._settings):
            loads = LoadRank(self._cluster, self._settings, self._rank, self._begin).search(self._seen)
        trips, batches = self._messages()
        computed = self._compute()
        passes = None if self._task is None else self._time_passes(self._task)
        collectives, steps = self._collectives()
        return RankAnswer(
            rank=self._rank,
            flows=tuple(flows),
            trips=trips,
            batches=batches,
            collectives=collectives,
            compute_seconds=computed,
            step_seconds=steps,
            pass_seconds=passes,
            interfaces=carried,
            loads=loads if self._rank == 0 else (),
            chosen_interface=os.environ.get("GLOO_SOCKET_IFNAME"),
            cpu_share=cpu_share(before, read_meters(None)),
            torch=torch.__version__,
        )

    def _begin(self, stage: str) -> None:
        """Begin a stage together with all other ranks."""
        self._tell(stage)
        dist.barrier()

    def _in_words(self, number: int) -> str:
        return f"round {number + 1} of {self._settings.num_rounds}"

    def _stream(self, stream: Stream, number: int) -> list[FlowSamples]:
        self._begin(f"links of {stream.subject}, {self._in_words(number)}")
        settings = self._settings
        own = self._own_ranks.get(stream.subject, ())
        stream = adapted(stream, own, self._seen.get(stream.subject, {}))
        arrivals = run_flows(
            stream.flows, rank=self._rank, seconds=settings.stream_seconds, timeout_seconds=settings.timeout_seconds
        )
        samples = [
            FlowSamples(
                kind=stream.kind,
                subject=stream.subject,
                round=number,
                source=stream.flows[position].source,
                destination=self._rank,
                chunk_bytes=stream.flows[position].chunk_bytes,
                arrival_seconds=seconds,
            )
            for position, seconds in sorted(arrivals.items())
        ]
        if stream.kind in ("out", "in"):
            self._seen.setdefault(stream.subject, {})[stream.kind] = self._rate_of_all(samples)
        return samples

    def _rate_of_all(self, samples: Sequence[FlowSamples]) -> float:
        """Return the rate of a stream: the sum over all receiving ranks."""
        begin, end = self._settings.settle_seconds, self._settings.stream_seconds
        rate = torch.tensor(window_rates(samples, begin=begin, end=end, num_windows=1), dtype=torch.float64)
        dist.all_reduce(rate)
        return rate.item()

    def _messages(self) -> tuple[tuple[TripSamples, ...], tuple[BatchSamples, ...]]:
        trips: list[TripSamples] = []
        batches: list[BatchSamples] = []
        settings = self._settings
        limit = settings.timeout_seconds
        for number, trip in itertools.product(range(settings.num_rounds), self._schedule.trips):
            self._begin(f"messages of {trip.subject}, {self._in_words(number)}")
            sizes = trip_bytes(self._seen[trip.subject][trip.kind])
            trips += run_trips(trip, sizes, rank=self._rank, num_trips=settings.num_trips, timeout_seconds=limit)
            if trip.kind == "out":
                batches += run_batches(trip, rank=self._rank, num_batches=settings.num_batches, timeout_seconds=limit)
        return tuple(trips), tuple(batches)

    def _compute(self) -> tuple[float, ...]:
        """Time the fixed computation. Ranks that share a machine take turns, so that they do not slow one another."""
        self._begin("compute")
        taken: list[float] = []
        turns = range(len(self._cluster.ranks)) if self._in_turn else [self._rank]
        for _, rank in itertools.product(range(self._settings.num_rounds), turns):
            if rank == self._rank:
                taken += compute(self._settings.num_computations)
            if self._in_turn:
                dist.barrier()
        return tuple(taken)

    def _time_passes(self, task: str) -> float | None:
        """Time a model on all workers at once, because the ranks of a node share it while they train."""
        self._begin(f"passes of {task}")
        if self._rank not in self._workers:
            return None
        return pass_seconds(load_task(task), rank_device(self._cluster, self._rank))

    def _collectives(self) -> tuple[tuple[CollectiveSamples, ...], tuple[float, ...]]:
        """Time collectives and mixed steps among workers; ranks that only serve go on to the next barrier."""
        if self._rank not in self._workers or len(self._workers) == 1:
            return (), ()
        settings = self._settings
        workers = Workers(self._workers, self._group, self._rank, settings.timeout_seconds)
        samples = []
        for num_bytes in settings.curve_bytes:
            self._tell(f"all-reduces of {format_size(num_bytes)}")
            samples += [
                workers.measure(name, num_bytes, settings.point_seconds)
                for name in ALGORITHMS
                if workers.takes(name, num_bytes) <= settings.most_point_seconds
            ]
        self._tell("mixed steps")
        return tuple(samples), workers.steps(settings.num_steps, settings.pause_seconds)


class Probing:
    """Handles a probe's requests on this rank. `tell` is called with the name of each stage."""

    def __init__(self, rank: int, tell: Callable[[str], None]) -> None:
        torch.set_num_threads(1)
        self.doing = "waiting for the probe"
        self._rank = rank
        self._tell = tell
        self._opened: Any = None

    @property
    def requests(self) -> Mapping[str, Callable[[Request], Answer]]:
        """The functions that handle requests, by the request's name."""
        return {"meet": self.meet, "probe": self.probe}

    def where(self) -> str:
        """Return what this rank is measuring now, in words."""
        return self.doing

    def idle_seconds(self) -> None:
        """Tell of no steps: a request has one deadline."""

    def meet(self, _request: Request) -> Answer:
        """On the first rank, open a port where the ranks can meet."""
        self._opened, answer = open_on_first_rank(self._rank)
        return answer

    def probe(self, request: Request) -> Answer:
        """Meet the other ranks, and measure."""
        settings = documents.parse(
            documents.without_file(request["settings"]), kind=SETTINGS_KIND, version=VERSION, into=ProbeSettings
        )
        cluster = parse_cluster(documents.without_file(request["cluster"]))
        numbers = probe_ranks(cluster)
        rank = numbers[self._rank]
        dist.init_process_group(
            BACKEND,
            store=rendezvous_store(
                request["rendezvous"],
                opened=self._opened,
                num_users=len(numbers),
                timeout_seconds=settings.timeout_seconds,
            ),
            rank=rank,
            world_size=len(numbers),
            timeout=dt.timedelta(seconds=settings.timeout_seconds),
        )
        answer = ProbeRank(cluster, settings, rank, task=request["task"], tell=self._tell).measure()
        dist.barrier()
        return documents.dump(answer, kind=ANSWER_KIND, version=VERSION)


if __name__ == "__main__":
    serve_requests(sys.argv[1], Probing)
