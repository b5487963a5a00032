"""Explains the distance of winners to the bound, after `tune_suite.py real --folder FOLDER`.

    python benchmarks/tune_suite/bound_gap.py FOLDER > gap.json

The bound counts bytes and compute, each perfectly hidden behind the other. Between it and the measured step of a
study's winner lie four worlds. The timeline simulates the first three, with the links as they were probed:

- `bytes`: messages, local work and the travel time between hosts cost nothing. Only the order remains: waits between
  operations, links that are idle at times, and ranks that receive more than the least.
- `messages`: every message, transfer and local operation takes its time, on processors without other work.
- `processors`: all ranks share the processors of one machine, as on a testbed. This is the prediction.
- `measured`, by the proof.

The winner was found in the last world. So each of the first three is searched too (`best`), by the default proposer
without trials, which knows the exact times of strategies there: the result shows how near a search would come to the
bound if that world were real. It takes minutes for each study. The bound is that of strategies without stages, so
winners that divide the model are left out. The document is on stdout, a table of it on stderr. Ends
with 1 if a winner is much slower than the best in `processors`, or if there is none.
"""

from __future__ import annotations

import json
import math
import random
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from autosync.datasets.studies import STUDIES_FOLDER
from autosync.plan.bound import bound
from autosync.plan.bound_terms import rates_of
from autosync.search.candidates import known_candidates
from autosync.search.domain import SpaceDomain
from autosync.search.ground_builder import simulator_fields
from autosync.search.proposers.catalogue import open_proposer
from autosync.search.proposers.interface import Ground
from autosync.simulators.shared.costs import usual_costs
from autosync.simulators.timeline.simulator import TimelineSimulator
from autosync.specs.cluster import ClusterSpec
from autosync.specs.cluster_file import load_cluster
from autosync.specs.costs import Costs, ProcessorCosts
from autosync.specs.model import ModelSpec
from autosync.specs.model_file import load_model
from autosync.strategy.bundle import load_bundle
from autosync.strategy.representation import Strategy
from autosync.strategy.space import Limits, Space

sys.path.append(str(Path(__file__).parents[2]))
from benchmarks.shared import parser_of, run, tell

WORLDS = ("bytes", "messages", "processors")
PROPOSER = "learned"
NUM_PICKS = 8
LEAST_SHARE = 0.95
"""Each winner should reach this share of the best that is found in the world `processors`."""
FREE_RATE = 1e15


def main() -> int:
    parser = parser_of(__doc__)
    parser.add_argument("folder", type=Path, help="where `tune_suite.py real` kept its studies")
    parser.add_argument("--thoroughness", type=float, default=1, help="of the search in each world")
    options = parser.parse_args()
    found, divided = [], []
    for study in sorted((options.folder / STUDIES_FOLDER).iterdir()):
        if (study / "summary.json").is_file() and not study.name.endswith("-0"):
            won = read(study)
            if won.strategy.stages:
                divided.append(won.name)
                tell(f"{won.name}: left out, the winner divides the model")
                continue
            found.append(judged(won, options.thoroughness))
            tell(line(found[-1]))
    missed = [one["target"] for one in found if one["share_of_processors"] < LEAST_SHARE]
    document = {"studies": found, "overall": overall(found), "missed": missed, "divided": divided}
    tell(f"geometric means: {document['overall']}")
    print(json.dumps(document, indent=2))
    return 0 if found and not missed else 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Won:
    """The result of a study."""

    name: str
    model: ModelSpec
    cluster: ClusterSpec
    strategy: Strategy
    seconds: float


def read(study: Path) -> Won:
    """Return a study's winner."""
    summary = json.loads((study / "summary.json").read_text("utf-8"))
    model, cluster = load_model(str(study / "model.yaml")), load_cluster(str(study / "cluster.yaml"))
    winner = next(one for one in summary["contests"] if one["name"] == summary["winner"]["name"])
    strategy = load_bundle(study / "best.yaml").strategy
    name = f"{summary['model']}/{summary['cluster']}"
    return Won(name=name, model=model, cluster=cluster, strategy=strategy, seconds=winner["seconds"]["value"])


