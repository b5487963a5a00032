"""The simulated timeline beside the measured one: `python benchmarks/trace_agreement.py > agreement.json`, 1 minute.

Three strategies on four emulated hosts, each measured without a timeline (how long a step takes) and with one (what
happens when). The simulated trace of the same plan should have steps of the same length within 5 %, and the transfers
of a rank should end in the same order. Pairs of transfers that end within 2 ms of each other, measured, have no order.
Ends with 1 where they do not agree.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

from autosync.pictures.trace_file import RankTrace, choose_steps, read_trace
from autosync.plan.identity import plan_id
from autosync.plan.lowering import lower
from autosync.simulators.timeline.simulator import TimelineSimulator, open_timeline
from autosync.specs.cluster import ClusterSpec
from autosync.specs.cluster_file import load_cluster
from autosync.specs.model import ModelSpec
from autosync.specs.model_file import load_model
from autosync.strategy.bundle import Bundle
from autosync.strategy.canonical import strategy_id
from autosync.strategy.presets import build_preset
from autosync.strategy.representation import Strategy
from autosync.trials.contestant import Contestant
from autosync.trials.service import TrialService
from autosync.trials.statistics import slowest_rank

MODEL, CLUSTER = "squeezenet@x2", "4-hosts"
PRESETS = ("caramel", "ps_load_balanced", "fsdp")
NUM_WARMUP, NUM_STEPS = 6, 12
CLOSE_SECONDS = 2e-3
STEP_TOLERANCE, ORDER_KEPT = 0.05, 0.95


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=MODEL)
    parser.add_argument("--cluster", default=CLUSTER)
    options = parser.parse_args()
    model, cluster = load_model(options.model), load_cluster(options.cluster)
    simulator = open_timeline(model, cluster)
    found = []
    with (
        tempfile.TemporaryDirectory() as folder,
        TrialService(target=options.model, model=model, cluster=cluster, folder=Path(folder)) as service,
    ):
        for preset in PRESETS:
            print(f"{preset} ...", file=sys.stderr)
            strategy = build_preset(preset, model, cluster)
            found.append({"strategy": preset, **compared(strategy, service, simulator, Path(folder) / preset)})
    holds = all(one["holds"] for one in found)
    print(
        json.dumps({"model": options.model, "cluster": options.cluster, "holds": holds, "strategies": found}, indent=2)
    )
    return 0 if holds else 1


def compared(strategy: Strategy, service: TrialService, simulator: TimelineSimulator, folder: Path) -> dict[str, Any]:
    """Step times, and the share of pairs of transfers that end in the same order."""
    folder.mkdir()
    seconds, cpu_share = measured(strategy, service)
    ranks = traced(strategy, service, folder)
    (predicted,) = simulator.predict([strategy])
    path = folder / "simulated.json"
    path.write_text(json.dumps(simulator.trace(strategy)), encoding="utf-8")
    simulated = read_trace(path)
    kept, pairs = 0, 0
    for ours, theirs in zip(simulated, ranks, strict=False):
        same, of = agreement(ends_of(ours), ends_of(theirs))
        kept, pairs = kept + same, pairs + of
    ratio, order = predicted.seconds / seconds, kept / pairs if pairs else 1.0
    return {
        "measured_seconds": seconds,
        "cpu_share": cpu_share,
        "simulated_seconds": predicted.seconds,
        "ratio": ratio,
        "num_pairs": pairs,
        "order_kept": order,
        "holds": abs(ratio - 1) <= STEP_TOLERANCE and order >= ORDER_KEPT,
    }


def bundle_of(strategy: Strategy, model: ModelSpec, cluster: ClusterSpec) -> Bundle:
    return Bundle(
        strategy=strategy,
        model=model,
        cluster=cluster,
        strategy_id=strategy_id(strategy, model, cluster),
        plan_id=plan_id(lower(strategy, model, cluster), cluster),
    )


def measured(strategy: Strategy, service: TrialService) -> tuple[float, float]:
    """The median step without a timeline, and the share of processor time in use."""
    bundle = bundle_of(strategy, service.model, service.cluster)
    service.prepare(Contestant(name="plain", bundle=bundle))
    service.run("plain", NUM_WARMUP)
    samples = service.run("plain", NUM_STEPS, settle=True)
    service.release("plain")
    return statistics.median(slowest_rank(samples.step_seconds)), samples.cpu_share


def traced(strategy: Strategy, service: TrialService, folder: Path) -> list[RankTrace]:
    """What the ranks wrote."""
    bundle = bundle_of(strategy, service.model, service.cluster)
    service.prepare(Contestant(name="traced", bundle=bundle, trace=folder / "trace.json"))
    service.run("traced", NUM_WARMUP + NUM_STEPS, settle=True)
    service.release("traced")
    return [rank for path in sorted(folder.glob("trace-rank*.json")) for rank in read_trace(path)]


def ends_of(rank: RankTrace) -> dict[str, float]:
    """When each transfer of an ordinary iteration ended."""
    iteration = choose_steps(rank, 1)[0].iteration
    return {span.name: span.end for span in rank.spans if span.kind == "transfer" and span.iteration == iteration}


def agreement(ours: dict[str, float], theirs: dict[str, float]) -> tuple[int, int]:
    """Of the pairs of transfers that have a measured order, how many keep it; and how many there are."""
    kept, pairs = 0, 0
    for one, other in itertools.combinations(sorted(ours.keys() & theirs.keys()), 2):
        apart = theirs[one] - theirs[other]
        if abs(apart) > CLOSE_SECONDS:
            pairs += 1
            kept += (ours[one] < ours[other]) == (apart < 0)
    return kept, pairs


if __name__ == "__main__":
    sys.exit(main())
