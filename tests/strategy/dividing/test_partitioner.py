"""The partitioner against an exhaustive search, and on many layers and hosts."""

import itertools
import math
import random
import time
from collections.abc import Iterator
from dataclasses import replace

import pytest

from autosync.strategy.dividing import partitioner
from autosync.strategy.dividing.division_problem import BlockStage, DivisionProblem, StageHost, TiedWeight
from autosync.strategy.dividing.partitioner import _Programme, partition
from autosync.strategy.dividing.wrapped import wrapped
from autosync.strategy.stages import UNFLUSHED, ModelStage, PipelineSchedule, most_under_way

NUM_CASES = 200


def _problem(rng: random.Random, num_blocks: int, num_hosts: int, *, num_racks: int = 2) -> DivisionProblem:
    kinds = [
        StageHost(
            speed=rng.choice((0.5, 1.0, 1.0, 2.0)),
            rate_out=rng.choice((1e8, 1e8, 3e7)),
            rate_in=rng.choice((1e8, 1e8, 3e7)),
            memory=rng.choice((math.inf, math.inf, 9e7)),
            rack=rng.randrange(num_racks),
        )
        for _ in range(rng.choice((1, 2, 3)))
    ]
    return DivisionProblem(
        seconds=tuple(rng.uniform(0.002, 0.05) for _ in range(num_blocks)),
        weight_bytes=tuple(rng.choice((1e5, 1e6, 2e7)) for _ in range(num_blocks)),
        held_bytes=tuple(rng.choice((1e5, 5e6)) for _ in range(num_blocks)),
        forward_bytes=tuple(rng.choice((1e4, 1e6, 4e6)) for _ in range(num_blocks - 1)),
        backward_bytes=tuple(rng.choice((1e4, 1e6, 4e6)) for _ in range(num_blocks - 1)),
        hosts=tuple(rng.choice(kinds) for _ in range(num_hosts)),
        uplinks=tuple(rng.choice((1e8, 2e7)) for _ in range(num_racks)),
        microbatches=rng.choice((4, 8, 16)),
        fixed_bytes=1e6,
        state_factor=3.0,
        tied=tuple(
            TiedWeight(tuple(sorted(rng.sample(range(num_blocks), 2))), rng.choice((1e5, 5e6)))
            for _ in range(rng.randrange(3) if num_blocks > 1 else 0)
        ),
    )


def _assignments(hosts: tuple[int, ...], num_stages: int) -> Iterator[tuple[tuple[int, ...], ...]]:
    for places in itertools.product(range(num_stages), repeat=len(hosts)):
        if set(places) == set(range(num_stages)):
            yield tuple(
                tuple(host for host, place in zip(hosts, places, strict=True) if place == stage)
                for stage in range(num_stages)
            )


def _best_of_all(problem: DivisionProblem) -> float:
    hosts = tuple(range(len(problem.hosts)))
    best = math.inf
    for num_stages in range(1, min(len(hosts), problem.num_blocks) + 1):
        assigned = list(_assignments(hosts, num_stages))
        for cuts in itertools.combinations(range(1, problem.num_blocks), num_stages - 1):
            ends = [0, *cuts, problem.num_blocks]
            for given in assigned:
                stages = [BlockStage(ends[i], ends[i + 1], given[i]) for i in range(num_stages)]
                best = min(best, problem.time_of(stages))
    return best


def _check(
    seed: int,
    *,
    num_blocks: int,
    num_hosts: int,
    unflushed: PipelineSchedule | None = None,
    most_hosts: float = math.inf,
) -> None:
    problem = _problem(random.Random(seed), num_blocks, num_hosts)
    problem = replace(problem, unflushed=unflushed, deals_evenly=unflushed is not None, most_hosts=most_hosts)
    best, found = _best_of_all(problem), partition(problem)
    if found is None:
        assert math.isinf(best)
        return
    assert found.seconds == pytest.approx(problem.time_of(found.stages))
    assert sorted(host for stage in found.stages for host in stage.hosts) == list(range(num_hosts))
    assert found.seconds <= best * 1.02


def test_no_division_of_two_hundred_is_much_better() -> None:
    for seed in range(NUM_CASES):
        rng = random.Random(1000 + seed)
        _check(seed, num_blocks=rng.randint(1, 6), num_hosts=rng.randint(1, 4))


def test_divisions_without_a_flush_fit_with_their_copies() -> None:
    for seed in range(40):
        rng = random.Random(2000 + seed)
        schedule = rng.choice(UNFLUSHED)
        _check(seed, num_blocks=rng.randint(1, 6), num_hosts=rng.randint(1, 4), unflushed=schedule)


def test_stages_have_no_more_hosts_than_they_may() -> None:
    for seed in range(60):
        rng = random.Random(3000 + seed)
        num_hosts = rng.randint(2, 4)
        _check(seed, num_blocks=rng.randint(1, 6), num_hosts=num_hosts, most_hosts=rng.randrange(num_hosts))


