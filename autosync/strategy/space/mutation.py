"""Mutates strategies: changes one aspect of one message, of one variable or of the whole step."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping

from autosync.specs.cluster import ClusterSpec
from autosync.specs.model import ModelSpec
from autosync.strategy.canonical import canonical
from autosync.strategy.representation import Strategy
from autosync.strategy.space import message_changes, part_changes, step_changes
from autosync.strategy.space.batching_choice import batched, batching_choice
from autosync.strategy.space.chance import draw_weighted
from autosync.strategy.space.choices import Choices
from autosync.strategy.space.division import divided, division_of
from autosync.strategy.space.editing import Room, make_room
from autosync.strategy.space.input_choice import input_choice, with_input
from autosync.strategy.space.limits import Limits
from autosync.strategy.space.placement import bandwidths_of
from autosync.strategy.space.tree_changes import change_trees, has_trees

Change = Callable[[Room, Strategy, random.Random], Strategy | None]

CHANGE_WEIGHTS: Mapping[Change, float] = {
    message_changes.change_kind: 2.0,
    message_changes.change_details: 1.0,
    message_changes.change_server: 1.5,
    message_changes.change_codec: 1.0,
    message_changes.change_slices: 1.0,
    message_changes.change_priority: 1.0,
    message_changes.change_lane: 1.0,
    part_changes.change_cut: 2.0,
    part_changes.move_part: 1.0,
    part_changes.join_messages: 1.5,
    part_changes.split_message: 1.5,
    step_changes.change_overlap: 1.0,
    step_changes.slice_all: 0.5,
    step_changes.prioritise_by_use: 0.5,
    step_changes.deal_lanes: 0.5,
    step_changes.reshape_all: 0.5,
}

P_DIVISION = 0.15
"""The chance that a mutation changes the shares of the batch, where the space has uneven ones."""

P_BATCHING = 0.15
"""The chance that a mutation changes the batching, for a model whose graph changes."""

P_INPUT = 0.2
"""The chance that a mutation changes the input settings, for a task with a dataset."""

P_TREES = 0.2
"""The chance that a mutation of a strategy with written-out trees changes these."""

MAX_TRIES = 64
NUM_REMEMBERED = 256


class Mutator:
    """Mutates the strategies of one space."""

    def __init__(self, model: ModelSpec, cluster: ClusterSpec, limits: Limits, choices: Choices) -> None:
        self._model = model
        self._cluster = cluster
        self._division = division_of(model, cluster, limits)
        self._batching = batching_choice(model, cluster, limits)
        self._input = input_choice(model, limits, cluster.backend)
        self._room = make_room(model, bandwidths_of(cluster), limits, choices)
        # Searches mutate the same few parents often. The key is the `id` of a strategy, which is kept alive beside it.
        self._canonical: dict[int, tuple[Strategy, Strategy]] = {}

    def mutate(self, strategy: Strategy, rng: random.Random) -> Strategy:
        """Return a strategy with another canonical form, or the same strategy if `MAX_TRIES` changes found none."""
        before = self._canonical_of(strategy)
        for _ in range(MAX_TRIES):
            changed = self._changed(strategy, rng)
            if changed is not None and canonical(changed, self._model, self._cluster) != before:
                return changed
        return strategy

    def _changed(self, strategy: Strategy, rng: random.Random) -> Strategy | None:
        """Return the strategy after one change, if that applies."""
        if self._division is not None and rng.random() < P_DIVISION:
            return divided(strategy, self._division.change(strategy.shares, rng))
        if self._batching is not None and rng.random() < P_BATCHING:
            return batched(strategy, self._batching.change(strategy.batching, rng))
        if self._input is not None and rng.random() < P_INPUT:
            return with_input(strategy, self._input.change(strategy.input, rng))
        if any(map(has_trees, strategy.messages)) and rng.random() < P_TREES:
            return change_trees(self._room, strategy, rng)
        changed = draw_weighted(rng, CHANGE_WEIGHTS)(self._room, strategy, rng)
        return changed and batched(divided(changed, changed.shares), changed.batching)

    def _canonical_of(self, strategy: Strategy) -> Strategy:
        known = self._canonical.get(id(strategy))
        if known is None:
            if len(self._canonical) >= NUM_REMEMBERED:
                self._canonical.clear()
            known = self._canonical[id(strategy)] = (strategy, canonical(strategy, self._model, self._cluster))
        return known[1]
