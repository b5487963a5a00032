"""Compares the simulated timeline with the measured one: 4 minutes.

    python benchmarks/simulator_accuracy/trace_agreement.py > agreement.json

It runs every distinct preset on four emulated hosts, each once without a timeline (for the step time) and once with one
(for the order of events). The simulated trace of the same plan should have the same step time within 5 %, and a rank's
transfers should end in the same order. Pairs of transfers whose measured ends are within 2 ms have no order. Of the
others, those with equal simulated ends count as out of order. A single transfer has no order and so shows nothing of
it. Ends with 1 unless all agree, or if there is none.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import statistics
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from autosync.datasets.schema import seconds_of_steps
from autosync.errors import DoesNotApplyError
from autosync.pictures.trace_file import RankTrace, choose_steps, read_trace
from autosync.plan.bundling import bundled
from autosync.simulators.timeline.simulator import TimelineSimulator
from autosync.specs.cluster import ClusterSpec
from autosync.specs.cluster_file import load_cluster
from autosync.specs.model import ModelSpec
from autosync.specs.model_file import load_model
from autosync.strategy.bundle import Bundle
from autosync.strategy.canonical import strategy_id
from autosync.strategy.presets import build_preset, preset_names
from autosync.strategy.representation import Strategy
from autosync.trials.contestant import Contestant
from autosync.trials.service import TrialService

sys.path.append(str(Path(__file__).parents[2]))
from benchmarks.shared import parser_of, report, run, tell

MODEL, CLUSTER = "squeezenet@x2", "4-hosts"
NUM_WARMUP = 6
CLOSE_SECONDS = 2e-3
STEP_TOLERANCE, ORDER_KEPT = 0.05, 0.95


def main() -> int:
    parser = parser_of(__doc__)
    parser.add_argument("--model", default=MODEL)
    parser.add_argument("--cluster", default=CLUSTER)
    parser.add_argument("--presets", nargs="+", help="some of them instead of all that apply")
    parser.add_argument("--steps", type=int, default=12, help="that are measured of each, after six to warm up")
    options = parser.parse_args()
    model, cluster = load_model(options.model), load_cluster(options.cluster)
    simulator = TimelineSimulator(model, cluster)
    found = []
    with (
        tempfile.TemporaryDirectory() as folder,
        TrialService(target=options.model, model=model, cluster=cluster, folder=Path(folder)) as service,
    ):
        seen: dict[str, str] = {}
        for preset, strategy in strategies_of(model, cluster, options.presets).items():
            same = seen.setdefault(strategy_id(strategy, model, cluster), preset)
            if same != preset:
                tell(f"{preset} is {same} here")
                continue
            tell(f"{preset} ...")
            bench = Bench(service, simulator, options.steps)
            found.append({"strategy": preset, **bench.compared(strategy, Path(folder) / preset)})
    both = [one for one in found if one["step_holds"] and one["order_holds"]]
    missed = [one for one in found if False in {one["step_holds"], one["order_holds"]}]
    document = {"model": options.model, "cluster": options.cluster, "num_holding": len(both), "strategies": found}
    return report(document, holds=bool(found) and not missed)


def strategies_of(model: ModelSpec, cluster: ClusterSpec, presets: Sequence[str] | None) -> dict[str, Strategy]:
    """Return presets by name: the given ones, else all that apply and are exact."""
    if presets:
        return {name: build_preset(name, model, cluster) for name in presets}
    found = {}
    for name in preset_names():
        with contextlib.suppress(DoesNotApplyError):
            strategy = build_preset(name, model, cluster)
            if strategy.is_exact:
                found[name] = strategy
    return found


class Bench(NamedTuple):
    """The service and the simulator for the comparison, and the number of steps."""

    service: TrialService
    simulator: TimelineSimulator
    num_steps: int

    def compared(self, strategy: Strategy, folder: Path) -> dict[str, Any]:
        """Return the step times, and the share of pairs of transfers that end in the same order."""
        folder.mkdir()
        seconds, cpu_share = self.measured(strategy)
        measured = self.traced(strategy, folder)
        (predicted,) = self.simulator.predict([strategy])
        path = folder / "simulated.json"
        path.write_text(json.dumps(self.simulator.trace(strategy)), encoding="utf-8")
        simulated = by_rank(read_trace(path))
        assert simulated.keys() == measured.keys(), "every rank has a timeline, simulated and measured"
        ours, theirs = (ordinary_iteration(ranks) for ranks in (simulated, measured))
        found = [
            agreement(ends_of(simulated[rank], ours), ends_of(measured[rank], theirs)) for rank in sorted(simulated)
        ]
        kept, pairs = sum(same for same, _ in found), sum(of for _, of in found)
        # Transfers in only one of the two.
        unmatched = sum(
            len(ends_of(simulated[rank], ours).keys() ^ ends_of(measured[rank], theirs).keys()) for rank in simulated
        )
        ratio, order = predicted.seconds / seconds, kept / pairs if pairs else None
        return {
            "measured_seconds": seconds,
            "cpu_share": cpu_share,
            "simulated_seconds": predicted.seconds,
            "ratio": ratio,
            "num_pairs": pairs,
            "order_kept": order,
            "step_holds": abs(ratio - 1) <= STEP_TOLERANCE,
            "num_unmatched": unmatched,
            "order_holds": False if unmatched else None if order is None else order >= ORDER_KEPT,
        }

    def measured(self, strategy: Strategy) -> tuple[float, float]:
        """Return the median step without a timeline, and the share of processor time in use."""
        self.service.prepare(Contestant(name="plain", bundle=self._bundle(strategy)))
        self.service.run("plain", NUM_WARMUP)
        samples = self.service.run("plain", self.num_steps, settle=True)
        self.service.release("plain")
        return statistics.median(seconds_of_steps(samples.step_seconds)), samples.cpu_share

    def traced(self, strategy: Strategy, folder: Path) -> dict[str, RankTrace]:
        """Return the timelines that the ranks wrote."""
        bundle = self._bundle(strategy)
        self.service.prepare(Contestant(name="traced", bundle=bundle, trace=folder / "trace.json"))
        self.service.run("traced", NUM_WARMUP + self.num_steps, settle=True)
        self.service.release("traced")
        return by_rank(rank for path in folder.glob("trace-rank*.json") for rank in read_trace(path))

    def _bundle(self, strategy: Strategy) -> Bundle:
        model, cluster = self.service.model, self.service.cluster
        return bundled(strategy, model, cluster)


def by_rank(ranks: Iterable[RankTrace]) -> dict[str, RankTrace]:
    """Return the ranks by short names such as "rank 0", without the names of their hosts, which may differ."""
    return {" ".join(one.name.split()[:2]): one for one in ranks}


def ordinary_iteration(ranks: Mapping[str, RankTrace]) -> int:
    """Return a typical iteration of the first rank, because ranks that only serve have no steps of their own."""
    return choose_steps(ranks["rank 0"], 1)[0].iteration


def ends_of(rank: RankTrace, iteration: int) -> dict[str, float]:
    """Return when each transfer of an iteration ended."""
    return {span.name: span.end for span in rank.spans if span.kind == "transfer" and span.iteration == iteration}


def agreement(ours: dict[str, float], theirs: dict[str, float]) -> tuple[int, int]:
    """Return how many pairs of transfers keep their measured order, and how many pairs have one."""
    kept, pairs = 0, 0
    for one, other in itertools.combinations(sorted(ours.keys() & theirs.keys()), 2):
        apart = theirs[one] - theirs[other]
        if abs(apart) > CLOSE_SECONDS:
            pairs += 1
            kept += (ours[one] - ours[other]) * apart > 0
    return kept, pairs


if __name__ == "__main__":
    run(main)
