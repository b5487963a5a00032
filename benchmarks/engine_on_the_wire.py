"""What strategies gain under the engine on emulated links: `python benchmarks/engine_on_the_wire.py > gains.json`.

Everything is measured by `compare`: replayed models, contestants in turn, stock torch DDP among them.

(a) slow: 32 MB on eight hosts at 1 Gbit/s of which one has 300 Mbit/s. Servers on the seven fast hosts against our ring
    all-reduce. Bound: the better of the shard sizes is 1.5 times as fast.
(b) hierarchical: 16 MB on four hosts of two ranks each at 500 Mbit/s. Within the hosts first, against a flat ring in
    the same messages. Bound: faster.
(c) convnet: 43 MB in 60 layers with 340 ms of compute on four hosts at 1 Gbit/s. Several exact strategies. Bound: the
    best of them takes 580 ms a step or less.
(d) repeats: (a) again and again, each time under a seed of its own, with strategies prepared anew. Bound: servers are
    found faster than the ring every time.

Ends with 1 where a bound is not held. It has eight ranks on this machine's processors: a study that is flagged
`busy_cpu` measured the machine and not the links.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from autosync.errors import AutosyncError
from autosync.specs.cluster import ClusterSpec
from autosync.specs.model import ModelSpec
from autosync.strategy.presets import build_preset
from autosync.strategy.representation import AllReduce, Message, ParameterServer, Sharded, Strategy
from autosync.trials.compare import Comparison, Design, compare
from autosync.trials.contestant import Contestant
from autosync.trials.entrants import TORCH_DDP
from autosync.trials.service import TrialService

sys.path.insert(0, str(Path(__file__).parent))
from wire_cases import (
    all_reduce_seconds,
    contestants_of,
    convnet,
    emulated,
    merged,
    one_gradient,
    served_in_shards,
)

SLOW_BYTES = 32_000_000
SLOW_MEGABITS = (1000.0,) * 7 + (300.0,)
FAST_HOSTS = tuple(f"n{number}" for number in range(7))
BOUND_SPEEDUP = 1.5
HIERARCHICAL_BYTES = 16_000_000
HIERARCHICAL_MEGABITS = 500.0
CONVNET_SECONDS = 0.340
CONVNET_HOSTS = 4
CONVNET_MEGABITS = 1000.0
BOUND_SECONDS = 0.580
# Names of what bounds are about.
RING = "ring"
SERVERS = "servers"


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One comparison: a model on a cluster, and who contests."""

    model: ModelSpec
    cluster: ClusterSpec
    contestants: Sequence[Contestant]
    design: Design


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=STUDIES, action="append", help="this study (more than once: these)")
    parser.add_argument("--steps", type=int, default=36, help="measured steps of each contestant")
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--budget-seconds", type=float, default=400.0, help="for the steps of one comparison")
    parser.add_argument("--repeats", type=int, default=10, help="comparisons of (d)")
    parser.add_argument("--limit-seconds", type=float, default=1500.0, help="begin no comparison after this time")
    options = parser.parse_args()
    began = time.monotonic()
    deadline = began + options.limit_seconds
    document: dict[str, Any] = {"load": os.getloadavg()[0]}
    for name in options.only or STUDIES:
        if time.monotonic() > deadline:
            document[name] = {"holds": False, "why": "there was no time left"}
            continue
        document[name] = STUDIES[name](options, deadline)
        told = "holds" if document[name]["holds"] else "DOES NOT HOLD"
        print(f"{name}: {told}", file=sys.stderr, flush=True)
    holds = all(study["holds"] for study in document.values() if isinstance(study, dict))
    document = {"holds": holds, "seconds": round(time.monotonic() - began, 1), **document}
    print(json.dumps(document, indent=2))
    return 0 if holds else 1


# -------------------------------------------------------------------------------------------------------- studies


def study_slow(options: argparse.Namespace, _: float) -> dict[str, Any]:
    """Servers on the fast hosts against the ring, with shards of several sizes."""
    (comparison,) = compared(slow_case(options, SHARDS), seeds=(0,))
    found = [ratio for ratio in comparison.ratios if ratio.name.startswith(SERVERS)]
    best = max((ratio.speedup.value for ratio in found), default=0.0)
    slowest = min(SLOW_MEGABITS)
    return {
        "holds": best >= BOUND_SPEEDUP,
        "best_speedup": best,
        "wire_seconds": {
            RING: all_reduce_seconds(SLOW_BYTES, len(SLOW_MEGABITS), slowest),
            SERVERS: SLOW_BYTES * 8 / (slowest * 1e6),
        },
        **_told(comparison),
    }


