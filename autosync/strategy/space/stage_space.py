"""Draws, changes and crosses strategies with stages. The partitioner proposes the divisions that draws begin with.

A draw takes one of the proposals, a good one more often, and changes it a few times. A change moves a cut or a rank,
splits or joins stages, changes the number of microbatches, the schedule or the slack; or it changes an aspect of the
messages among the ranks of a stage, as in strategies without stages. Changes that are not legal are drawn again.
"""

from __future__ import annotations

import functools
import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from autosync.specs.cluster import ClusterSpec
from autosync.specs.model import ModelSpec
from autosync.strategy import legality
from autosync.strategy.canonical import canonical
from autosync.strategy.dividing.microbatch_counts import legal_counts
from autosync.strategy.dividing.pairs import pair_divisions
from autosync.strategy.dividing.proposals import narrow_divisions, proposed_divisions
from autosync.strategy.dividing.timed import timed
from autosync.strategy.representation import Strategy
from autosync.strategy.space import message_changes, part_changes, stage_changes, step_changes
from autosync.strategy.space.chance import draw_weighted
from autosync.strategy.space.editing import Room
from autosync.strategy.space.stage_changes import StageRoom
from autosync.strategy.stage_rules import STAGE_ROUTES
from autosync.strategy.stages import FLUSHED, SCHEDULES, most_missed
from autosync.strategy.synchronisers.all_reduce import PLAIN

NUM_PROPOSALS = 8
P_ANOTHER_CHANGE = 0.5
P_MESSAGES = 0.25
"""The chance that a change is one of messages, if any message goes among several ranks."""
MAX_TRIES = 64

_Change = Callable[[StageRoom, Strategy, random.Random], Strategy | None]
STAGE_WEIGHTS: Mapping[_Change, float] = {
    stage_changes.move_cut: 3.0,
    stage_changes.move_rank: 1.0,
    stage_changes.swap_ranks: 1.0,
    stage_changes.split_stage: 0.7,
    stage_changes.join_stages: 0.7,
    stage_changes.wrap_stages: 0.5,
    stage_changes.drop_stage: 0.5,
    stage_changes.change_microbatches: 2.0,
    stage_changes.change_schedule: 0.5,
    stage_changes.interleave: 0.3,
    stage_changes.change_slack: 1.0,
    stage_changes.change_recompute: 0.5,
}

_MessageChange = Callable[[Room, Strategy, random.Random], Strategy | None]
MESSAGE_WEIGHTS: Mapping[_MessageChange, float] = {
    message_changes.change_details: 2.0,
    message_changes.change_slices: 1.0,
    message_changes.change_priority: 1.0,
    message_changes.change_lane: 1.0,
    part_changes.change_cut: 1.0,
    part_changes.move_part: 1.0,
    part_changes.join_messages: 1.5,
    part_changes.split_message: 1.5,
    step_changes.slice_all: 0.5,
    step_changes.deal_lanes: 0.5,
    step_changes.reshape_all: 0.5,
}