def test_equal_hosts_get_equal_compute() -> None:
    problem = DivisionProblem(
        seconds=(0.01,) * 12,
        weight_bytes=(1e8,) * 12,
        held_bytes=(0.0,) * 12,
        forward_bytes=(1e4,) * 11,
        backward_bytes=(1e4,) * 11,
        hosts=(StageHost(rate_out=1e8, rate_in=1e8),) * 4,
        uplinks=(math.inf,),
        microbatches=32,
    )
    found = partition(problem)
    assert found is not None
    assert [one.end - one.begin for one in found.stages] == [3, 3, 3, 3]


def test_small_weights_stay_together() -> None:
    problem = DivisionProblem(
        seconds=(0.01,) * 6,
        weight_bytes=(1e3,) * 6,
        held_bytes=(0.0,) * 6,
        forward_bytes=(1e8,) * 5,
        backward_bytes=(1e8,) * 5,
        hosts=(StageHost(rate_out=1e8, rate_in=1e8),) * 3,
        uplinks=(math.inf,),
        microbatches=9,
    )
    found = partition(problem)
    assert found is not None
    assert len(found.stages) == 1


def test_a_stage_that_does_not_fit_is_divided() -> None:
    problem = DivisionProblem(
        seconds=(0.01, 0.01),
        weight_bytes=(6.0, 6.0),
        held_bytes=(0.0, 0.0),
        forward_bytes=(1e8,),
        backward_bytes=(1e8,),
        hosts=(StageHost(rate_out=1e6, rate_in=1e6, memory=20.0),) * 2,
        uplinks=(math.inf,),
        microbatches=4,
        state_factor=1.0,
    )
    found = partition(problem)
    assert found is not None
    assert len(found.stages) == 2
    # Of one block's parameters, a host has a gradient, and two more in the check of a later step.
    small = tuple(host._replace(memory=17.0) for host in problem.hosts)
    assert partition(replace(problem, hosts=small)) is None


@pytest.mark.slow
@pytest.mark.parametrize("num_classes", [1, 2, 4])
def test_a_hundred_layers_on_sixteen_hosts_take_less_than_a_second(num_classes: int) -> None:
    rng = random.Random(7)
    problem = _problem(rng, 100, 1)
    kinds = [StageHost(speed=1.0 + kind, rate_out=1e8, rate_in=1e8, rack=kind % 2) for kind in range(num_classes)]
    hosts = tuple(kinds[number % num_classes] for number in range(16))
    begin = time.process_time()
    assert partition(replace(problem, hosts=hosts, microbatches=64)) is not None
    # One second on an idle machine.
    assert time.process_time() - begin < 3.0


def _of_hosts(hosts: tuple[StageHost, ...], num_blocks: int, microbatches: int) -> DivisionProblem:
    return DivisionProblem(
        seconds=(0.01,) * num_blocks,
        weight_bytes=(1e6,) * num_blocks,
        held_bytes=(0.0,) * num_blocks,
        forward_bytes=(1e5,) * (num_blocks - 1),
        backward_bytes=(1e5,) * (num_blocks - 1),
        hosts=hosts,
        uplinks=(1e9,) * (1 + max(host.rack for host in hosts)),
        microbatches=microbatches,
    )


def test_orders_that_are_the_same_are_tried_once() -> None:
    alike = (StageHost(rate_out=1e8, rate_in=1e8),) * 160
    assert len(_Programme(_of_hosts(alike, 10, 8)).orders()) == 1
    unlike = tuple(StageHost(speed=1.0 + number % 3, rack=number % 7) for number in range(160))
    assert len(_Programme(_of_hosts(unlike, 10, 8)).orders()) == 3


@pytest.mark.slow
def test_many_alike_hosts_take_seconds() -> None:
    begin = time.process_time()
    assert partition(_of_hosts((StageHost(rate_out=1e8, rate_in=1e8),) * 200, 100, 64)) is not None
    # Three seconds on an idle machine; without joined blocks, minutes.
    assert time.process_time() - begin < 15.0


