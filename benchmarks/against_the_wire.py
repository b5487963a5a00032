"""How near transfers come to the wire: `python benchmarks/against_the_wire.py > wire.json`.

On testbeds of 2, 4 and 8 hosts:

(a) all-reduces by our ring, natively on a group of ours, and by `torch.distributed.all_reduce`, in turns; each one's
    bus bandwidth (2(n-1)/n of the bytes over the time of the slowest rank) as a share of the link's rate. Bound: from
    4 MB on at least 0.90 for the ring, and its time at most that of torch's within the interval of their ratio.
(b) 1 MB of high priority alone and while 16 MB of low priority are under way, both by ring and both by star (a reduce
    to one host), on lanes of their own; how many times as long it takes. Bound: 2.2. And how long both take together,
    as a share of one after the other: making room must not cost throughput.

Ranks are batch processes with one torch thread each, as the runtime's are on a testbed. Ends with 1 where a bound is
not held. What else keeps the processor busy shows here first: run it on a quiet machine.
"""

from __future__ import annotations

import argparse
import datetime as dt
import faulthandler
import itertools
import json
import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import torch
import torch.distributed as dist

from autosync.launchers import LAUNCHERS
from autosync.plan.types import Algorithm, Collective
from autosync.runtime.collectives import run_native
from autosync.runtime.exchange import Exchange, Flow
from autosync.runtime.links import Links, base_store, session_name
from autosync.runtime.pieces import compile_pieces
from autosync.specs.cluster import ClusterSpec, Node
from autosync.trials.statistics import Interval, median_interval

HOSTS = (2, 4, 8)
MEGABITS = (500, 1000)
MEGABYTES = (1, 4, 16, 64)
BOUND_SHARE = 0.90
BOUND_FROM_MEGABYTES = 4
BOUND_RATIO = 2.2
HIGH_MEGABYTES, LOW_MEGABYTES = 1, 16
URGENT_HOSTS, URGENT_MEGABITS = 4, 500
# Into the low transfer, of which 16 MB take about 400 ms, when the high one begins.
HEAD_START_SECONDS = 0.1
TIMEOUT_SECONDS = 60.0
POLL_SECONDS = 0.1
RIVALS = ("ring", "native", "torch")


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What the ranks of one launch measure."""

    kind: Literal["bandwidth", "urgency"]
    hosts: int
    megabits: int
    megabytes: tuple[int, ...]
    repeats: int


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hosts", type=int, nargs="+", default=HOSTS)
    parser.add_argument("--megabits", type=int, nargs="+", default=MEGABITS)
    parser.add_argument("--megabytes", type=int, nargs="+", default=MEGABYTES)
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--only", choices=("bandwidth", "urgency"))
    parser.add_argument("--rank", nargs=2, metavar=("FOLDER", "WORK"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.rank:
        return run_rank(Path(options.rank[0]), Work(**json.loads(options.rank[1])))
    results: dict[str, Any] = {"bandwidth": [], "urgency": []}
    if options.only != "urgency":
        for hosts, megabits in itertools.product(options.hosts, options.megabits):
            work = Work(
                kind="bandwidth",
                hosts=hosts,
                megabits=megabits,
                megabytes=tuple(options.megabytes),
                repeats=options.repeats,
            )
            results["bandwidth"] += _bandwidths(work, launch(work))
    if options.only != "bandwidth":
        work = Work(
            kind="urgency",
            hosts=URGENT_HOSTS,
            megabits=URGENT_MEGABITS,
            megabytes=(HIGH_MEGABYTES, LOW_MEGABYTES),
            repeats=options.repeats,
        )
        results["urgency"] = _urgencies(launch(work))
    holds = all(result["holds"] for result in (*results["bandwidth"], *results["urgency"]))
    print(json.dumps({"load": os.getloadavg()[0], "holds": holds, **results}, indent=2))
    return 0 if holds else 1


# ------------------------------------------------------------------------------------------------- launching ranks


def launch(work: Work) -> dict[str, list[float]]:
    """Run the work's ranks on a testbed; for everything they timed, the seconds of the slowest rank, time by time."""
    rate = work.megabits * 125_000
    nodes = tuple(Node(name=f"n{i}", host=f"n{i}", bandwidth_out=rate, bandwidth_in=rate) for i in range(work.hosts))
    cluster = ClusterSpec(name="wire", nodes=nodes, launcher="testbed")
    launcher = LAUNCHERS.get("testbed")()
    with tempfile.TemporaryDirectory(prefix="autosync-wire-") as name:
        folder = Path(name)
        command = (sys.executable, __file__, "--rank", name, json.dumps(asdict(work)))
        running = launcher.start(launcher.plan(cluster, command, folder))
        try:
            _wait(running, folder, work)
        finally:
            running.stop()
        ranks = [json.loads((folder / f"times-{rank}.json").read_text()) for rank in range(work.hosts)]
    return {what: [max(times) for times in zip(*(rank[what] for rank in ranks), strict=True)] for what in ranks[0]}