def study_hierarchical(options: argparse.Namespace, _: float) -> dict[str, Any]:
    """Within hosts first, against a flat ring."""
    cluster = emulated(*(HIERARCHICAL_MEGABITS,) * 4, devices=2)
    model = one_gradient(HIERARCHICAL_BYTES)
    strategies = []
    for name, hierarchical in ((RING, False), ("hierarchical", True)):
        synchroniser = AllReduce(topology="ring", hierarchical=hierarchical)
        message = Message(parts=("all.weight",), synchroniser=synchroniser, slice_bytes=2_000_000)
        strategies.append((name, Strategy(messages=(message,))))
    native = Message(parts=("all.weight",), synchroniser=AllReduce(hierarchical=True), slice_bytes=2_000_000)
    strategies.append(("hierarchical, native between hosts", Strategy(messages=(native,))))
    contestants = [*contestants_of(strategies, model, cluster), Contestant(name=TORCH_DDP)]
    (comparison,) = compared(
        Case(model=model, cluster=cluster, contestants=contestants, design=design_of(options)), seeds=(0,)
    )
    verdicts = {ratio.name: ratio.verdict for ratio in comparison.ratios}
    flat = all_reduce_seconds(HIERARCHICAL_BYTES, 8, HIERARCHICAL_MEGABITS)
    between = all_reduce_seconds(HIERARCHICAL_BYTES, 4, HIERARCHICAL_MEGABITS)
    return {
        "holds": verdicts.get("hierarchical") == "faster",
        "wire_seconds": {RING: flat, "hierarchical": between},
        **_told(comparison),
    }


def study_convnet(options: argparse.Namespace, _: float) -> dict[str, Any]:
    """A step's compute and bytes together: who hides most of the one behind the other."""
    model = convnet(CONVNET_SECONDS)
    cluster = emulated(*(CONVNET_MEGABITS,) * CONVNET_HOSTS)
    contestants = [Contestant(name=TORCH_DDP), *contestants_of(convnet_strategies(model, cluster), model, cluster)]
    # Transfers that go on into the next step: blocks of a step or two would show their beginning alone.
    design = replace(design_of(options), num_steps=2 * options.steps)
    (comparison,) = compared(Case(model=model, cluster=cluster, contestants=contestants, design=design), seeds=(0,))
    best = min(
        (one.median_seconds for name, one in comparison.measurements.items() if name != TORCH_DDP), default=float("inf")
    )
    return {
        "holds": best <= BOUND_SECONDS,
        "best_seconds": best,
        "num_bytes": model.num_bytes,
        "compute_seconds": model.step_seconds,
        "wire_seconds": all_reduce_seconds(model.num_bytes, CONVNET_HOSTS, CONVNET_MEGABITS),
        **_told(comparison),
    }


def convnet_strategies(model: ModelSpec, cluster: ClusterSpec) -> list[tuple[str, Strategy]]:
    """Exact strategies by name: what a message is, who sums it, in how many lanes."""
    ring, native = AllReduce(topology="ring"), AllReduce()
    servers = [ParameterServer(server=node.name) for node in cluster.nodes]
    megabyte = 1_000_000
    scattered = [Sharded(topology="ring")]
    return [
        (
            "ring, slices of 1 MB, 2 bands",
            merged(model, [ring], merge_bytes=megabyte, slice_bytes=megabyte, num_bands=2),
        ),
        ("ring, 2 MB, 4 bands", merged(model, [ring], merge_bytes=2 * megabyte, num_bands=4)),
        ("ring, 2 MB, 6 bands", merged(model, [ring], merge_bytes=2 * megabyte, num_bands=6)),
        ("native, 2 MB, 4 bands", merged(model, [native], merge_bytes=2 * megabyte, num_bands=4)),
        ("sharded, 2 MB, 4 bands", merged(model, scattered, merge_bytes=2 * megabyte, num_bands=4)),
        ("servers, 1 MB, 8 lanes", merged(model, servers, merge_bytes=megabyte, num_lanes=8)),
        ("bytescheduler", build_preset("bytescheduler", model, cluster)),
    ]


