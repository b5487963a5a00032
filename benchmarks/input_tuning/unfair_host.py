"""Measures steps of ranks of which one is served worse, dealt equally and by measured rate, against a fair case.

python benchmarks/input_tuning/unfair_host.py > unfair_host.json

Each of four ranks reads from a server of its own with a limited rate. In the fair case all rates are alike; else one
server has a part of it. Ranks wait for one another after each step. If reads were dealt without loss, a step would take
that of the fair case, scaled by the rate of all servers together. Epochs of the three ways are read in turn.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import random
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import multiprocessing

sys.path.append(str(Path(__file__).parents[2]))

import autosync
from autosync.inputs.loader import InputLoader
from autosync.inputs.tar_shards import TarShards
from autosync.specs.input_settings import InputSettings
from autosync.specs.rank_variables import NODE_VARIABLE
from autosync.trials.statistics import round_ratio
from benchmarks.input_tuning.workloads import limited_server, mean_of, write_shards
from benchmarks.shared import parser_of, report, run, tell, this_machine

NUM_RANKS = 4
BATCH_SIZE = 24
EXAMPLE_BYTES = 16384
NUM_STEPS = 20
NUM_FIRST = 4
"""The steps of an epoch in which workers start, and read ahead as far as they may."""
RATE = 4e6
"""The bytes a second that a host is served in the fair case. A step takes about a tenth of a second."""
WORSE = 2
"""The rank that is served worse."""
SETTINGS = InputSettings(num_workers=2, read_bytes=2**20, read_concurrency=4)
MOST_LOSS = 0.05

WAYS = ("fair", "equally", "by rate")


def main() -> int:
    parser = parser_of(__doc__)
    parser.add_argument("--parts", nargs="+", type=float, default=(0.33, 0.6), help="of the rate of the other servers")
    parser.add_argument("--rounds", type=int, default=8, help="the epochs of each way")
    arguments = parser.parse_args()
    cases = {}
    for part in arguments.parts:
        one = cases[str(part)] = measured(part, arguments.rounds)
        tell(f"{part} of the rate: {one['over_scaled']['value']:.3f} of the fair case scaled")
    holds = all(one["over_scaled"]["high"] <= 1 + MOST_LOSS for one in cases.values())
    document = {
        "schema": "autosync.benchmark_unfair_host/1",
        **this_machine(),
        "holds": holds,
        "cases": cases,
    }
    return report(document, holds=holds)


def measured(part: float, num_rounds: int) -> dict[str, Any]:
    """Return the seconds of steps if one of the servers has a part of the others' rate."""
    with tempfile.TemporaryDirectory(prefix="autosync-unfair-") as name, contextlib.ExitStack() as stack:
        folder = Path(name)
        num_samples = NUM_RANKS * BATCH_SIZE * NUM_STEPS
        write_shards(folder / "shards", num_shards=1, num_samples=num_samples, num_bytes=EXAMPLE_BYTES)
        fair = [stack.enter_context(limited_server(folder / "shards", rate=RATE)) for _ in range(NUM_RANKS)]
        worse = stack.enter_context(limited_server(folder / "shards", rate=part * RATE))
        unfair = [worse if rank == WORSE else url for rank, url in enumerate(fair)]
        multiprocessing.spawn(_rank, (folder, fair, unfair, num_rounds), nprocs=NUM_RANKS)
        found = json.loads((folder / "steps.json").read_text(encoding="utf-8"))
    scale = NUM_RANKS / (NUM_RANKS - 1 + part)
    seconds = {way: np.asarray(found["seconds"][way])[:, None] for way in WAYS}
    return {
        "named": found["named"],
        "shares": found["shares"],
        "step_seconds": {way: float(np.median(seconds[way])) for way in WAYS},
        "fair_case_scaled_by": scale,
        "over_scaled": dataclasses.asdict(round_ratio(seconds["by rate"], scale * seconds["fair"])),
        "over_equally": dataclasses.asdict(round_ratio(seconds["by rate"], seconds["equally"])),
    }


def _rank(rank: int, folder: Path, fair: Sequence[str], unfair: Sequence[str], num_rounds: int) -> None:
    os.environ[NODE_VARIABLE] = f"node-{rank}"
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=NUM_RANKS)
    loaders = {way: _loader((fair if way == "fair" else unfair)[rank]) for way in WAYS}
    # What is dealt by rate is known after an epoch.
    _epoch(loaders["by rate"])
    named = [one.host for one in loaders["by rate"].unfair_hosts()]
    shares = loaders["by rate"].deal_by_rate()
    seconds: dict[str, list[float]] = {way: [] for way in WAYS}
    # All ranks draw the same order.
    rng = random.Random(0)
    for _ in range(num_rounds):
        for way in rng.sample(WAYS, len(WAYS)):
            seconds[way].append(_epoch(loaders[way]))
    if rank == 0:
        told = {"named": named, "shares": shares, "seconds": seconds}
        (folder / "steps.json").write_text(json.dumps(told), encoding="utf-8")
    dist.destroy_process_group()


def _loader(server: str) -> InputLoader:
    shards = TarShards([f"{server}/0000.tar"], decode=mean_of)
    return autosync.loader(shards, SETTINGS, batch_size=BATCH_SIZE, shuffle="none")


def _epoch(loader: InputLoader) -> float:
    """Return the mean seconds of a step after the first ones. A step ends when all ranks have their batches."""
    done = torch.zeros(1)
    dist.all_reduce(done)
    ends = []
    for _ in loader:
        dist.all_reduce(done)
        ends.append(time.perf_counter())
    return (ends[-1] - ends[NUM_FIRST - 1]) / (len(ends) - NUM_FIRST)


if __name__ == "__main__":
    run(main)