def _wait(running: Any, folder: Path, work: Work) -> None:
    deadline = time.monotonic() + limit_seconds(work) + TIMEOUT_SECONDS
    while None in (codes := running.exit_codes()) and time.monotonic() < deadline:
        if any(code not in (None, 0) for code in codes):
            break
        time.sleep(POLL_SECONDS)
    for rank, code in enumerate(running.exit_codes()):
        if code != 0:
            raise SystemExit(f"rank {rank} ended with {code}:\n{(folder / f'rank-{rank}.log').read_text()}")


def limit_seconds(work: Work) -> float:
    """Ten times what the wire alone needs."""
    wire_seconds = sum(2 * megabytes * 8 / work.megabits for megabytes in work.megabytes)
    return 60.0 + 10 * len(RIVALS) * (work.repeats + 1) * wire_seconds


# ------------------------------------------------------------------------------------------------------ on a rank


def run_rank(folder: Path, work: Work) -> int:
    """One rank's part; writes how long everything took here."""
    # Should whoever started the ranks be gone, they end themselves.
    faulthandler.dump_traceback_later(limit_seconds(work) + TIMEOUT_SECONDS, exit=True)
    torch.set_num_threads(1)
    rank = int(os.environ["RANK"])
    timeout = dt.timedelta(seconds=TIMEOUT_SECONDS)
    store = dist.FileStore(str(folder / "rendezvous"), work.hosts)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=work.hosts, timeout=timeout)
    name = session_name(range(work.hosts))
    links = Links(dist.PrefixStore(name, base_store()), rank=rank, num_ranks=work.hosts, timeout=timeout)
    measure = measure_bandwidth if work.kind == "bandwidth" else measure_urgency
    times = measure(work, links)
    (folder / f"times-{rank}.json").write_text(json.dumps(times))
    dist.barrier()
    links.close()
    dist.destroy_process_group()
    return 0


def measure_bandwidth(work: Work, links: Links) -> dict[str, list[float]]:
    """The rivals in turns, size after size; the first turn does not count."""
    everyone = tuple(range(work.hosts))
    links.make_native([(everyone, 0)])
    times: dict[str, list[float]] = {}
    for megabytes in work.megabytes:
        buffer = torch.zeros(megabytes * 250_000)
        ours = transfer(links, Flow(), "all_reduce", "ring", buffer, tag=1, priority=0)
        rivals: dict[str, Callable[[], object]] = {
            "ring": ours,
            "native": lambda buffer=buffer: run_native("all_reduce", links.native(everyone, 0), buffer),
            "torch": lambda buffer=buffer: dist.all_reduce(buffer),
        }
        for turn, name in itertools.product(range(work.repeats + 1), RIVALS):
            dist.barrier()
            seconds = timed(rivals[name])
            if turn:
                times.setdefault(f"{name} {megabytes}", []).append(seconds)
    return times


def measure_urgency(work: Work, links: Links) -> dict[str, list[float]]:
    """High alone, low alone, and high begun while low is under way, in turns; the first turn does not count."""
    high_megabytes, low_megabytes = work.megabytes
    times: dict[str, list[float]] = {}
    cases: list[tuple[Collective, Algorithm]] = [("all_reduce", "ring"), ("reduce", "star")]
    for collective, algorithm in cases:
        flow = Flow()
        high = transfer(links, flow, collective, algorithm, torch.zeros(high_megabytes * 250_000), tag=1, priority=0)
        low = transfer(links, flow, collective, algorithm, torch.zeros(low_megabytes * 250_000), tag=2, priority=1)
        for turn in range(work.repeats + 1):
            dist.barrier()
            alone = timed(high)
            dist.barrier()
            low_alone = timed(low)
            dist.barrier()
            urgent, both = together(low, high)
            if turn:
                for what, seconds in (("high", alone), ("low", low_alone), ("urgent", urgent), ("both", both)):
                    times.setdefault(f"{algorithm} {what}", []).append(seconds)
    return times