def test_blocks_are_not_joined_into_fewer_than_the_stages_that_many_classes_need(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each of 30 racks has stages of its own, because a stage has hosts of one class."""
    monkeypatch.setattr(partitioner, "MOST_WORK", 100_000)
    hosts = tuple(StageHost(rate_out=1e8, rate_in=1e8, rack=number // 2) for number in range(60))
    found = partition(_of_hosts(hosts, 80, 8))
    assert found is not None
    assert len(found.stages) >= 30
    assert sorted(host for stage in found.stages for host in stage.hosts) == list(range(60))


def test_a_large_tied_weight_keeps_both_ends_on_one_host() -> None:
    problem = DivisionProblem(
        seconds=(0.002, *(0.01,) * 8, 0.008),
        weight_bytes=(1e7,) * 10,
        held_bytes=(0.0,) * 10,
        forward_bytes=(1e4,) * 9,
        backward_bytes=(1e4,) * 9,
        hosts=(StageHost(rate_out=1e7, rate_in=1e7),) * 5,
        uplinks=(math.inf,),
        microbatches=20,
        tied=(TiedWeight((0, 9), 1e7),),
    )
    straight, around = partition(problem), wrapped(problem)
    assert straight is not None
    assert around is not None
    assert around.seconds < straight.seconds - 0.5
    assert around.stages[0].hosts == around.stages[-1].hosts
    assert [one.end - one.begin for one in around.stages] == [1, 2, 2, 2, 2, 1]
    assert wrapped(replace(problem, tied=())) is None


def test_a_weight_that_inner_blocks_share_keeps_them_in_one_stage() -> None:
    """Blocks 1 and 4 of six share a large weight, and the links are slow: no boundary lies between them."""
    problem = DivisionProblem(
        seconds=(0.01,) * 6,
        weight_bytes=(1e3,) * 6,
        held_bytes=(0.0,) * 6,
        forward_bytes=(1e4,) * 5,
        backward_bytes=(1e4,) * 5,
        hosts=(StageHost(rate_out=1e7, rate_in=1e7),) * 3,
        uplinks=(math.inf,),
        microbatches=12,
        tied=(TiedWeight((1, 4), 1e7),),
    )
    found, untied = (partition(replace(problem, most_hosts=2, tied=tied)) for tied in (problem.tied, ()))
    assert found is not None
    assert untied is not None
    assert not any(1 < one.begin <= 4 for one in found.stages)
    assert any(1 < one.begin <= 4 for one in untied.stages)


def test_hosts_in_two_racks_sum_gradients_over_the_uplinks() -> None:
    problem = DivisionProblem(
        seconds=(0.01,) * 4,
        weight_bytes=(1e7,) * 4,
        held_bytes=(0.0,) * 4,
        forward_bytes=(1e5,) * 3,
        backward_bytes=(1e5,) * 3,
        hosts=tuple(StageHost(rate_out=1e8, rate_in=1e8, rack=rack) for rack in range(2)),
        uplinks=(1e6, 1e6),
        microbatches=10,
    )
    found = partition(problem)
    assert found is not None
    assert len(found.stages) == 2
    together = [BlockStage(0, 4, (0, 1))]
    assert problem.time_of(together) > 40
    near = replace(problem, hosts=tuple(host._replace(rack=0) for host in problem.hosts))
    assert near.time_of(together) < 1


def test_gradients_are_summed_after_the_slowest_stage_has_passed_the_last_microbatch() -> None:
    problem = DivisionProblem(
        seconds=(0.03, 0.01),
        weight_bytes=(0.0, 1e7),
        held_bytes=(0.0,) * 2,
        forward_bytes=(0.0,),
        backward_bytes=(0.0,),
        hosts=(StageHost(rate_out=1e8, rate_in=1e8),) * 3,
        uplinks=(math.inf,),
        microbatches=11,
    )
    # The second stage has half a microbatch's time for each of its two hosts, and then 0.1 s of sums.
    seconds = problem.time_of([BlockStage(0, 1, (0,)), BlockStage(1, 2, (1, 2))])
    even = (0.03 + 0.01) / 3
    assert seconds == pytest.approx(0.03 + 0.01 + max(10 * 0.03, 10 * even + 0.1))


def _under_way_of_wrapped_stages(*, splits_backward: bool) -> list[int]:
    """How many microbatches the hosts of an inner first and last stage keep, of three between both ends of a fourth."""
    hosts = (StageHost(),) * 3
    inner = replace(_of_hosts(hosts, 3, 20), splits_backward=splits_backward, hosts_beyond=(1, 1))
    return [inner.num_under_way(1, 2), inner.num_under_way(1, 0)]


def test_the_host_of_both_ends_counts_behind_all_stages_between() -> None:
    """As the schedules have it: as many as this stage and those behind it can work on, or as all stages can."""
    stages = [ModelStage(before=number, ranks=(rank,)) for number, rank in enumerate((0, 1, 2, 3, 0))]
    assert _under_way_of_wrapped_stages(splits_backward=False) == [most_under_way(stages, n, 0) for n in (1, 3)]
    assert _under_way_of_wrapped_stages(splits_backward=True) == [most_under_way(stages, n, 0, since=0) for n in (1, 3)]


def test_a_tied_weight_takes_memory_in_both_stages() -> None:
    weight = TiedWeight((0, 3), 5.0)
    problem = replace(_of_hosts((StageHost(),) * 2, 4, 2), weight_bytes=(7.0, 1.0, 1.0, 1.0), tied=(weight,))
    first, last = BlockStage(0, 2, (0,)), BlockStage(2, 4, (1,))
    assert problem.trained_bytes([first]) == 8.0
    assert problem.trained_bytes([last]) == 2.0 + 5.0
    assert problem.trained_bytes([BlockStage(0, 1, (0,)), BlockStage(3, 4, (0,))]) == 8.0
    assert problem.trained_bytes([BlockStage(0, 4, (0, 1))]) == 10.0