def study_repeats(options: argparse.Namespace, deadline: float) -> dict[str, Any]:
    """How often servers on the fast hosts are found faster than the ring."""
    comparisons = compared(slow_case(options, SHARDS[:1], stock=False), seeds=range(options.repeats), deadline=deadline)
    verdicts = [comparison.ratios[0].verdict for comparison in comparisons]
    return {
        "holds": len(verdicts) == options.repeats and set(verdicts) == {"faster"},
        "num_comparisons": len(verdicts),
        "num_faster": verdicts.count("faster"),
        "comparisons": [_told(comparison) for comparison in comparisons],
    }


STUDIES: dict[str, Callable[[argparse.Namespace, float], dict[str, Any]]] = {
    "slow": study_slow,
    "hierarchical": study_hierarchical,
    "convnet": study_convnet,
    "repeats": study_repeats,
}

SHARDS = ((500_000, 4), (250_000, 4), (1_000_000, 4))
"""The shards of the servers' contestants: their bytes, and in how many lanes they travel."""


# ------------------------------------------------------------------------------------------------------ measuring


def slow_case(options: argparse.Namespace, shards: Sequence[tuple[int, int]], *, stock: bool = True) -> Case:
    """The ring, stock DDP, and servers with such shards, where one host is slow."""
    cluster, model = emulated(*SLOW_MEGABITS), one_gradient(SLOW_BYTES)
    whole = Message(parts=("all.weight",), synchroniser=AllReduce(topology="ring"))
    strategies = [(RING, Strategy(messages=(whole,)))]
    for shard_bytes, num_lanes in shards:
        served = served_in_shards(model, FAST_HOSTS, shard_bytes=shard_bytes, num_lanes=num_lanes)
        strategies.append((f"{SERVERS}, {shard_bytes / 1e6:g} MB in {num_lanes} lanes", served))
    contestants = contestants_of(strategies, model, cluster)
    if stock:
        contestants.append(Contestant(name=TORCH_DDP))
    return Case(model=model, cluster=cluster, contestants=contestants, design=design_of(options))


def design_of(options: argparse.Namespace) -> Design:
    return Design(num_steps=options.steps, num_rounds=options.rounds, budget_seconds=options.budget_seconds)


def compared(case: Case, *, seeds: Sequence[int], deadline: float | None = None) -> list[Comparison]:
    """The case's comparison under each seed, until the deadline; all of them on one service."""
    found: list[Comparison] = []
    with (
        tempfile.TemporaryDirectory(prefix="autosync-wire-") as folder,
        TrialService(target=case.model.name, model=case.model, cluster=case.cluster, folder=Path(folder)) as service,
    ):
        for seed in seeds:
            if deadline is not None and time.monotonic() > deadline:
                break
            found.append(
                compare(
                    service,
                    case.contestants,
                    design=case.design,
                    seed=seed,
                    compute_seconds=case.model.step_seconds,
                    progress=_tell,
                )
            )
            for ratio in found[-1].ratios:
                _tell(str(ratio))
    return found


def _tell(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _told(comparison: Comparison) -> dict[str, Any]:
    first = next(iter(comparison.measurements))
    return {
        "num_rounds": comparison.num_rounds,
        "steps_per_round": comparison.steps_per_round,
        "contestants": {
            name: {
                "seconds": one.median_seconds,
                "low": one.low_seconds,
                "high": one.high_seconds,
                "exposed_seconds": one.exposed_seconds,
                "cpu_share": one.cpu_share,
                "sent_bytes": max(one.bytes_sent) if one.bytes_sent else None,
                "flags": list(one.flags),
            }
            for name, one in comparison.measurements.items()
        },
        "speedups_against": first,
        "speedups": {
            ratio.name: {
                "value": ratio.speedup.value,
                "low": ratio.speedup.low,
                "high": ratio.speedup.high,
                "verdict": ratio.verdict,
            }
            for ratio in comparison.ratios
        },
        "failures": {name: f"{one.kind}: {one.message}" for name, one in comparison.failures.items()},
    }


if __name__ == "__main__":
    try:
        sys.exit(main())
    except AutosyncError as error:
        sys.exit(f"error: {error}")
