"""Measures how many strategies a second are predicted on one core, and the time of a prediction for 1,024 hosts.

    python benchmarks/speed/simulator_speed.py [--simulators analytical timeline] > out.json
    python benchmarks/speed/simulator_speed.py --markdown out.json                    # the tables, nothing is measured

Strategies are presets and samples of the space of ResNet50 on 8 hosts, up to 4 lanes. Every round runs all stages in a
new order, on the same strategies. A figure is the median of the rounds, with its 95 % bootstrap interval. Prints one
JSON document:

- `stages`: strategies a second of each stage. *encode* turns strategies into columns, *lower* columns into plans, and
  *tables* plans into tables; *lower_in_python* is all of that without compiled code. *analytical* begins with
  columns and *analytical_from_strategies* with strategies. *timeline* begins with strategies too, and
  *timeline_simulation* is only its simulation of existing scenes;
- `by_transfers`: microseconds a strategy, by the number of transfers in its plan; `by_hosts`: by the number of hosts;
- `large`: seconds and peak memory of one strategy of BERT-large on 1,024 hosts of two ranks each, reduced within hosts
  and then between them, in its own process that has predicted one on 64 hosts before.

Ends with 0 if every target is met (`TARGETS`, `MAX_LARGE_SECONDS`, `MAX_LARGE_BYTES`).
"""

from __future__ import annotations

import json
import os
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parents[2]))
from autosync.errors import DoesNotApplyError
from autosync.plan.compiled.lowering import Lowering
from autosync.plan.compiled.tables import tables_at
from autosync.plan.lowering import lower
from autosync.plan.tables import tables_of
from autosync.simulators.analytical.simulator import AnalyticalSimulator
from autosync.simulators.catalogue import open_simulator
from autosync.simulators.timeline.kernel import play
from autosync.simulators.timeline.simulator import TimelineSimulator
from autosync.specs.cluster import ClusterSpec
from autosync.specs.model import ModelSpec
from autosync.specs.model_file import load_model
from autosync.strategy.presets import build_preset, preset_names
from autosync.strategy.representation import Message, Strategy
from autosync.strategy.space import Limits, Space
from autosync.strategy.synchronisers.all_reduce import AllReduce
from autosync.trials.meters import peak_memory_bytes
from autosync.trials.statistics import bootstrap_interval
from benchmarks.shared import parser_of, report, run
from benchmarks.speed.lowering_speed import hosts

TARGETS = {"analytical": 20_000, "timeline": 300}
MAX_LARGE_SECONDS = 1.0
MAX_LARGE_BYTES = 2**30
NUM_HOSTS = (2, 4, 8, 16, 32, 64, 256, 1024)
SIMULATORS = ("analytical", "timeline")


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """One model on one cluster, with the code that reads its strategies."""

    model: ModelSpec
    cluster: ClusterSpec
    lowering: Lowering
    simulators: tuple[str, ...]

    def stages(self, strategies: Sequence[Strategy]) -> dict[str, Callable[[], object]]:
        """Return the stages to time."""
        columns = self.lowering.encode(strategies)
        plans = self.lowering.lower(columns)
        found: dict[str, Callable[[], object]] = {
            "encode": lambda: self.lowering.encode(strategies),
            "lower": lambda: self.lowering.lower(columns),
            "tables": lambda: [
                tables_at(plans, number, self.cluster, shapes=self.lowering.shapes, costs=self.lowering.costs)
                for number in range(len(strategies))
            ],
            "lower_in_python": lambda: [tables_of(lower(one, self.model, self.cluster)) for one in strategies],
        }
        if "analytical" in self.simulators:
            analytical = AnalyticalSimulator(self.model, self.cluster)
            known = analytical.encode(strategies)
            found["analytical"] = lambda: analytical.predict_columns(known)
            found["analytical_from_strategies"] = lambda: analytical.predict(strategies)
        if "timeline" in self.simulators:
            timeline = TimelineSimulator(self.model, self.cluster)
            scenes = [timeline.scene(strategy) for strategy in strategies]
            found["timeline"] = lambda: timeline.predict(strategies)
            found["timeline_simulation"] = lambda: [play(scene, stops_at_rest=True) for scene in scenes]
        return found


