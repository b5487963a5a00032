"""Loops over grids: where a transformation opens a wavefront, its result is that of the given order, bit for bit."""

import random
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from autosync.loops.choosing import choose
from autosync.loops.declarations import SerialLoop
from autosync.loops.dependences import analyse
from autosync.loops.load import load_loop
from autosync.loops.proof import prove
from autosync.loops.rank_run import LoopSettings
from autosync.loops.record_blocks import split
from autosync.loops.schedules import LoopSchedule, NoSchedule, ScheduleChoice
from autosync.loops.skewing import find_skewings
from autosync.loops.tuning.candidates import exact_candidates
from tests.helpers.loop_ranks import run_threads
from tests.helpers.serial_loop import run_serial

_FILE = """import numpy as np

import autosync

HEIGHT, WIDTH = {height}, {width}


def records():
    chance = np.random.default_rng(3)
    places = np.array([(i, j) for i in range(2, HEIGHT + 2) for j in range({first}, WIDTH - {last})])
    places = places[chance.random(len(places)) < {share}]
    found = np.zeros(len(places), dtype=[("i", "i8"), ("j", "i8"), ("x", "f8")])
    found["i"], found["j"] = places.T
    found["x"] = chance.normal(size=len(places))
    return found{order}


@autosync.loop(records=records, order="given", tables={{
    "t": autosync.Table(shape=((HEIGHT + 3) * WIDTH, {columns}), initial=lambda chance: chance.normal(
        size=((HEIGHT + 3) * WIDTH, {columns}))),
    "u": autosync.Table(shape=((HEIGHT + 3) * WIDTH,)),
}})
def step(r, t, u):
{lines}
"""
_NEIGHBOURS = ((1, 0), (0, 1), (1, -1), (1, 1), (2, -1), (1, -2), (0, 2), (2, 1))
_CHECKS = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow]


def _row(down: int, right: int) -> str:
    return f"WIDTH * (r.i - {down}) + r.j - {right}"


def _grid(
    folder: Path,
    offsets: list[tuple[int, int]],
    *,
    height: int = 12,
    width: int = 16,
    share: float = 1.0,
    first: int = 2,
    last: int = 3,
    order: str = "",
    columns: int = 1,
) -> SerialLoop:
    lines = ["x = r.x"]
    lines += [f"x = 0.5 * x + 0.25 * t[{_row(down, right)}, 0]" for down, right in offsets]
    lines += [f"t[{_row(0, 0)}] = x + 0.125 * t[{_row(0, 0)}]", f"u[{_row(0, 0)}] += x"]
    text = _FILE.format(
        height=height,
        width=width,
        share=share,
        first=first,
        last=last,
        order=order,
        columns=columns,
        lines="".join(f"    {line}\n" for line in lines),
    )
    path = folder / f"grid_{len(list(folder.iterdir()))}.py"
    path.write_text(text, encoding="utf-8")
    return load_loop(str(path))


def _check(loop: SerialLoop, num_ranks: int, num_epochs: int, choice: ScheduleChoice) -> bool:
    """Whether the loop has a schedule; if so, its result is that of the given order."""
    records, tables = loop.load_records(), loop.initial_tables()
    if isinstance(choose(analyse(loop, records), records, num_ranks, choice), NoSchedule):
        return False
    result = run_threads(loop, num_ranks, LoopSettings(num_epochs=num_epochs, compiled=False, choice=choice))
    assert result.schedule.kind == "skewed"
    run_serial(loop, records, tables, num_epochs=num_epochs)
    for name, table in tables.items():
        assert result.tables[name].tobytes() == table.tobytes(), (name, loop.file)
    return True


@pytest.mark.parametrize(
    "offsets", [[(1, 0), (0, 1)], [(1, 0), (0, 1), (1, -1)], [(1, -2), (0, 1)], [(1, 1)], [(1, 0), (0, 2), (2, -1)]]
)
def test_neighbours_run_as_a_wavefront(offsets: list[tuple[int, int]], tmp_path: Path) -> None:
    loop = _grid(tmp_path, offsets)
    records = loop.load_records()
    analysis = analyse(loop, records)
    schedule = choose(analysis, records, 3)
    assert isinstance(schedule, LoopSchedule)
    proof = prove(analysis, schedule, split(schedule, records), records)
    assert proof.steps
    for choice in exact_candidates(analysis, records, 3):
        assert _check(loop, 3, 2, choice)


def _check_random(seed: int, folder: Path) -> bool:
    chance = random.Random(seed)
    offsets = chance.sample(_NEIGHBOURS, chance.randint(1, 3))
    loop = _grid(
        folder,
        offsets,
        height=chance.randint(6, 16),
        width=chance.randint(9, 18),
        share=chance.choice((1.0, 1.0, 0.6)),
        columns=chance.choice((1, 3)),
    )
    choice = ScheduleChoice(blocks_per_rank=chance.randint(1, 4))
    return _check(loop, chance.randint(2, 6), chance.randint(1, 3), choice)


@settings(max_examples=12, suppress_health_check=_CHECKS)
@given(seed=st.integers(0, 2**31))
def test_random_grids_keep_their_order(seed: int, tmp_path: Path) -> None:
    _check_random(seed, tmp_path)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_many_random_grids_keep_their_order(tmp_path: Path) -> None:
    num_offered = sum(_check_random(seed, tmp_path) for seed in range(300))
    assert num_offered > 200


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"first": 0, "last": 0}, "the row before the first of a line is the end of the line above"),
        ({"order": "[::-1]"}, "the records are in reverse order"),
        ({"order": "[np.random.default_rng(0).permutation(len(found))]"}, "the records are in no order"),
    ],
)
def test_grids_without_a_transformation(options: dict[str, object], why: str, tmp_path: Path) -> None:
    loop = _grid(tmp_path, [(1, 0), (0, 1)], **options)  # type: ignore[arg-type]
    records = loop.load_records()
    analysis = analyse(loop, records)
    assert find_skewings(analysis, records) == [], why
    assert isinstance(choose(analysis, records, 4), NoSchedule)


def test_a_loop_along_one_field_stays_serial(tmp_path: Path) -> None:
    text = """import numpy as np
import autosync

RECORDS = np.zeros(40, dtype=[("i", "i8"), ("j", "i8")])
RECORDS["i"] = np.arange(40)


@autosync.loop(records=RECORDS, order="given", tables={"t": autosync.Table(shape=(50,))})
def step(r, t):
    t[r.i + 1] = 0.5 * t[r.i] + 1.0
"""
    (tmp_path / "chain.py").write_text(text, encoding="utf-8")
    loop = load_loop(str(tmp_path / "chain.py"))
    records = loop.load_records()
    assert isinstance(choose(analyse(loop, records), records, 4), NoSchedule)


def test_unevenly_placed_records_are_not_worth_it(tmp_path: Path) -> None:
    """A single line of the grid is a chain: its blocks run one after the other."""
    loop = _grid(tmp_path, [(0, 1)], height=1)
    records = loop.load_records()
    analysis = analyse(loop, records)
    assert isinstance(choose(analysis, records, 4), NoSchedule)
    assert np.all(records["i"] == 2)
