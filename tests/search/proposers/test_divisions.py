"""Strategies with stages among the proposals: some before one is measured, all if they are fast, none if they fail."""

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from autosync.datasets.schema import Record
from autosync.search.candidates import candidate
from autosync.search.domain import SpaceDomain
from autosync.search.proposers.breeding import Judge
from autosync.search.proposers.divisions import (
    FEWEST_PLAYED,
    MOST_ALIKE,
    NUM_PLAYED,
    USUAL_PASSES,
    Divisions,
    _parents,
)
from autosync.search.proposers.history import TriedStrategy
from autosync.search.proposers.interface import Ground
from autosync.search.proposers.learned import Learned
from autosync.search.proposers.likeness import FAR, Likeness
from autosync.simulators.interface import Prediction
from autosync.simulators.learned.residuals import distances
from autosync.simulators.stages.simulator import WithStages, with_stages
from autosync.strategy.representation import Strategy
from autosync.strategy.space import Space
from tests.helpers.staged_models import chain, nodes

MODEL, CLUSTER = chain(6, batch_size=8), nodes(1, 1, 1)
SPACE = Space(model=MODEL, cluster=CLUSTER)


class _Constant:
    """Predicts nearly the same time for all strategies."""

    name = "constant"

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    def predict(self, strategies: Sequence[Strategy]) -> list[Prediction]:
        return [
            Prediction(seconds=self._seconds * (1 + 1e-3 * (len(one.messages) % 7)), spread=0.01) for one in strategies
        ]

    def learn(self, records: Sequence[Record]) -> None:
        del records


def _ground(seconds: float, *, divided: bool = True) -> Ground:
    assert SPACE.stages is not None
    proposals = SPACE.stages.proposals if divided else ()
    return Ground(
        model=MODEL,
        cluster=CLUSTER,
        domain=SpaceDomain(space=SPACE),
        limits=SPACE.limits,
        known=(),
        simulator=with_stages(_Constant(seconds), MODEL, CLUSTER),
        num_simulated=40,
        divided=tuple(candidate("divided", one, MODEL, CLUSTER) for one in proposals),
    )


def _num_divided(seconds: float) -> int:
    found = Learned(_ground(seconds)).propose([], 6, random.Random(0))
    assert len(found) == 6
    assert len({one.strategy_id for one in found}) == 6
    return sum(bool(one.strategy and one.strategy.stages) for one in found)


def test_half_of_the_first_round_has_stages_where_they_are_predicted_to_be_faster() -> None:
    # Eighteen seconds a rank's batch: with stages a step takes about twenty.
    assert _num_divided(200.0) == 3


def test_a_division_that_is_nearly_as_fast_is_tried() -> None:
    assert 1 <= _num_divided(19.0) <= 3


def test_where_all_others_are_much_faster_no_division_is_tried() -> None:
    assert _num_divided(1.0) == 0


def test_failures_and_measurements_decide_how_many_follow() -> None:
    ground = _ground(1.0)
    divisions = Divisions(ground, Likeness(MODEL, CLUSTER))
    strategy = ground.divided[0].strategy
    assert strategy is not None

    def tried(seconds: float | None) -> TriedStrategy:
        return TriedStrategy(strategy=strategy, strategy_id="x", seconds=seconds, memory_bytes=None)

    assert divisions.most([], 6) == 3
    assert divisions.most([tried(None)], 6) == 3
    assert divisions.most([tried(None), tried(None)], 6) == 0
    assert divisions.most([tried(None), tried(None), tried(2.0)], 6) == 6
    assert Divisions(_ground(1.0, divided=False), Likeness(MODEL, CLUSTER)).most([], 6) == 0


def test_children_are_bred_from_divisions_and_no_worse_than_these() -> None:
    ground = _ground(1.0)
    divisions = Divisions(ground, Likeness(MODEL, CLUSTER))
    found = divisions.bred([], random.Random(0))
    assert all(one.strategy.stages for one in found)
    assert len(found) > len(ground.divided)
    proposed = ground.simulator.predict([one.strategy for one in ground.divided if one.strategy is not None])
    assert found[0].seconds <= min(one.seconds for one in proposed)


def test_parents_differ_in_their_schedules_or_numbers_of_stages() -> None:
    ground = _ground(1.0)
    divided = [one.strategy for one in ground.divided if one.strategy is not None]
    judge = Judge(ground.simulator, Likeness(MODEL, CLUSTER), [])
    alike = [replace(divided[0], schedule="zero_bubble", slack=slack) for slack in range(8)]
    found = judge.judge([("x", one) for one in alike]) + judge.judge([("x", replace(divided[0], schedule="gpipe"))])
    parents = _parents(found)
    assert Counter(one.strategy.schedule for one in parents) == {"zero_bubble": MOST_ALIKE, "gpipe": 1}
    assert parents == sorted(parents, key=lambda one: one.hope)


def test_stages_are_far_from_all_else_and_near_each_other() -> None:
    likeness = Likeness(MODEL, CLUSTER)
    first, second = (one.strategy for one in _ground(1.0).divided[:2])
    whole = next(one for one in (SPACE.sample(random.Random(seed)) for seed in range(50)) if not one.stages)
    assert first is not None
    assert second is not None
    vectors = likeness.vectors([first, second, whole])
    far = distances(vectors, vectors)
    assert far[0, 2] >= FAR
    assert far[0, 1] < FAR / 2


def test_a_strategy_is_played_once() -> None:
    simulator = WithStages(_Constant(1.0), MODEL, CLUSTER)
    strategy = _ground(1.0).divided[0].strategy
    assert strategy is not None
    first = simulator.predict([strategy, strategy])
    assert first[0] == first[1]
    assert simulator.play(strategy).seconds == first[0].seconds
    assert with_stages(simulator, MODEL, CLUSTER) is simulator


def test_fewer_are_played_where_divisions_have_many_passes() -> None:
    ground = _ground(1.0)
    one = ground.divided[0]
    assert one.strategy is not None

    def num_played(*microbatches: int) -> int:
        strategies = [replace(one.strategy, microbatches=count) for count in microbatches if one.strategy is not None]
        divided = tuple(replace(one, strategy=strategy) for strategy in strategies)
        divisions = Divisions(replace(ground, divided=divided), Likeness(MODEL, CLUSTER))
        return divisions._num_played()

    num_stages = len(one.strategy.stages)
    usual = USUAL_PASSES // num_stages
    assert num_played(usual) == num_played(usual // 2) == NUM_PLAYED
    # One division with many passes is not all of them.
    assert num_played(usual // 2, usual) == NUM_PLAYED
    assert NUM_PLAYED // 2 - 2 <= num_played(2 * usual) <= NUM_PLAYED // 2 + 2
    assert num_played(1000 * usual) == FEWEST_PLAYED