def transfer(
    links: Links,
    flow: Flow,
    collective: Collective,
    algorithm: Algorithm,
    buffer: torch.Tensor,
    *,
    tag: int,
    priority: int,
) -> Callable[[], None]:
    """A transfer among all ranks, on a lane of its own."""
    members = tuple(range(links.num_ranks))
    pieces = compile_pieces(
        collective,
        algorithm,
        num_members=len(members),
        position=links.rank,
        num_elements=len(buffer),
        item_bytes=buffer.element_size(),
        piece_bytes=flow.piece_bytes(priority),
    )
    exchange = Exchange(links, flow)
    return lambda: exchange.run(pieces, buffer, members=members, tag=tag, priority=priority)


def together(low: Callable[[], None], high: Callable[[], None]) -> tuple[float, float]:
    """How long the high one takes that begins while the low one is under way, and how long both."""
    begin = time.perf_counter()
    lane = threading.Thread(target=low)
    lane.start()
    time.sleep(HEAD_START_SECONDS)
    urgent = timed(high)
    lane.join()
    return urgent, time.perf_counter() - begin


def timed(work: Callable[[], object]) -> float:
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


# --------------------------------------------------------------------------------------------------------- results


def _bandwidths(work: Work, seconds: dict[str, list[float]]) -> list[dict[str, Any]]:
    results = []
    for megabytes in work.megabytes:
        wire_seconds = 2 * (work.hosts - 1) / work.hosts * megabytes * 8 / work.megabits
        shares = {}
        for name in RIVALS:
            taken = median_interval(seconds[f"{name} {megabytes}"])
            # The longest time is the lowest share.
            shares[name] = {
                "value": wire_seconds / taken.value,
                "low": wire_seconds / taken.high,
                "high": wire_seconds / taken.low,
            }
        slower = ratio(seconds[f"ring {megabytes}"], seconds[f"torch {megabytes}"])
        near = megabytes < BOUND_FROM_MEGABYTES or shares["ring"]["value"] >= BOUND_SHARE
        holds = near and slower.low <= 1
        result = {"hosts": work.hosts, "megabits": work.megabits, "megabytes": megabytes, "holds": holds}
        results.append({**result, "share_of_link": shares, "ring_over_torch": asdict(slower)})
        told = ", ".join(f"{name} {share['value']:.3f}" for name, share in shares.items())
        what = f"{work.hosts} hosts at {work.megabits:4} Mbit/s, {megabytes:2} MB"
        tell(f"{what}: {told} of the link; ring takes {slower.value:.3f} of torch's time")
    return results


def _urgencies(seconds: dict[str, list[float]]) -> list[dict[str, Any]]:
    results = []
    for algorithm in ("ring", "star"):
        high, low, urgent, both = (seconds[f"{algorithm} {what}"] for what in ("high", "low", "urgent", "both"))
        longer = ratio(urgent, high)
        in_turn = [first + second for first, second in zip(high, low, strict=True)]
        cost = ratio(both, in_turn)
        results.append(
            {
                "algorithm": algorithm,
                "holds": longer.value <= BOUND_RATIO,
                "alone_seconds": asdict(median_interval(high)),
                "urgent_seconds": asdict(median_interval(urgent)),
                "urgent_over_alone": asdict(longer),
                "both_over_one_after_the_other": asdict(cost),
            }
        )
        tell(
            f"{algorithm}: alone {1e3 * median_interval(high).value:.1f} ms, while another is under way "
            f"{longer.value:.2f} times as long; both take {cost.value:.3f} of one after the other"
        )
    return results


def ratio(seconds: list[float], others: list[float]) -> Interval:
    """How many times as long the first take, turn by turn."""
    return median_interval([first / second for first, second in zip(seconds, others, strict=True)])


def tell(words: str) -> None:
    print(words, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
