"""One rank of a probe: `python -m autosync.trials.probe.rank FOLDER`.

Every rank works out the same schedule, takes part in its steps one after another, and writes down what it measured.
"""

from __future__ import annotations

import datetime as dt
import faulthandler
import itertools
import os
import sys
import time
import traceback
from collections.abc import Sequence
from pathlib import Path

import torch
import torch.distributed as dist

from autosync import jsonio
from autosync.errors import AutosyncError
from autosync.specs.cluster import ClusterSpec
from autosync.trials.probe import machine
from autosync.trials.probe.analysis import window_rates
from autosync.trials.probe.collectives import ALGORITHMS, Workers, compute
from autosync.trials.probe.messages import run_batches, run_trips
from autosync.trials.probe.request import (
    BatchSamples,
    CollectiveSamples,
    FlowSamples,
    ProbeFolder,
    ProbeSettings,
    RankAnswer,
    StreamKind,
    TripSamples,
)
from autosync.trials.probe.schedule import Schedule, Stream, adapted, all_workers, plan_schedule, trip_bytes
from autosync.trials.probe.streams import run_flows
from autosync.units import format_size


class ProbeRank:
    """This rank's part of a probe, stage by stage; all ranks go through the same stages."""

    def __init__(self, folder: ProbeFolder, cluster: ClusterSpec, settings: ProbeSettings, rank: int) -> None:
        self._folder = folder
        self._settings = settings
        self._rank = rank
        self._cluster = all_workers(cluster)
        self._schedule: Schedule = plan_schedule(self._cluster)
        # The launcher counts ranks as all_workers does; those of worker nodes train, the others serve.
        trains = [node.role == "worker" for node in cluster.nodes]
        self._workers = [r.index for r in self._cluster.ranks if trains[r.node]]
        groups = self._cluster.worker_groups()
        self._own_ranks = {node.name: ranks for node, ranks in zip(self._cluster.nodes, groups, strict=True)}
        # Bytes per second out of and into each node, as soon as they have been seen once.
        self._seen: dict[str, dict[StreamKind, float]] = {}
        self._in_turn = cluster.launcher in ("local", "testbed")
        self._group = dist.new_group(self._workers, timeout=dt.timedelta(seconds=settings.timeout_seconds))

    def measure(self) -> RankAnswer:
        """All stages."""
        cpu = machine.processor_times()
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
        trips, batches = self._messages()
        computed = self._compute()
        collectives, steps = self._collectives()
        return RankAnswer(
            rank=self._rank,
            flows=tuple(flows),
            trips=trips,
            batches=batches,
            collectives=collectives,
            compute_seconds=computed,
            step_seconds=steps,
            interfaces=carried,
            chosen_interface=os.environ.get("GLOO_SOCKET_IFNAME"),
            cpu_share=machine.processor_share(cpu),
            torch=torch.__version__,
        )

    def _begin(self, stage: str) -> None:
        """All ranks begin a stage together; the first one says which it is."""
        if self._rank == 0:
            jsonio.write_text(self._folder.stage, stage)
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
        """The rate of a stream, what all ranks received added up."""
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
        """Ranks that share a machine take turns: what they would do to one another is not how fast they are."""
        self._begin("compute")
        taken: list[float] = []
        turns = range(len(self._cluster.ranks)) if self._in_turn else [self._rank]
        for _, rank in itertools.product(range(self._settings.num_rounds), turns):
            if rank == self._rank:
                taken += compute(self._settings.num_computations)
            if self._in_turn:
                dist.barrier()
        return tuple(taken)

    def _collectives(self) -> tuple[tuple[CollectiveSamples, ...], tuple[float, ...]]:
        """Among those that train; ranks that only serve wait at the next barrier."""
        if self._rank not in self._workers or len(self._workers) == 1:
            return (), ()
        settings = self._settings
        workers = Workers(self._workers, self._group, self._rank, settings.timeout_seconds)
        samples = []
        for num_bytes in settings.curve_bytes:
            if self._rank == 0:
                jsonio.write_text(self._folder.stage, f"all-reduces of {format_size(num_bytes)}")
            samples += [workers.measure(name, num_bytes, settings.point_seconds) for name in ALGORITHMS]
        if self._rank == 0:
            jsonio.write_text(self._folder.stage, "mixed steps")
        return tuple(samples), workers.steps(settings.num_steps, settings.pause_seconds)


def main(folder: ProbeFolder) -> int:
    """Measure, and write down what came of it; 0 if all went well."""
    rank = int(os.environ["RANK"])
    torch.set_num_threads(1)
    try:
        cluster, settings = folder.read_request()
        # Should whoever started the ranks be gone, they end themselves, and the log says where they were.
        faulthandler.dump_traceback_later(settings.timeout_seconds, exit=True)
        num_ranks = int(os.environ["WORLD_SIZE"])
        dist.init_process_group(
            "gloo",
            store=dist.FileStore(str(folder.rendezvous.resolve()), num_ranks),  # type: ignore[attr-defined]
            rank=rank,
            world_size=num_ranks,
            timeout=dt.timedelta(seconds=settings.timeout_seconds),
        )
        answer = ProbeRank(folder, cluster, settings, rank).measure()
        dist.barrier()
        dist.destroy_process_group()
    except Exception as error:  # noqa: BLE001 - what went wrong is this rank's answer
        traceback.print_exc()
        told = str(error) if isinstance(error, AutosyncError) else f"{type(error).__name__}: {error}"
        folder.write_answer(RankAnswer(rank=rank, error=told, ended_at_seconds=time.time()))
        return 1
    folder.write_answer(answer)
    return 0


if __name__ == "__main__":
    code = main(ProbeFolder(Path(sys.argv[1])))
    sys.stdout.flush()
    sys.stderr.flush()
    # Threads of a failed transfer may still be in it; there is nothing left to clean up.
    os._exit(code)
