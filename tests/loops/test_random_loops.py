"""Random loops: every offered schedule gives the result of a serial order, and no forbidden schedule is offered."""

import random
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from autosync.loops.choosing import choose
from autosync.loops.declarations import SerialLoop
from autosync.loops.dependences import analyse
from autosync.loops.rank_run import LoopSettings
from autosync.loops.record_blocks import serial_order
from autosync.loops.schedules import NoSchedule, ScheduleChoice
from autosync.loops.tuning.candidates import exact_candidates
from tests.helpers.loop_ranks import run_threads
from tests.helpers.random_loops import FAMILIES, PLANTED, random_loop
from tests.helpers.serial_loop import run_serial

_CHECKS = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow]


def _check_serial(loop: SerialLoop, num_ranks: int, num_epochs: int, *, seed: int, choice: ScheduleChoice) -> None:
    """The result on several ranks is that of the serial program in the schedule's order, bit for bit."""
    settings = LoopSettings(num_epochs=num_epochs, seed=seed, compiled=False, choice=choice)
    result = run_threads(loop, num_ranks, settings)
    records, tables = loop.load_records(), loop.initial_tables(seed)
    order = serial_order(result.schedule, result.blocks)
    assert sorted(order) == list(range(len(records)))
    run_serial(loop, records, tables, order=order, num_epochs=num_epochs)
    for name, table in tables.items():
        assert result.tables[name].tobytes() == table.tobytes(), (name, result.schedule.kind, loop.file)
    for name in records.dtype.names or ():
        assert result.records[name].tobytes() == records[name].tobytes(), name
    if loop.order == "given":
        records, tables = loop.load_records(), loop.initial_tables(seed)
        run_serial(loop, records, tables, num_epochs=num_epochs)
        for name, table in tables.items():
            assert result.tables[name].tobytes() == table.tobytes(), (name, "not the given order", loop.file)


def _check_offered(seed: int, folder: Path) -> None:
    chance = random.Random(seed)
    loop = random_loop(chance, folder, chance.choice(FAMILIES))
    num_ranks, num_epochs = chance.randint(2, 6), chance.randint(1, 3)
    records = loop.load_records()
    # A loop always has the schedule that autosync chooses; others are cut along other dimensions or in other blocks.
    choices = [ScheduleChoice(), ScheduleChoice(), *exact_candidates(analyse(loop, records), records, num_ranks)]
    _check_serial(loop, num_ranks, num_epochs, seed=seed, choice=chance.choice(choices))


def _check_refused(seed: int, folder: Path, planted: str) -> None:
    chance = random.Random(seed)
    loop = random_loop(chance, folder, chance.choice(FAMILIES), planted)
    records = loop.load_records()
    found = choose(analyse(loop, records), records, chance.randint(2, 6))
    assert isinstance(found, NoSchedule), (planted, loop.file, found)
    assert found.reasons


@settings(max_examples=60, suppress_health_check=_CHECKS)
@given(seed=st.integers(0, 2**31))
def test_an_offered_schedule_has_a_serial_result(seed: int, tmp_path: Path) -> None:
    _check_offered(seed, tmp_path)


@pytest.mark.parametrize("planted", PLANTED)
@settings(max_examples=15, suppress_health_check=_CHECKS)
@given(seed=st.integers(0, 2**31))
def test_a_planted_dependence_forbids_every_schedule(planted: str, seed: int, tmp_path: Path) -> None:
    _check_refused(seed, tmp_path, planted)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_thousand_loops(tmp_path: Path) -> None:
    for seed in range(1000):
        if seed % 4:
            _check_offered(seed, tmp_path)
        else:
            _check_refused(seed, tmp_path, PLANTED[seed // 4 % len(PLANTED)])


def test_the_check_notices_another_order(tmp_path: Path) -> None:
    loop = random_loop(random.Random(5), tmp_path, "one")
    records, tables = loop.load_records(), loop.initial_tables(0)
    others = loop.initial_tables(0)
    run_serial(loop, records, tables)
    run_serial(loop, records, others, order=np.arange(len(records))[::-1])
    assert any(tables[name].tobytes() != others[name].tobytes() for name in tables)
