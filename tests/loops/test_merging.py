"""Tables with copies on ranks: commutative ones are exact for whole numbers, buffered ones work as documented."""

from pathlib import Path

import numpy as np
import pytest

from autosync.loops.declarations import SerialLoop
from autosync.loops.load import load_loop
from autosync.loops.passes import record_pass
from autosync.loops.rank_run import LoopSettings
from tests.helpers.loop_ranks import run_threads
from tests.helpers.serial_loop import run_serial

_FILE = """import numpy as np

import autosync

NUM = 100


def records():
    chance = np.random.default_rng(3)
    found = np.zeros(NUM, dtype=[("i", "i8"), ("words", "i4", (4,)), ("x", "f8"), ("count", "i8")])
    found["i"] = np.arange(NUM) % 7
    found["words"] = chance.integers(0, 30, size=(NUM, 4))
    found["x"] = chance.normal(size=NUM)
    return found


@autosync.loop(records=records, tables={
    "weights": autosync.Table(shape=(30,), initial=0.5, updates="buffered", merge_every=8),
    "seen": autosync.Table(shape=(30, 2), dtype="int64", updates="commutative"),
    "sums": autosync.Table(shape=(7,)),
})
def step(r, weights, seen, sums):
    guess = 0.0
    for w in r.words:
        guess += weights[w]
        seen[w, 1] += 2
    for k in range(4):
        weights[r.words[k]] += 0.1 * (r.x - guess)
    r.count += 1
    {more}
"""


@pytest.fixture
def loop_of(tmp_path: Path):
    def make(more: str) -> SerialLoop:
        path = tmp_path / "words.py"
        path.write_text(_FILE.replace("{more}", more), encoding="utf-8")
        return load_loop(str(path))

    return make


def _emulated(loop: SerialLoop, parts: list[np.ndarray], num_epochs: int) -> dict[str, np.ndarray]:
    """The meaning of buffered tables, written out: each rank has a copy, and copies are merged after 8 records."""
    true = loop.initial_tables()
    way = record_pass(loop, parts[0].dtype, compiled=False)
    copies = [{name: table.copy() for name, table in true.items()} for _ in parts]
    for copy in copies:
        copy["seen"][:] = 0
        copy["sums"] = true["sums"]
    num_pieces = max(-(-len(part) // 8) for part in parts)
    for _ in range(num_epochs):
        pieces = [np.array_split(part, num_pieces) for part in parts]
        for position in range(num_pieces):
            before = true["weights"].copy()
            for rank, copy in enumerate(copies):
                way.run(pieces[rank][position], copy)
            for copy in copies:
                true["weights"] += copy["weights"] - before
            for copy in copies:
                copy["weights"][:] = true["weights"]
    for copy in copies:
        true["seen"] += copy["seen"]
    return true


@pytest.mark.parametrize("more", ["pass", "sums[r.i] = 0.5 * sums[r.i] + guess"])
@pytest.mark.parametrize("num_ranks", [2, 3, 5])
def test_merges_mean_what_is_documented(more: str, num_ranks: int, loop_of) -> None:
    loop = loop_of(more)
    result = run_threads(loop, num_ranks, LoopSettings(num_epochs=3, compiled=False))
    assert result.schedule.kind == ("independent" if more == "pass" else "one_dimension")
    records = loop.load_records()
    parts = [records[result.blocks[rank, 0]] for rank in range(num_ranks)]
    expected = _emulated(loop, parts, 3)
    for name, table in expected.items():
        assert result.tables[name].tobytes() == table.tobytes(), name
    assert result.tables["seen"].sum() == 3 * 100 * 4 * 2
    assert set(result.records["count"]) == {3}


def test_one_rank_is_the_serial_program(loop_of) -> None:
    loop = loop_of("sums[r.i] = guess")
    result = run_threads(loop, 1, LoopSettings(num_epochs=2, compiled=False))
    records, tables = loop.load_records(), loop.initial_tables()
    run_serial(loop, records, tables, num_epochs=2)
    for name, table in tables.items():
        assert result.tables[name].tobytes() == table.tobytes(), name


def test_a_function_that_numba_cannot_compile_is_interpreted(loop_of) -> None:
    loop = loop_of("s = np.linalg.norm(weights[r.i], axis=0) if r.x > 9 else 0.0\n    sums[r.i] += s")
    way = record_pass(loop, loop.load_records().dtype, compiled=True)
    assert not way.is_compiled
    assert way.why_not


def test_a_compiled_function_does_the_same(loop_of) -> None:
    loop = loop_of("sums[r.i] = 0.5 * sums[r.i] + guess")
    results = []
    for compiled in (False, True):
        records, tables = loop.load_records(), loop.initial_tables()
        way = record_pass(loop, records.dtype, compiled=compiled)
        assert way.is_compiled == compiled
        way.run(records, tables)
        results.append((records, tables))
    for name, table in results[0][1].items():
        assert np.allclose(table, results[1][1][name], rtol=1e-12), name
    assert np.array_equal(results[0][0]["count"], results[1][0]["count"])
