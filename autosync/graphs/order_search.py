"""Searches a rule for the order of groups: a table from the state of the frontier to the signature that runs next.

The state is the set of signatures that are ready, and the one with the most ready vertices. This is the finite-state
policy of ED-Batch. Here it is improved one entry at a time, as long as the sample's batches need fewer groups. So on
the sample it is never worse than the agenda that it starts from.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from autosync.graphs.graph_batch import GraphBatch
from autosync.graphs.orders import Frontier, OrderRule, by_rule, lowest_first

MOST_TRIALS = 400
"""The search stops after so many orders of the whole sample. Tables of real models converge after a few dozen."""

OrderTable = Mapping[str, str]
"""A rule as it is written: a state, and the name of the signature that runs next."""


def state_of(frontier: Frontier, names: Sequence[str]) -> str:
    """Return the state of a frontier in words: `inner/2 leaf/0 | leaf/0`."""
    ready = " ".join(sorted(names[one] for one in frontier.ready))
    return f"{ready} | {names[int(np.argmax(frontier.num_ready))]}"


def rule_of(table: OrderTable, batch: GraphBatch) -> OrderRule:
    """Return the rule of a table for a batch. A state that is not in the table is left to the agenda."""
    names = [batch.name_of(one) for one in range(len(batch.signature_kinds))]
    numbers = {name: number for number, name in enumerate(names)}

    def choose(frontier: Frontier) -> int:
        chosen = numbers.get(table.get(state_of(frontier, names), ""))
        if chosen is None or not frontier.num_ready[chosen]:
            return lowest_first(frontier)
        return chosen

    return choose


def search_table(batches: Sequence[GraphBatch], *, most_trials: int = MOST_TRIALS) -> dict[str, str]:
    """Return the table that needs the fewest groups for all batches, among those that the search tries."""
    table: dict[str, str] = {}
    fewest, choices = _try(table, batches)
    num_trials, improved = 1, True
    while improved and num_trials < most_trials:
        improved = False
        for state, chosen in sorted(choices.items()):
            for other in state.partition(" | ")[0].split(" "):
                if other == table.get(state, chosen) or num_trials >= most_trials:
                    continue
                trial = {**table, state: other}
                num_groups, found = _try(trial, batches)
                num_trials += 1
                if num_groups < fewest:
                    table, fewest, improved = trial, num_groups, True
                    choices = {**choices, **found}
    return dict(sorted(table.items()))


def _try(table: OrderTable, batches: Sequence[GraphBatch]) -> tuple[int, dict[str, str]]:
    """Return the number of groups that a table needs, and what was chosen in each state that allows a choice."""
    choices: dict[str, str] = {}
    num_groups = 0
    for batch in batches:
        groups = by_rule(batch, _noting(rule_of(table, batch), batch, choices))
        num_groups += int(groups.max()) + 1
    return num_groups, choices


def _noting(rule: OrderRule, batch: GraphBatch, choices: dict[str, str]) -> OrderRule:
    names = [batch.name_of(one) for one in range(len(batch.signature_kinds))]

    def choose(frontier: Frontier) -> int:
        chosen = rule(frontier)
        if len(frontier.ready) > 1:
            choices[state_of(frontier, names)] = names[chosen]
        return chosen

    return choose
