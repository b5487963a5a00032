"""Measures an unchanged script under autosync: `python benchmarks/runtime_cost/script_vs_ddp.py > script.json`.

`train.py` runs on local ranks by itself and under `autosync.run` with a bundle of stock DDP's buckets, in turn, in a
random order for each round, each time in new processes. The first steps of a run do not count. Ratios have 95 %
intervals over the rounds. Ends with 1 unless the ratio is at most 1.02 for each task.
"""

from __future__ import annotations

import json
import random
import socket
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

from autosync.datasets.schema import seconds_of_steps
from autosync.trials.statistics import min_rounds, round_ratio

sys.path.append(str(Path(__file__).parents[2]))
from benchmarks.runtime_cost.runtime_vs_ddp import write_bundle
from benchmarks.shared import end_ranks, parser_of, report, run, start_ranks, tell

SCRIPT = Path(__file__).parent / "train.py"
MOST = 1.02
NUM_WARMUP_STEPS = 10
LIMIT_SECONDS = 600.0
TASKS = ("convnet", "transformer")
WAYS: dict[str, tuple[str, ...]] = {"stock": (), "autosync": ("-m", "autosync.run")}


def train(task: str, way: str, folder: Path, *, num_ranks: int, num_steps: int) -> list[float]:
    """Run the script in one of the two ways; return the seconds of its steps."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    out = folder / f"{task}-{way}.json"
    ranks = [
        start_ranks(
            "-P",
            *WAYS[way],
            SCRIPT,
            task,
            NUM_WARMUP_STEPS + num_steps,
            out,
            environment={
                "RANK": str(rank),
                "LOCAL_RANK": str(rank),
                "WORLD_SIZE": str(num_ranks),
                "LOCAL_WORLD_SIZE": str(num_ranks),
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": str(port),
                "AUTOSYNC_BUNDLE": str(folder / f"{task}.yaml"),
            },
        )
        for rank in range(num_ranks)
    ]
    try:
        codes = [rank.wait(LIMIT_SECONDS) for rank in ranks]
    finally:
        for rank in ranks:
            end_ranks(rank)
    if any(codes):
        sys.exit(f"{task} under {way}: ranks ended with {codes}")
    found = [json.loads(out.with_suffix(f".{rank}").read_text())[NUM_WARMUP_STEPS:] for rank in range(num_ranks)]
    return seconds_of_steps(found)


def time_task(task: str, folder: Path, *, num_ranks: int, num_rounds: int, num_steps: int) -> dict[str, Any]:
    """Return the step times of both ways, and their ratio."""
    facts = write_bundle(task, num_ranks, folder / f"{task}.yaml")
    blocks: dict[str, list[list[float]]] = {way: [] for way in WAYS}
    lots = random.Random(0)
    for number in range(num_rounds):
        tell(f"{task}: round {number + 1} of {num_rounds}")
        for way in lots.sample(sorted(WAYS), len(WAYS)):
            blocks[way].append(train(task, way, folder, num_ranks=num_ranks, num_steps=num_steps))
    ratio = round_ratio(blocks["autosync"], blocks["stock"])
    return {
        "task": task,
        **facts,
        "median_seconds": {way: median(median(block) for block in own) for way, own in blocks.items()},
        "ratio": {"value": ratio.value, "low": ratio.low, "high": ratio.high},
        "most": MOST,
    }


def main() -> int:
    parser = parser_of(__doc__)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=max(10, min_rounds()))
    parser.add_argument("--steps", type=int, default=30, help="the steps of a run that count")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        rows = [
            time_task(task, Path(folder), num_ranks=options.ranks, num_rounds=options.rounds, num_steps=options.steps)
            for task in TASKS
        ]
    return report({"tasks": rows}, holds=all(row["ratio"]["value"] <= MOST for row in rows))


if __name__ == "__main__":
    run(main)
