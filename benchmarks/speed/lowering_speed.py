"""Measures how long sampling, checking and lowering strategies takes, which the search does thousands of times.

    python benchmarks/speed/lowering_speed.py --repeats 20 > out.json

Prints one JSON document. For each strategy it has the least and the median time of lowering, of its canonical form and
id, and of its plan's id. For each space it has those of drawing, checking and lowering one strategy. The least of many
times is the cost of the code; the median shows how busy the machine was. Ends with 1 if the least time of lowering a
strategy is above its target (`TARGET_SECONDS`).
"""

from __future__ import annotations

import cProfile
import pstats
import random
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from autosync.plan.identity import plan_id
from autosync.plan.lowering import lower
from autosync.specs.cluster import ClusterSpec, Node
from autosync.specs.model import ModelSpec
from autosync.specs.model_file import load_model
from autosync.strategy import legality
from autosync.strategy.canonical import strategy_id
from autosync.strategy.presets import build_preset
from autosync.strategy.representation import Message, Strategy
from autosync.strategy.space import Limits, Space
from autosync.strategy.synchronisers.all_reduce import AllReduce

sys.path.append(str(Path(__file__).parents[2]))
from benchmarks.shared import parser_of, report, run

T = TypeVar("T")

TARGET_SECONDS = {
    "resnet50, ddp, 8 hosts": 0.001,
    "bert_large, all-reduce per variable, 16 hosts": 0.015,
    "bert_large, all-reduce in 1 MB slices, 16 hosts": 0.050,
    "bert_large, partitioned servers, 16 hosts": 0.080,
}


def hosts(count: int) -> ClusterSpec:
    """Return this number of equal hosts with one rank each."""
    nodes = tuple(
        Node(name=f"h{index}", host=f"h{index}", bandwidth_out=1.25e9, bandwidth_in=1.25e9) for index in range(count)
    )
    return ClusterSpec(name=f"{count}-hosts", nodes=nodes)


def in_slices(model: ModelSpec, num_bytes: int) -> Strategy:
    """Return a strategy with a message for each variable, cut into slices, that overlaps the next forward pass."""
    messages = (
        Message(
            parts=(variable.name,),
            synchroniser=AllReduce(),
            slice_bytes=num_bytes,
            lane=variable.ready % 2,
            priority=variable.use,
        )
        for variable in model.variables
    )
    return Strategy(overlap="forward", messages=tuple(messages))


def cases() -> dict[str, tuple[Strategy, ModelSpec, ClusterSpec]]:
    """Return the strategies to lower, by name."""
    bert, resnet = load_model("bert_large"), load_model("resnet50")
    eight, sixteen = hosts(8), hosts(16)

    return {
        "resnet50, ddp, 8 hosts": (build_preset("ddp", resnet, eight), resnet, eight),
        "bert_large, ddp, 16 hosts": (build_preset("ddp", bert, sixteen), bert, sixteen),
        "bert_large, all-reduce per variable, 16 hosts": (
            build_preset("all_reduce_per_variable", bert, sixteen),
            bert,
            sixteen,
        ),
        "bert_large, all-reduce in 1 MB slices, 16 hosts": (in_slices(bert, 10**6), bert, sixteen),
        "bert_large, partitioned servers, 16 hosts": (build_preset("ps_partitioned", bert, sixteen), bert, sixteen),
        "bert_large, sharded, 16 hosts": (build_preset("sharded", bert, sixteen), bert, sixteen),
    }


def timed(work: Callable[[], object], repeats: int) -> dict[str, float]:
    """Return the least and the median seconds of some work."""
    seconds = []
    for _ in range(repeats):
        began = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - began)
    return {"least": round(min(seconds), 6), "median": round(statistics.median(seconds), 6)}


def measure(repeats: int) -> dict[str, Any]:
    """Return all times as one document."""
    lowering: dict[str, Any] = {}
    for name, (strategy, model, cluster) in cases().items():
        found = legality.problems(strategy, model, cluster)
        assert not found, f"{name}: {found[:2]}"
        plan = lower(strategy, model, cluster)
        lowering[name] = {
            "operations": len(plan.operations),
            "lower_seconds": timed(lambda s=strategy, m=model, c=cluster: lower(s, m, c), repeats),
            "id_seconds": timed(lambda s=strategy, m=model, c=cluster: strategy_id(s, m, c), repeats),
            "plan_id_seconds": timed(lambda p=plan, c=cluster: plan_id(p, c), repeats),
            "target_seconds": TARGET_SECONDS.get(name),
        }
    return {"repeats": repeats, "lowering": lowering, "sampling": sampling(repeats)}


def sampling(repeats: int) -> dict[str, Any]:
    """Return the times of drawing and checking strategies."""
    found: dict[str, Any] = {}
    for name, num_hosts in (("resnet50", 8), ("bert_large", 16)):
        model, cluster, rng = load_model(name), hosts(num_hosts), random.Random(0)
        space = Space(model=model, cluster=cluster, limits=replace(Limits(), max_parts=16))
        drawn = [space.sample(rng) for _ in range(repeats)]
        found[f"{name}, {num_hosts} hosts"] = {
            "sample_seconds": timed(lambda s=space, r=rng: s.sample(r), repeats),
            "check_seconds": _each(drawn, lambda one, m=model, c=cluster: legality.problems(one, m, c)),
            "lower_seconds": _each(drawn, lambda one, m=model, c=cluster: lower(one, m, c)),
            "plan_id_seconds": _each(
                [lower(one, model, cluster) for one in drawn], lambda plan, c=cluster: plan_id(plan, c)
            ),
        }
    return found


def _each(drawn: Sequence[T], work: Callable[[T], object]) -> dict[str, float]:
    seconds = [timed(lambda one=one: work(one), 3)["least"] for one in drawn]
    return {"median": round(statistics.median(seconds), 6), "most": round(max(seconds), 6)}


def profile(name: str) -> None:
    """Print a profile of one strategy's lowering to stderr."""
    strategy, model, cluster = cases()[name]
    lower(strategy, model, cluster)
    profiler = cProfile.Profile()
    profiler.runcall(lambda: [lower(strategy, model, cluster) for _ in range(10)])
    pstats.Stats(profiler, stream=sys.stderr).sort_stats("tottime").print_stats(25)


def main() -> int:
    """Run from the command line."""
    parser = parser_of(__doc__)
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--profile", metavar="NAME", help="profile the lowering of one of the strategies instead")
    arguments = parser.parse_args()
    if arguments.profile:
        profile(arguments.profile)
        return 0
    document = measure(arguments.repeats)
    return report(document, holds=all(map(is_in_time, document["lowering"].values())))


def is_in_time(row: Mapping[str, Any]) -> bool:
    """Return whether lowering takes at most its target; without one, any time will do."""
    return row["target_seconds"] is None or row["lower_seconds"]["least"] <= row["target_seconds"]


if __name__ == "__main__":
    run(main)
