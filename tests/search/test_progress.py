"""Progress of a search: the best so far, the result of a trial, and the approximate time left."""

from collections.abc import Callable

import pytest

from autosync.datasets.schema import Record
from autosync.search.candidates import STOCK_DDP, Candidate, default_as_strategy
from autosync.search.measurement_effort import Effort
from autosync.search.progress import FinishedTrial, SearchStatus
from autosync.specs.cluster import ClusterSpec
from autosync.specs.model import ModelSpec
from autosync.trials.compare import Design

EFFORT = Effort(proof=Design(num_steps=40, num_rounds=10, budget_seconds=60.0))
WARMUP_STEPS = 2 + 4 + 8
"""A contestant of the proof takes two steps alone. Four are discarded, and two windows of four show a steady time."""


class Clock:
    """Stands still unless told otherwise."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def add(make_record: Callable[[int, Candidate, float | None], Record]) -> Callable[..., None]:
    def add(status: SearchStatus, candidate: Candidate, seconds: float | None) -> None:
        record = make_record(len(status.tried), candidate, seconds)
        status.tried.append(FinishedTrial(candidate=candidate, record=record))

    return add


def _course(clock: Clock, budget_seconds: float | None = None) -> SearchStatus:
    return SearchStatus(num_trials=4, budget_seconds=budget_seconds, effort=EFFORT, clock=clock)


def test_what_is_tried_and_what_came_of_it(
    clock: Clock, add: Callable[..., None], model: ModelSpec, cluster: ClusterSpec
) -> None:
    status = _course(clock)
    ours = default_as_strategy(model, cluster)
    assert status.beginning(STOCK_DDP) == "trying stock DDP (trial 1 of 4)"
    add(status, ours, None)
    assert status.outcome(len(status.tried) - 1) == f"trial 1 of 4: {ours.name}: raised: no luck"
    assert status.seconds_left() is None
    add(status, STOCK_DDP, 0.5)
    clock.now = 120.0
    assert (
        status.outcome(len(status.tried) - 1)
        == "trial 2 of 4: stock DDP: 500.00 ms a step (best so far: 500.00 ms, stock DDP)"
    )
    begins = f"trying {ours.name} (trial 3 of 4; best so far: 500.00 ms, stock DDP; about "
    assert status.beginning(ours).startswith(begins)
    assert status.beginning(ours).endswith(" left)")
    add(status, ours, 0.25)
    assert status.outcome(len(status.tried) - 1).endswith(f"(best so far: 250.00 ms, {ours.name})")
    assert status.best_seconds == 0.25


def test_the_time_left_is_that_of_the_trials_and_of_the_proof(clock: Clock, add: Callable[..., None]) -> None:
    status = _course(clock)
    add(status, STOCK_DDP, 0.1)
    add(status, STOCK_DDP, 0.2)
    clock.now += 20
    # Ten seconds a trial; in the proof five contestants take 40 steps, 10 that begin blocks, and the warm-up.
    assert status.seconds_left() == pytest.approx(2 * 10 + 0.5 * (50 + WARMUP_STEPS))
    clock.now += 2000
    assert status.seconds_left() == pytest.approx(2 * 1010 + 0.5 * (50 + WARMUP_STEPS))
    # The search may end early.
    status.search_ends()
    assert status.seconds_left() == pytest.approx(0.5 * (50 + WARMUP_STEPS))
    clock.now += 10
    assert status.seconds_left() == pytest.approx(0.5 * (50 + WARMUP_STEPS) - 10)
    clock.now += 1000
    assert status.seconds_left() == 0


def test_budgets_bound_the_time_left(clock: Clock, add: Callable[..., None]) -> None:
    status = _course(clock, budget_seconds=25.0)
    add(status, STOCK_DDP, 10.0)
    clock.now += 20
    # 5 s of search, and the proof's fewest rounds, of two steps each, beside its warm-up.
    assert status.seconds_left() == pytest.approx(5 + 50 * 8 * 2 + 50 * WARMUP_STEPS)
    clock.now += 20
    assert status.seconds_left() == pytest.approx(50 * 8 * 2 + 50 * WARMUP_STEPS)


def test_stock_ddp_is_slower_than_the_finalists(
    clock: Clock, add: Callable[..., None], model: ModelSpec, cluster: ClusterSpec
) -> None:
    status = _course(clock)
    add(status, STOCK_DDP, 0.4)
    add(status, default_as_strategy(model, cluster), 0.1)
    clock.now += 20
    # Stock DDP and its best bucket have two steps in a round, of which the fastest have four.
    rounds = 10 * (2 * 0.4 * 3 + 3 * 0.1 * 5)
    assert status.seconds_left() == pytest.approx(2 * 10 + rounds + (2 * 0.4 + 3 * 0.1) * WARMUP_STEPS)


def test_a_search_ends_by_its_trials_or_its_budget(clock: Clock, add: Callable[..., None]) -> None:
    status, hasty = _course(clock), _course(clock, budget_seconds=5.0)
    assert not status.is_over()
    assert not hasty.is_over()
    clock.now += 5
    assert hasty.is_over()
    for _ in range(4):
        assert not status.is_over()
        add(status, STOCK_DDP, 0.1)
    assert status.is_over()
    assert _course(clock, budget_seconds=0.0).is_over()


@pytest.mark.parametrize(
    ("count", "words"),
    [
        (0, "measuring stock DDP"),
        (1, "measuring stock DDP and the fastest again, in turn"),
        (2, "measuring stock DDP and the 2 fastest again, in turn"),
    ],
)
def test_the_proof_is_announced(count: int, words: str, clock: Clock, add: Callable[..., None]) -> None:
    status = _course(clock)
    add(status, STOCK_DDP, 0.1)
    assert status.proving(count) == words


def test_nothing_is_measured_again_that_was_not_tried(clock: Clock) -> None:
    assert _course(clock).proving(4) == "measuring stock DDP and the 4 that may be fastest, in turn"


def test_trials_under_way_elsewhere_count(clock: Clock, add: Callable[..., None]) -> None:
    status = _course(clock)
    add(status, STOCK_DDP, 0.1)
    assert not status.is_over(2)
    assert status.is_over(3)


def test_what_came_before_counts_as_tried_and_takes_no_time(
    clock: Clock, make_record: Callable[[int, Candidate, float | None], Record]
) -> None:
    status = _course(clock)
    status.go_on([make_record(0, STOCK_DDP, 0.1), make_record(1, STOCK_DDP, 0.1)])
    clock.now += 10
    assert status.seconds_left() is None
    assert status.num_left == 2
    status.take_in([*status.records, make_record(5, STOCK_DDP, 0.1)])
    assert status.seconds_left() == pytest.approx(10 + 0.1 * 5 * (50 + WARMUP_STEPS))
    assert status.outcome(5).startswith("trial 3 of 4: stock DDP")
