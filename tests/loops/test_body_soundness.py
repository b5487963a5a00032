"""Compares the accesses that the analysis finds with those of the function: it touches no row unknown to the analysis.

Each record runs twice, on tables that agree only in the rows known to the analysis. The known rows must end alike. All
other rows, and the rows that are only read, must not change.
"""

import random
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from autosync.errors import InputError
from autosync.loops.dependences import LoopAnalysis, analyse
from autosync.loops.load import load_loop
from autosync.loops.passes import record_pass
from autosync.loops.table_rows import touched_rows
from tests.helpers.random_bodies import random_body
from tests.helpers.random_loops import FAMILIES, random_loop

_CHECKS = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
_WRONG_PROGRAMS = (IndexError, TypeError, ValueError, UnboundLocalError, AttributeError, OverflowError)


def _check_records(analysis: LoopAnalysis, records: np.ndarray) -> int:
    """How many records ran to their end; every touch of theirs was known."""
    loop = analysis.loop
    way = record_pass(loop, records.dtype, compiled=False)
    chance = np.random.default_rng(0)
    num_run = 0
    for position in range(len(records)):
        one = records[position : position + 1]
        known = touched_rows(analysis.body.accesses, one)
        changed = touched_rows([access for access in analysis.body.accesses if access.changes], one)
        first = loop.initial_tables(position)
        second = {name: table.copy() for name, table in first.items()}
        for name, table in second.items():
            others = np.setdiff1d(np.arange(len(table)), known.get(name, []))
            table[others] = chance.integers(5, 90, size=table[others].shape)
        before = [{name: table.copy() for name, table in tables.items()} for tables in (first, second)]
        try:
            for tables in (first, second):
                way.run(one.copy(), tables)
        except _WRONG_PROGRAMS:
            continue
        num_run += 1
        for name in loop.tables:
            rows = known.get(name, np.empty(0, dtype=np.int64))
            assert first[name][rows].tobytes() == second[name][rows].tobytes(), (name, "reads an unknown row")
            same = np.setdiff1d(np.arange(len(first[name])), changed.get(name, []))
            for old, tables in zip(before, (first, second), strict=True):
                assert old[name][same].tobytes() == tables[name][same].tobytes(), (name, "changes an unknown row")
    return num_run


def _check_body(seed: int, folder: Path) -> int:
    path = folder / f"body_{seed}.py"
    path.write_text(random_body(random.Random(seed)), encoding="utf-8")
    loop = load_loop(str(path))
    records = loop.load_records()
    try:
        analysis = analyse(loop, records)
    except InputError:
        return 0
    with np.errstate(all="ignore"):
        return _check_records(analysis, records)


def test_random_bodies_touch_what_the_analysis_knows(tmp_path: Path) -> None:
    num_run = [_check_body(seed, tmp_path) for seed in range(250)]
    assert sum(map(bool, num_run)) > 60, "too many bodies were refused or failed to say much"


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_many_random_bodies_touch_what_the_analysis_knows(tmp_path: Path) -> None:
    for seed in range(1000, 12_000):
        _check_body(seed, tmp_path)


@settings(max_examples=25, suppress_health_check=_CHECKS)
@given(seed=st.integers(0, 2**31))
def test_random_loops_touch_what_the_analysis_knows(seed: int, tmp_path: Path) -> None:
    chance = random.Random(seed)
    loop = random_loop(chance, tmp_path, chance.choice(FAMILIES))
    records = loop.load_records()
    assert _check_records(analyse(loop, records), records) == len(records)
