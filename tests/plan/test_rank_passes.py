"""The order of passes without a flush: none is missing, no rank waits for ever, and versions are those of the rule."""

from collections import Counter
from collections.abc import Sequence

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from autosync.plan.lowering import lower
from autosync.plan.rank_passes import RankPass, most_late, passes_of
from autosync.plan.types import Plan
from autosync.strategy import legality
from autosync.strategy.dividing.divided import divided_strategy
from autosync.strategy.stages import UNFLUSHED, ModelStage, PipelineSchedule, late_turns, most_under_way
from tests.helpers.staged_models import chain, nodes
from tests.helpers.stash_versions import stash_versions

NUM_STEPS = 6


def _stages(widths: Sequence[int]) -> list[ModelStage]:
    firsts = [sum(widths[:number]) for number in range(len(widths))]
    return [
        ModelStage(before=number, ranks=tuple(range(first, first + width)))
        for number, (first, width) in enumerate(zip(firsts, widths, strict=True))
    ]


class _Played:
    """Ranks that make their passes as soon as what these need is there, without times.

    A rank goes on after an update only when all ranks of its stage have come so far.
    """

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self.made: dict[int, list[tuple[int, RankPass]]] = {rank: [] for rank in range(plan.num_workers)}
        self._keys: set[tuple[int, str, int, int]] = set()
        self._num_updates: Counter[int] = Counter()
        self._todo = {
            rank: [
                (step - one.late, one, self._updates(order, number))
                for step in range(NUM_STEPS)
                for number, one in enumerate(order)
                if step >= one.late
            ]
            for rank in self.made
            for order in [passes_of(plan, rank)]
        }

    def _updates(self, order: Sequence[RankPass], number: int) -> bool:
        """Whether an update comes after a pass: after the last backward pass of a batch, or at the end of a step."""
        if not self._plan.stashes:
            return number == len(order) - 1
        return order[number].operation == max(one.operation for one in order if not one.is_forward)

    def run(self) -> bool:
        """Whether all passes are made."""
        moved = True
        while moved:
            moved = False
            for rank, todo in self._todo.items():
                while todo and self._may(rank, *todo[0][:2]):
                    batch, one, updates = todo.pop(0)
                    self.made[rank].append((batch, one))
                    self._keys.add((batch, one.kind, one.place.stage, one.place.microbatch))
                    self._num_updates[rank] += updates
                    moved = True
        return not any(self._todo.values())

    def _may(self, rank: int, batch: int, one: RankPass) -> bool:
        stage, microbatch = one.place.stage, one.place.microbatch
        needed = [("forward", stage - 1)] if one.is_forward else [("backward", stage + 1), ("forward", stage)]
        is_there = all(
            (batch, kind, other, microbatch) in self._keys
            for kind, other in needed
            if 0 <= other < len(self._plan.stages)
        )
        others = self._plan.stages[stage].ranks
        return is_there and all(self._num_updates[other] >= self._num_updates[rank] for other in others)


@given(
    widths=st.lists(st.integers(1, 4), min_size=1, max_size=4),
    schedule=st.sampled_from(UNFLUSHED),
    microbatches=st.sampled_from((1, 2, 4, 6, 12, 24)),
    slack=st.integers(0, 5),
)
def test_no_rank_waits_for_ever(widths: list[int], schedule: PipelineSchedule, microbatches: int, slack: int) -> None:
    stages, model, cluster = _stages(widths), chain(max(2, len(widths)), batch_size=24), nodes(*[1] * sum(widths))
    strategy = divided_strategy(model, stages, microbatches, schedule, slack)
    assume(not legality.problems(strategy, model, cluster))
    plan = lower(strategy, model, cluster)
    played = _Played(plan)
    assert played.run()
    versions = stash_versions(stages, strategy.microbatches, slack, NUM_STEPS)
    for rank, made in played.made.items():
        stage = made[0][1].place.stage
        under_way, seen, num_updates = Counter[str](), Counter[tuple[int, int, str]](), 0
        last = max((one.operation for _, one in made if not one.is_forward), default=-1)
        for batch, one in made:
            under_way[one.kind] += 1
            assert 0 <= under_way["forward"] - under_way["backward"] <= most_under_way(stages, stage, slack)
            microbatch = one.place.microbatch
            seen[batch, microbatch, one.kind] += 1
            if plan.stashes:
                # What the plan says, what has been updated by then, and the rule told in another way.
                assert max(0, batch - one.misses) == versions[stage][batch, microbatch]
                assert not one.is_forward or versions[stage][batch, microbatch] == num_updates
                num_updates += one.operation == last
            else:
                assert one.misses == 1
        assert set(seen.values()) == {1}
        assert under_way["forward"] == NUM_STEPS * strategy.microbatches / len(stages[stage].ranks), rank


def test_more_slack_than_stages_of_several_ranks_bear_is_refused() -> None:
    model, cluster, stages = chain(2, batch_size=24), nodes(1, 1, 1, 1), _stages([1, 3])
    for schedule in UNFLUSHED:
        for slack in range(8):
            strategy = divided_strategy(model, stages, 48, schedule, slack)
            problems = legality.problems(strategy, model, cluster)
            assert bool(problems) == (slack > 1)
            assert _Played(lower(strategy, model, cluster)).run() == (not problems)
            if problems:
                assert problems[0].path == ("slack",)
                assert "passes only" in problems[0].rule


@pytest.mark.parametrize("num_stages", [2, 3, 5])
def test_of_one_microbatch_a_step_a_stage_misses_as_many_updates_as_stages_follow(num_stages: int) -> None:
    model, cluster = chain(num_stages, batch_size=2), nodes(*[1] * num_stages)
    plan = lower(divided_strategy(model, _stages([1] * num_stages), 1, "stashing"), model, cluster)
    for rank in range(num_stages):
        forward, backward = passes_of(plan, rank)
        assert forward.misses == backward.misses == backward.late == num_stages - 1 - rank
        assert forward.late == 0
    assert most_late(plan) == num_stages - 1


def test_a_turn_is_late_until_the_microbatches_under_way_are_of_its_own_step() -> None:
    assert [late_turns(turn, 3, 4) for turn in range(4)] == [1, 1, 0, 0]
    assert [late_turns(turn, 6, 2) for turn in range(2)] == [3, 2]
    assert late_turns(0, 1, 1) == 0
