"""Predicted epochs agree with sums that can be done by hand."""

from pathlib import Path

import numpy as np
import pytest

from autosync.loops.choosing import choose
from autosync.loops.dependences import LoopAnalysis, analyse
from autosync.loops.load import load_loop
from autosync.loops.schedules import LoopSchedule, ScheduleChoice
from autosync.loops.tuning.candidates import (
    ONE_RANK,
    exact_candidates,
    server_candidates,
    words_of_choice,
)
from autosync.loops.tuning.prediction import LoopCosts, RankLinks, predict_epoch

_FILE = """import numpy as np

import autosync

RECORDS = np.zeros(64, dtype=[("i", "i8"), ("j", "i8")])
RECORDS["i"], RECORDS["j"] = np.divmod(np.arange(64), 8)


@autosync.loop(records=RECORDS, tables={"left": autosync.Table(shape=(8, 10)), "right": autosync.Table(shape=(8, 5))})
def step(r, left, right):
    left[r.i, 0] += right[r.j, 0] + 1.0
    right[r.j, 0] += 1.0
"""
FAST = 1e30


@pytest.fixture
def grid(tmp_path: Path) -> tuple[LoopAnalysis, np.ndarray]:
    (tmp_path / "grid.py").write_text(_FILE, encoding="utf-8")
    loop = load_loop(str(tmp_path / "grid.py"))
    records = loop.load_records()
    return analyse(loop, records), records


def _seconds(
    grid: tuple[LoopAnalysis, np.ndarray], choice: ScheduleChoice, rate: float, *, block_seconds: float = 0.0
) -> float:
    analysis, records = grid
    num_ranks = 2
    schedule = choose(analysis, records, num_ranks, choice)
    assert isinstance(schedule, LoopSchedule)
    links = RankLinks(
        nodes=tuple(range(num_ranks)),
        rates_out=(rate,) * num_ranks,
        rates_in=(rate,) * num_ranks,
        rates_within=(FAST,) * num_ranks,
    )
    costs = LoopCosts(record_seconds=(1.0,) * num_ranks, block_seconds=block_seconds)
    return predict_epoch(analysis, schedule, records, costs, links)


def test_one_rank_runs_all_records(grid: tuple[LoopAnalysis, np.ndarray]) -> None:
    assert _seconds(grid, ONE_RANK, FAST) == pytest.approx(64)


@pytest.mark.parametrize("blocks", [1, 2, 4])
def test_fast_links_divide_the_compute(blocks: int, grid: tuple[LoopAnalysis, np.ndarray]) -> None:
    choice = ScheduleChoice(stay="i", rotate="j", blocks_per_rank=blocks)
    assert _seconds(grid, choice, FAST) == pytest.approx(32)


def test_one_block_a_rank_waits_for_its_way(grid: tuple[LoopAnalysis, np.ndarray]) -> None:
    # A block has 4 rows of 40 bytes, and each of two time steps ends with its way of 160 bytes.
    choice = ScheduleChoice(stay="i", rotate="j", blocks_per_rank=1)
    assert _seconds(grid, choice, 16.0) == pytest.approx(32 + 2 * 10)


def test_two_blocks_a_rank_hide_the_way(grid: tuple[LoopAnalysis, np.ndarray]) -> None:
    choice = ScheduleChoice(stay="i", rotate="j", blocks_per_rank=2)
    assert _seconds(grid, choice, 16.0) == pytest.approx(32)


def test_slow_links_bound_the_epoch(grid: tuple[LoopAnalysis, np.ndarray]) -> None:
    # Each rank sends 4 blocks of 80 bytes in an epoch, and its link is always busy.
    choice = ScheduleChoice(stay="i", rotate="j", blocks_per_rank=2)
    assert _seconds(grid, choice, 2.0) == pytest.approx(4 * 80 / 2.0, rel=0.2)


def test_a_block_costs_time_of_its_own(grid: tuple[LoopAnalysis, np.ndarray]) -> None:
    choice = ScheduleChoice(stay="i", rotate="j", blocks_per_rank=4)
    assert _seconds(grid, choice, FAST, block_seconds=0.5) == pytest.approx(32 + 8 * 0.5)


def test_candidates_are_both_ways_round_and_servers(grid: tuple[LoopAnalysis, np.ndarray]) -> None:
    analysis, records = grid
    exact = exact_candidates(analysis, records, 3)
    assert {(one.stay, one.rotate) for one in exact} == {("i", "j"), ("j", "i")}
    assert {one.blocks_per_rank for one in exact} == {1, 2, 4, 8}
    servers = list(server_candidates(analysis, records, 4))
    assert {one.merge_every for one in servers} == {16, 4, 1}
    assert {one.staleness for one in servers} == {0, 2}
    assert all(one.data_parallel for one in servers)
    words = [words_of_choice(one) for one in (*exact, *servers, ONE_RANK)]
    assert len(set(words)) == len(words)