def judged(won: Won, thoroughness: float) -> dict[str, Any]:
    """Return one study's figures: the winner in every world, and the best of each."""
    least = bound(won.model, won.cluster, rates=rates_of(won.cluster), even_rows=True)
    worlds = {name: world(name, won.model, won.cluster) for name in WORLDS}
    winner = {name: simulator.predict([won.strategy])[0].seconds for name, simulator in worlds.items()}
    best = {name: best_of(won, simulator, thoroughness) for name, simulator in worlds.items()}
    best = {name: min(best[name], winner[name]) for name in WORLDS}
    return {
        "target": won.name,
        "bound_seconds": least.seconds,
        "bound_is": str(least.largest),
        "winner_seconds": {**winner, "measured": won.seconds},
        "best_seconds": best,
        "share_of_processors": best["processors"] / won.seconds,
    }


def world(name: str, model: ModelSpec, cluster: ClusterSpec) -> TimelineSimulator:
    """Return a timeline of a world, in which fewer things cost time than in reality."""
    costs = usual_costs(cluster)
    if name != "processors":
        costs = replace(costs, num_processors=None)
    if name == "bytes":
        costs = without_costs(costs)
    return TimelineSimulator(model, cluster, costs=costs)


def without_costs(costs: Costs) -> Costs:
    """Return the costs of links alone; all other costs are 0."""
    nothing: dict[str, Any] = {}
    for field in fields(ProcessorCosts):
        value = getattr(costs.processor, field.name)
        nothing[field.name] = (0.0, 0.0) if isinstance(value, tuple) else 0.0
    return replace(
        costs,
        hop_seconds=0.0,
        rate_added=FREE_RATE,
        local_rates=dict.fromkeys(costs.local_rates, FREE_RATE),
        processor=ProcessorCosts(**nothing),
        within=replace(costs.within, hop_seconds=None),
    )


def best_of(won: Won, simulator: TimelineSimulator, thoroughness: float) -> float:
    """Return the step time of the fastest strategy that the default proposer finds if it knows the world exactly."""
    domain = SpaceDomain(space=Space(model=won.model, cluster=won.cluster))
    ground = Ground(
        model=won.model,
        cluster=won.cluster,
        domain=domain,
        limits=Limits(),
        known=tuple(known_candidates(won.model, won.cluster, domain.contains)),
        **{**simulator_fields("timeline", won.model, won.cluster), "simulator": simulator},
    )
    ground = replace(ground, num_simulated=round(thoroughness * ground.num_simulated))
    picks = open_proposer(PROPOSER, ground).propose([], NUM_PICKS, random.Random(won.name))
    strategies = [one.strategy for one in picks if one.strategy is not None]
    return min(one.seconds for one in simulator.predict(strategies))


def line(judgement: Mapping[str, Any]) -> str:
    """Return a row: the bound, the winner's step in each world, and the best of each."""
    cells = [f"{judgement['bound_seconds'] * 1e3:.1f}"]
    cells += [f"{seconds * 1e3:.1f}" for seconds in judgement["winner_seconds"].values()]
    cells += [f"{seconds * 1e3:.1f}" for seconds in judgement["best_seconds"].values()]
    return f"| {judgement['target']} | {' | '.join(cells)} |"


def overall(found: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Return the shares of the bound, as geometric means over the studies."""
    return dict(shares(found)) if found else {}


def shares(found: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, float]]:
    """Yield the share for each world, of the winner and of the best."""
    for who in ("winner_seconds", "best_seconds"):
        for name in found[0][who]:
            logs = [math.log(one["bound_seconds"] / one[who][name]) for one in found]
            yield f"{who.partition('_')[0]} {name}", round(math.exp(sum(logs) / len(logs)), 3)


if __name__ == "__main__":
    run(main)
