"""Measures the share of a step that ranks lose to the slowest one, with examples dealt by count and by cost.

The sizes of trees are drawn from a Pareto distribution, whose tail is heavy. Batches in which a single tree takes
longer than a rank's fair share are drawn again, because no deal helps there, and so are batches in which dealing by
count is predicted to lose less than a quarter of the step (`batches_drawn` counts all of them). Each rank's part of a
batch is run by itself, on one thread, the parts of both deals in turn. So ranks do not disturb each other, as on
machines of their own. The shortest of several rounds counts, because other programs only make a step longer. Costs are
measured before, on another batch. Ends with 1 if dealing by cost loses more than 5 % of the step in the mean.

    python benchmarks/graphs/dealing.py > dealing.json
"""

from __future__ import annotations

import random
import runpy
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from autosync.graphs.dealing import lost_share
from autosync.graphs.example_costs import StepCosts, compare_deals, measure_costs
from autosync.graphs.families import tree
from autosync.graphs.graph_task import GraphTask
from autosync.graphs.input_graph import InputGraph

sys.path.append(str(Path(__file__).parents[2]))
from benchmarks.shared import parser_of, report, run, tell

EXAMPLE = Path(__file__).parents[2] / "examples/graphs/tree_lstm.py"
MOST_LOST = 0.05
LEAST_LOST_BEFORE = 0.25
"""A batch in which dealing by count is predicted to lose less is drawn again."""
NUM_WORDS, NUM_LABELS = 2_000, 3


def main() -> int:
    parser = parser_of(__doc__)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--batch-size", type=int, default=64, help="examples of a rank")
    parser.add_argument("--batches", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--tail", type=float, default=1.3, help="the exponent of the distribution")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    task = runpy.run_path(str(EXAMPLE))["graph_task"]()
    chance = random.Random(1)
    size = arguments.ranks * arguments.batch_size
    costs = measure_costs(task.model, heavy_batch(chance, arguments.tail, size), task.loss)
    tell(f"{costs.vertex_seconds * 1e6:.1f} us for each vertex, {costs.level_seconds * 1e3:.2f} ms for each level")
    rows: list[dict[str, Any]] = []
    num_drawn = 0
    while len(rows) < arguments.batches:
        graphs = heavy_batch(chance, arguments.tail, size)
        num_drawn += 1
        if not can_be_dealt(graphs, costs, arguments.ranks):
            continue
        rows.append(measure(task, graphs, costs, arguments.ranks, arguments.rounds))
        told = {key: f"{row:.1%}" for key, row in rows[-1].items() if key.startswith("lost")}
        tell(f"batch {len(rows)} of {arguments.batches}: {told}")
    summary = {key: float(np.mean([row[key] for row in rows])) for key in rows[0]}
    holds = summary["lost_by_cost"] <= MOST_LOST
    document = {
        "ranks": arguments.ranks,
        "batch_size": arguments.batch_size,
        "batches_drawn": num_drawn,
        "costs": {"vertex_seconds": costs.vertex_seconds, "level_seconds": costs.level_seconds},
        "mean": summary,
        "times_as_fast": summary["slowest_by_count"] / summary["slowest_by_cost"],
        "holds": holds,
        "batches": rows,
    }
    return report(document, holds=holds)


def heavy_batch(chance: random.Random, tail: float, count: int) -> list[InputGraph]:
    """Return trees whose numbers of leaves have a heavy tail."""
    return [random_tree(chance, int(4 * chance.paretovariate(tail))) for _ in range(count)]


def can_be_dealt(graphs: Sequence[InputGraph], costs: StepCosts, num_ranks: int) -> bool:
    """Whether much is lost by count, and no tree by itself takes longer than the mean rank of a deal by cost."""
    deals = compare_deals(graphs, num_ranks, costs)
    if deals.by_count.lost_share < LEAST_LOST_BEFORE:
        return False
    fair = sum(deals.by_cost.rank_costs) / num_ranks
    return all(costs.vertex_seconds * one.num_vertices + costs.level_seconds * one.depth <= fair for one in graphs)


def random_tree(chance: random.Random, num_leaves: int) -> InputGraph:
    """Return a tree in which any two neighbours were joined at random, so its depth grows slowly with its size."""
    roots = list(range(num_leaves))
    parents = [-1] * num_leaves
    while len(roots) > 1:
        place = chance.randrange(len(roots) - 1)
        for child in roots[place : place + 2]:
            parents[child] = len(parents)
        roots[place : place + 2] = [len(parents)]
        parents.append(-1)
    words = [chance.randrange(NUM_WORDS) if vertex < num_leaves else 0 for vertex in range(len(parents))]
    labels = [chance.randrange(NUM_LABELS) for _ in parents]
    return tree(parents, torch.tensor(words), target=torch.tensor(labels))


def measure(
    task: GraphTask, graphs: Sequence[InputGraph], costs: StepCosts, num_ranks: int, num_rounds: int
) -> dict[str, Any]:
    """Return the lost shares of a global batch, and the seconds of its slowest ranks, under both deals."""
    both = compare_deals(graphs, num_ranks, costs)
    deals = {"count": both.by_count, "cost": both.by_cost}
    parts = [(name, rank) for name in deals for rank in range(num_ranks)]
    seconds: dict[tuple[str, int], list[float]] = {part: [] for part in parts}
    for _ in range(num_rounds + 1):
        for name, rank in parts:
            own = [graphs[one] for one in deals[name].examples[rank]]
            seconds[name, rank].append(step_seconds(task, own))
    # The first round warms up.
    taken = {part: min(each[1:]) for part, each in seconds.items()}
    found: dict[str, Any] = {}
    for name, dealt in deals.items():
        of_ranks = [taken[name, rank] for rank in range(num_ranks)]
        found[f"lost_by_{name}"] = lost_share(of_ranks)
        found[f"slowest_by_{name}"] = max(of_ranks)
        found[f"lost_by_{name}_as_told"] = dealt.lost_share
    return found


def step_seconds(task: GraphTask, graphs: Sequence[InputGraph]) -> float:
    """Return the processor time of the passes on some graphs."""
    start = time.process_time()
    task.model.zero_grad()
    task.loss(task.model(graphs), graphs).backward()
    return time.process_time() - start


if __name__ == "__main__":
    run(main)