def drawn(model: ModelSpec, cluster: ClusterSpec, count: int, seed: int) -> list[Strategy]:
    """Return the presets that apply, then samples of the space."""
    found: list[Strategy] = []
    for name in preset_names():
        try:
            found.append(build_preset(name, model, cluster))
        except DoesNotApplyError as problem:
            sys.stderr.write(f"left out: {name}: {problem}\n")
    found = [one for one in found if 1 + max(message.lane for message in one.messages) <= Limits().max_lanes]
    space, rng = Space(model=model, cluster=cluster), random.Random(seed)
    found += [space.sample(rng) for _ in range(count - len(found))]
    rng.shuffle(found)
    return found[:count]


def timed(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def rates(bench: Bench, strategies: Sequence[Strategy], rounds: int, seed: int) -> dict[str, Any]:
    """Return the strategies a second of each stage."""
    stages, rng = bench.stages(strategies), random.Random(seed)
    seconds: dict[str, list[float]] = {name: [] for name in stages}
    for work in stages.values():
        work()
    for number in range(rounds):
        for name in rng.sample(sorted(stages), len(stages)):
            seconds[name].append(timed(stages[name]))
        sys.stderr.write(f"round {number + 1} of {rounds}\n")
    found: dict[str, Any] = {}
    for name, taken in seconds.items():
        interval = bootstrap_interval([len(strategies) / one for one in taken])
        found[name] = {"per_second": round(interval.value), "low": round(interval.low), "high": round(interval.high)}
        if name in TARGETS:
            found[name] |= {"target": TARGETS[name], "met": interval.value >= TARGETS[name]}
    return found


def by_transfers(bench: Bench, strategies: Sequence[Strategy], repeats: int) -> list[dict[str, Any]]:
    """Return a row for each sixth of the strategies, sorted by their number of transfers."""
    counted = sorted(strategies, key=lambda one: _num_transfers(bench, one))
    size = -(-len(counted) // 6)
    rows: list[dict[str, Any]] = []
    for begin in range(0, len(counted), size):
        some = counted[begin : begin + size]
        stages = bench.stages(some)
        row: dict[str, Any] = {
            "transfers": round(statistics.fmean([_num_transfers(bench, one) for one in some])),
            "operations": round(statistics.fmean([_num_operations(bench, one) for one in some])),
        }
        for name in [name for name in _CURVES if name in stages]:
            stages[name]()
            taken = statistics.median([timed(stages[name]) for _ in range(repeats)])
            row[f"{name}_microseconds"] = round(taken / len(some) * 1e6, 1)
        rows.append(row)
    return rows


_CURVES = ("lower", "analytical", "timeline", "timeline_simulation")


def _num_operations(bench: Bench, strategy: Strategy) -> int:
    return len(bench.lowering.lower(bench.lowering.encode([strategy])).operations.kind)


def _num_transfers(bench: Bench, strategy: Strategy) -> int:
    return int(bench.lowering.lower(bench.lowering.encode([strategy])).operations.is_transfer.sum())


def by_hosts(model: ModelSpec, simulators: Sequence[str], repeats: int) -> list[dict[str, Any]]:
    """Return the seconds of the first and of further predictions, for stock DDP's strategy on more and more hosts."""
    rows: list[dict[str, Any]] = []
    for count in NUM_HOSTS:
        cluster = hosts(count)
        strategy, row = build_preset("ddp", model, cluster), {"hosts": count}
        for name in simulators:
            simulator = open_simulator(name, model, cluster)
            first = timed(lambda one=simulator, s=strategy: one.predict([s]))
            more = [timed(lambda one=simulator, s=strategy: one.predict([s])) for _ in range(repeats)]
            row |= {f"{name}_first_seconds": round(first, 6), f"{name}_seconds": round(statistics.median(more), 6)}
        sys.stderr.write(f"{count} hosts\n")
        rows.append(row)
    return rows


def of_two_ranks(count: int) -> ClusterSpec:
    cluster = hosts(count)
    return replace(cluster, nodes=tuple(replace(node, devices=2, intra_bandwidth=1e10) for node in cluster.nodes))


def hierarchical(model: ModelSpec) -> Strategy:
    """Return a strategy with a message for each variable, reduced within hosts and then between them.

    It overlaps the next forward pass.
    """
    messages = (
        Message(
            parts=(variable.name,),
            synchroniser=AllReduce(topology="ring", hierarchical=True),
            lane=variable.ready % 4,
            priority=variable.use,
        )
        for variable in model.variables
    )
    return Strategy(overlap="forward", messages=tuple(messages))


def predict_large(name: str) -> dict[str, Any]:
    """Predict once in this process, after a smaller one of the kind; the peak memory is that of the whole process."""
    model = load_model("bert_large")
    strategy = hierarchical(model)
    open_simulator(name, model, of_two_ranks(64)).predict([strategy])
    cluster = of_two_ranks(1024)
    seconds = timed(lambda: open_simulator(name, model, cluster).predict([strategy]))
    return {
        "seconds": round(seconds, 4),
        "peak_memory_bytes": peak_memory_bytes(),
    }


def large(simulators: Sequence[str]) -> dict[str, Any]:
    """Run each simulator in its own process."""
    found: dict[str, Any] = {}
    for name in simulators:
        command = [sys.executable, __file__, "--large", name]
        done = subprocess.run(command, stdout=subprocess.PIPE, check=True, timeout=900, text=True)
        one = json.loads(done.stdout)
        one["met"] = one["seconds"] <= MAX_LARGE_SECONDS and one["peak_memory_bytes"] <= MAX_LARGE_BYTES
        found[name] = one
    return found


def tables(document: dict[str, Any]) -> Iterator[str]:
    """Yield a result in Markdown."""
    about = f"{document['strategies']} strategies of {document['model']} on {document['hosts']} hosts"
    yield f"{about}, a second of one core:"
    yield from _table([{"stage": name, **figures} for name, figures in document["stages"].items()])
    yield from _table(document["by_transfers"])
    yield from _table(document["by_hosts"])
    yield "BERT-large on 1,024 hosts of two ranks each:"
    yield from _table([{"simulator": name, **figures} for name, figures in document["large"].items()])


def _table(rows: Sequence[dict[str, Any]]) -> Iterator[str]:
    columns = list(dict.fromkeys(name for row in rows for name in row))
    yield ""
    yield f"| {' | '.join(name.replace('_', ' ') for name in columns)} |"
    yield f"|{'---|' * len(columns)}"
    for row in rows:
        yield f"| {' | '.join(_cell(row.get(name, '')) for name in columns)} |"
    yield ""


def _cell(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:,}" if isinstance(value, int | float) else str(value)


def main() -> int:
    parser = parser_of(__doc__)
    parser.add_argument("--strategies", type=int, default=256, help="how many strategies a round looks at")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--simulators", nargs="+", choices=SIMULATORS, default=SIMULATORS)
    parser.add_argument("--large", choices=SIMULATORS, help="only predict the large strategy, in this process")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="print the tables of this result")
    options = parser.parse_args()
    if options.markdown:
        print("\n".join(tables(json.loads(options.markdown.read_text(encoding="utf-8")))))
        return 0
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    if options.large:
        print(json.dumps(predict_large(options.large)))
        return 0
    model, cluster = load_model("resnet50"), hosts(8)
    simulators = tuple(options.simulators)
    bench = Bench(model=model, cluster=cluster, lowering=Lowering(model, cluster), simulators=simulators)
    strategies = drawn(model, cluster, options.strategies, options.seed)
    stages = rates(bench, strategies, options.rounds, options.seed)
    at_scale = large(simulators)
    passed = all(one.get("met", True) for one in (*stages.values(), *at_scale.values()))
    document = {
        "model": model.name,
        "hosts": 8,
        "strategies": len(strategies),
        "rounds": options.rounds,
        "stages": stages,
        "by_transfers": by_transfers(bench, strategies, 3),
        "by_hosts": by_hosts(model, simulators, 5),
        "large": at_scale,
        "passed": passed,
    }
    return report(document, holds=passed)


if __name__ == "__main__":
    run(main)