class StageSpace:
    """The strategies with stages of one space, whose messages may have what `room` has."""

    def __init__(self, model: ModelSpec, cluster: ClusterSpec, room: Room) -> None:
        self._model = model
        self._cluster = cluster
        self._room = room
        self._may_be_stale = "stale" in room.limits.allow
        self._stages = StageRoom(
            model=model,
            cuts=tuple(cut.before for cut in model.timeline.cuts),
            counts=tuple(legal_counts(model, cluster)),
            is_memory_stated=any(node.memory_bytes is not None for node in cluster.nodes),
            schedules=SCHEDULES if self._may_be_stale else FLUSHED,
        )

    @functools.cached_property
    def proposals(self) -> tuple[Strategy, ...]:
        """The divisions that the partitioner takes for the fastest, the fastest first, and then narrow ones.

        There are none if none fits in memory.
        """
        model, cluster = self._model, self._cluster
        fastest = proposed_divisions(model, cluster, most=NUM_PROPOSALS, may_be_stale=self._may_be_stale)
        narrow = narrow_divisions(model, cluster, sorted({one.microbatches for one in fastest}))
        return tuple(one for one in map(self._routed, [*fastest, *narrow]) if self._may_be(one))

    @functools.cached_property
    def pairs(self) -> tuple[Strategy, ...]:
        """Divisions into two stages, in no order of promise. There are none if none fits in memory."""
        return tuple(one for one in map(self._routed, pair_divisions(self._model, self._cluster)) if self._may_be(one))

    def _routed(self, strategy: Strategy) -> Strategy:
        """Return a proposal whose ranks all-reduce by the first topology that the limits allow."""
        route = next(one for one in STAGE_ROUTES if one in self._room.limits.topologies)
        synchroniser = replace(PLAIN, topology=route)
        return replace(strategy, messages=tuple(replace(one, synchroniser=synchroniser) for one in strategy.messages))

    def sample(self, rng: random.Random) -> Strategy | None:
        """Draw a strategy with stages; None if the partitioner proposes none."""
        if not self.proposals:
            return None
        weights = [1 / (place + 1) for place in range(len(self.proposals))]
        drawn = rng.choices(self.proposals, weights)[0]
        while rng.random() < P_ANOTHER_CHANGE:
            drawn = self.mutate(drawn, rng)
        return drawn

    def mutate(self, strategy: Strategy, rng: random.Random) -> Strategy:
        """Return a legal strategy that differs in one aspect, or the same one if `MAX_TRIES` changes found none."""
        before = canonical(timed(strategy, self._model, self._cluster), self._model, self._cluster)
        sums = any(len(stage.ranks) > 1 for stage in strategy.stages)
        for _ in range(MAX_TRIES):
            if sums and rng.random() < P_MESSAGES:
                changed = draw_weighted(rng, MESSAGE_WEIGHTS)(self._room, strategy, rng)
            else:
                changed = draw_weighted(rng, STAGE_WEIGHTS)(self._stages, strategy, rng)
            if changed is None or not self._may_be(changed):
                continue
            child = timed(changed, self._model, self._cluster)
            if canonical(child, self._model, self._cluster) != before:
                return child
        return strategy

    def _may_be(self, strategy: Strategy) -> bool:
        """Whether a strategy is legal, and no stage misses more updates than the limits say."""
        missed = most_missed(strategy.stages, strategy.microbatches, strategy.schedule, strategy.slack)
        return missed <= self._room.limits.most_missed and not legality.problems(strategy, self._model, self._cluster)

    def cross(self, first: Strategy, second: Strategy, rng: random.Random) -> Strategy:
        """Return the stages of one parent with the microbatches and the schedule of either.

        Only one parent may have stages: then it has the child alone, which differs in one aspect.
        """
        if not (first.stages and second.stages):
            return self.mutate(first if first.stages else second, rng)
        if rng.random() < 0.5:
            first, second = second, first
        child = replace(
            first,
            name="",
            microbatches=rng.choice((first, second)).microbatches,
            schedule=rng.choice((first, second)).schedule,
            slack=rng.choice((first, second)).slack,
            recompute=rng.choice((first, second)).recompute,
        )
        return timed(child, self._model, self._cluster) if self._may_be(child) else self.mutate(first, rng)

    def log10_size(self) -> float:
        """Return the decimal logarithm of a lower bound of the number of these strategies.

        It counts stages with ranks of their own, microbatches and schedules, and not the ways of messages.
        """
        num_cuts, num_ranks = len(self._stages.cuts), self._cluster.num_workers
        logs = [
            _log_binomial(num_cuts, number - 1) + _log_onto(num_ranks, number)
            for number in range(2, min(num_cuts + 1, num_ranks) + 1)
        ]
        if not logs:
            return -math.inf
        largest = max(logs)
        total = largest + math.log(math.fsum(math.exp(one - largest) for one in logs))
        return (total + math.log(len(self._stages.counts) * len(SCHEDULES))) / math.log(10)


def _log_binomial(n: int, k: int) -> float:
    return math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1)


def _log_onto(num_ranks: int, num_stages: int) -> float:
    """Return the logarithm of the number of ways to give each stage at least one of the ranks."""
    return math.log(_onto(num_ranks, num_stages))


@functools.cache
def _onto(num_ranks: int, num_stages: int) -> int:
    if num_stages == 1:
        return 1
    terms: Sequence[int] = [
        (-1) ** missing * math.comb(num_stages, missing) * (num_stages - missing) ** num_ranks
        for missing in range(num_stages)
    ]
    return sum(terms)
