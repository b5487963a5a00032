"""Analyses a model of vertex functions: the structures of its examples, its policies, and the deal to ranks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from autosync import units
from autosync.errors import InputError
from autosync.graphs.choose_policy import PolicyChoice, PolicyTiming, choose_policy
from autosync.graphs.dealing import ExampleDeal
from autosync.graphs.example_costs import DealComparison, StepCosts, compare_deals, measure_costs
from autosync.graphs.graph_task import GraphTask
from autosync.graphs.input_graph import InputGraph
from autosync.graphs.policy import BatchingPolicy
from autosync.strategy.wording import count, format_table


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphAnalysis:
    """What was found: `batches` were measured, and the first of them is dealt to ranks."""

    task: GraphTask
    batches: Sequence[Sequence[InputGraph]]
    choice: PolicyChoice
    costs: StepCosts
    deals: DealComparison


def analyse_graphs(
    task: GraphTask, *, num_ranks: int, num_batches: int, num_rounds: int, batch_size: int | None = None
) -> GraphAnalysis:
    """Measure the policies on the task's first batches, and deal the first batch to ranks by its measured costs."""
    batches = task.batches(num_batches, batch_size)
    if len(batches[0]) < num_ranks:
        what = f"a batch of {len(batches[0])} examples for {num_ranks} ranks"
        raise InputError(what, rule="every rank has at least one example", hint="choose a larger batch")
    choice = choose_policy(task.model, batches, task.loss, num_rounds=num_rounds, also=[BatchingPolicy(order="naive")])
    before, task.model.policy = task.model.policy, choice.policy
    try:
        costs = measure_costs(task.model, batches[0], task.loss)
    finally:
        task.model.policy = before
    deals = compare_deals(batches[0], num_ranks, costs)
    return GraphAnalysis(task=task, batches=batches, choice=choice, costs=costs, deals=deals)


def describe_analysis(analysis: GraphAnalysis) -> str:
    """Return the analysis as text for users."""
    graphs = [graph for batch in analysis.batches for graph in batch]
    kinds = Counter(kind for graph in graphs for kind in (graph.kinds or graph.kind_names * graph.num_vertices))
    counts = ", ".join(f"{number:,} {kind}" for kind, number in sorted(kinds.items()))
    size, costs = len(analysis.batches[0]), analysis.costs
    each_vertex, each_level = units.format_time(costs.vertex_seconds), units.format_time(costs.level_seconds)
    plural = "es" if len(analysis.batches) > 1 else ""
    measured = f"{len(analysis.batches)} batch{plural} of {size}"
    return "\n".join(
        [
            f"{len(analysis.task.graphs):,} examples, of which {measured} measured",
            "",
            _structures(graphs),
            f"vertices by kind: {counts}",
            "",
            _policies(analysis.choice.timings),
            f"fastest: {analysis.choice.policy.name}",
            "",
            f"a step takes {each_vertex} for each vertex and {each_level} for each level of the deepest example",
            _deals(analysis.deals, size),
        ]
    )


def _structures(graphs: Sequence[InputGraph]) -> str:
    rows = []
    for name, numbers in _quantities(graphs).items():
        low, median, high, most = np.quantile(numbers, [0.0, 0.5, 0.9, 1.0], method="nearest")
        rows.append((name, str(low), str(median), str(high), str(most)))
    header = ("of an example", "least", "median", "90 %", "most")
    return format_table(rows, header=header, right=header[1:])


def _quantities(graphs: Sequence[InputGraph]) -> dict[str, list[int]]:
    return {"vertices": [graph.num_vertices for graph in graphs], "depth": [graph.depth for graph in graphs]}


def _policies(timings: Sequence[PolicyTiming]) -> str:
    naive = timings[0].seconds
    rows = [
        (
            one.policy.name,
            f"{one.num_groups:,}",
            f"{one.num_vertices / one.num_groups:.1f}",
            units.format_time(one.seconds),
            f"{naive / one.seconds:.2f}",
            f"{one.schedule_share:.1%}" if one.policy.order != "naive" else "",
        )
        for one in timings
    ]
    header = ("policy", "groups", "vertices a group", "time", "times as fast", "schedule")
    return format_table(rows, header=header, right=header[1:])


def _deals(deals: DealComparison, size: int) -> str:
    lines = [
        f"{size} examples on {count(deals.by_cost.num_ranks, 'rank')}, share of a step lost to the slowest rank:",
        f"  dealt by count  {deals.by_count.lost_share:6.1%}",
        f"  dealt by cost   {deals.by_cost.lost_share:6.1%}",
    ]
    return "\n".join(lines)


def analysis_fields(analysis: GraphAnalysis) -> dict[str, Any]:
    """Return the analysis as plain values for programs."""
    graphs = [graph for batch in analysis.batches for graph in batch]
    return {
        "schema": "autosync.graph_analysis/1",
        "num_examples": len(analysis.task.graphs),
        "batch_sizes": [len(batch) for batch in analysis.batches],
        "structures": _quantities(graphs),
        "policies": [_timing_fields(one) for one in analysis.choice.timings],
        "fastest": analysis.choice.policy,
        "costs": analysis.costs,
        "deals": {
            "by_count": _deal_fields(analysis.deals.by_count),
            "by_cost": _deal_fields(analysis.deals.by_cost),
        },
    }


def _timing_fields(timing: PolicyTiming) -> dict[str, Any]:
    return {
        "policy": timing.policy,
        "num_groups": timing.num_groups,
        "num_vertices": timing.num_vertices,
        "round_seconds": timing.round_seconds,
        "schedule_seconds": timing.schedule_seconds,
    }


def _deal_fields(dealt: ExampleDeal) -> dict[str, Any]:
    return {
        "examples": dealt.examples,
        "rank_seconds": dealt.rank_costs,
        "example_weight": dealt.example_weight,
        "lost_share": dealt.lost_share,
    }
