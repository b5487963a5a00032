"""Measures a step of the example's Tree-LSTM in batches of vertices, and one vertex after the other.

Policies and naive execution run the same batch in turn, on one thread. Times are processor times of this process, so
other programs disturb them less. A step is forward, loss and backward. Each contestant's time is compared with that of
naive execution round by round; intervals need six rounds.

    python benchmarks/graphs/tree_lstm.py --rounds 6 > tree_lstm.json
    python benchmarks/graphs/tree_lstm.py --batch-sizes 64 --widths 128 --rounds 1
"""

from __future__ import annotations

import runpy
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from autosync.graphs.choose_policy import candidates
from autosync.graphs.graph_task import GraphTask
from autosync.graphs.input_graph import InputGraph
from autosync.graphs.policy import BatchingPolicy
from autosync.trials.statistics import min_rounds, round_ratio

sys.path.append(str(Path(__file__).parents[2]))
from benchmarks.shared import parser_of, report, run, tell

EXAMPLE = Path(__file__).parents[2] / "examples/graphs/tree_lstm.py"
TIMES_AT_64 = 8.0
MOST_SCHEDULE_SHARE = 0.10


def main() -> int:
    parser = parser_of(__doc__)
    parser.add_argument("--batch-sizes", type=int, nargs="+", default=[64, 256])
    parser.add_argument("--widths", type=int, nargs="+", default=[128, 512])
    parser.add_argument("--rounds", type=int, default=6)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    make = runpy.run_path(str(EXAMPLE))["graph_task"]
    cases = [
        measure(make(width=width), width, size, arguments.rounds)
        for width in arguments.widths
        for size in arguments.batch_sizes
    ]
    holds = all(one["times_as_fast"] >= TIMES_AT_64 for one in cases if one["batch_size"] == 64)
    holds = holds and all(one["schedule_share"] < MOST_SCHEDULE_SHARE for one in cases)
    return report({"rounds": arguments.rounds, "cases": cases, "holds": holds}, holds=holds)


def measure(task: GraphTask, width: int, batch_size: int, num_rounds: int) -> dict[str, Any]:
    """Return the times of all policies on one batch, and the fastest one's ratio to naive execution."""
    graphs = task.batches(1, batch_size)[0]
    policies = [BatchingPolicy(order="naive"), *candidates(task.model, [graphs])]
    rounds: dict[str, list[float]] = {policy.name: [] for policy in policies}
    for policy in policies[1:]:
        # Warms up; naive execution takes long and has nothing to warm up.
        step_seconds(task, policy, graphs)
    for number in range(num_rounds):
        for policy in policies:
            rounds[policy.name].append(step_seconds(task, policy, graphs))
        tell(f"width {width}, batch {batch_size}: round {number + 1} of {num_rounds}")
    fastest = min(policies[1:], key=lambda policy: statistics.median(rounds[policy.name]))
    seconds = statistics.median(rounds[fastest.name])
    schedule = statistics.median(schedule_seconds(task, fastest, graphs) for _ in range(5))
    ratio = round_ratio([[one] for one in rounds["naive"]], [[one] for one in rounds[fastest.name]])
    return {
        "width": width,
        "batch_size": batch_size,
        "num_vertices": sum(graph.num_vertices for graph in graphs),
        "fastest": fastest.name,
        "times_as_fast": ratio.value,
        "interval": [ratio.low, ratio.high] if num_rounds >= min_rounds() else None,
        "schedule_share": schedule / seconds,
        "processor_seconds": rounds,
    }


def step_seconds(task: GraphTask, policy: BatchingPolicy, graphs: Sequence[InputGraph]) -> float:
    """Return the processor time of one step."""
    task.model.policy = policy
    start = time.process_time()
    task.model.zero_grad()
    task.loss(task.model(graphs), graphs).backward()
    return time.process_time() - start


def schedule_seconds(task: GraphTask, policy: BatchingPolicy, graphs: Sequence[InputGraph]) -> float:
    """Return the processor time of building the schedule, which is part of every step."""
    task.model.policy = policy
    start = time.process_time()
    task.model.schedule(graphs)
    return time.process_time() - start


if __name__ == "__main__":
    run(main)
