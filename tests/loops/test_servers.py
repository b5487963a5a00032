"""Data-parallel runs through servers: their results are those of the documented meaning, bit for bit."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from autosync.cli import main
from autosync.loops.choosing import choose
from autosync.loops.declarations import SerialLoop
from autosync.loops.dependences import analyse
from autosync.loops.load import load_loop
from autosync.loops.passes import record_pass
from autosync.loops.rank_program import LoopResult
from autosync.loops.rank_run import LoopSettings
from autosync.loops.schedules import LoopSchedule, NoSchedule, ScheduleChoice
from autosync.loops.table_rows import touched_rows
from tests.helpers.loop_ranks import run_threads

_FILE = """import numpy as np

import autosync

NUM = 70


def records():
    chance = np.random.default_rng(3)
    found = np.zeros(NUM, dtype=[("i", "i8"), ("j", "i8"), ("words", "i4", (3,)), ("x", "f8")])
    found["i"] = chance.integers(0, 9, size=NUM)
    found["j"] = chance.random(NUM) ** 2 * 12
    found["words"] = chance.integers(0, 20, size=(NUM, 3))
    found["x"] = chance.normal(size=NUM)
    return found


@autosync.loop(records=records, order="{order}", tables={{
    "weights": autosync.Table(shape=(20,), initial=0.5{options}),
    "left": autosync.Table(shape=(9, 2), initial=lambda chance: chance.normal(size=(9, 2))),
    "right": autosync.Table(shape=(12, 2), dtype="float32", initial=lambda chance: chance.normal(size=(12, 2))),
}})
def step(r, weights, left, right):
    guess = right[r.j, 0] * left[r.i, 1]
    for w in r.words:
        guess += weights[w]
    off = 0.1 * (r.x - guess)
    for k in range(3):
        weights[r.words[k]] += off
    left[r.i] {left} off * right[r.j]
    right[r.j, 0] += off
"""


def _loop(folder: Path, *, order: str = "any", options: str = "", left: str = "+=") -> SerialLoop:
    path = folder / "shared.py"
    path.write_text(_FILE.format(order=order, options=options, left=left), encoding="utf-8")
    return load_loop(str(path))


def _emulated(loop: SerialLoop, result: LoopResult, num_epochs: int) -> dict[str, np.ndarray]:
    """The meaning of servers, written out for one process: `true` has the merged numbers after each piece."""
    schedule = result.schedule
    analysis = analyse(loop, loop.load_records())
    changing = [one for one in analysis.body.accesses if one.changes and one.table in schedule.served]
    records, tables = loop.load_records(), loop.initial_tables()
    parts = [records[result.blocks[rank, 0]] for rank in range(schedule.num_ranks)]
    num_pieces = max(1, -(-max(map(len, parts)) // schedule.merge_every))
    way = record_pass(loop, records.dtype, compiled=False)
    pieces = [np.array_split(part, num_pieces) for part in parts]
    rows = [[touched_rows(changing, piece) for piece in part] for part in pieces]
    for _ in range(num_epochs):
        # States before piece k, for ranks that read it without staleness.
        true = [{name: tables[name].copy() for name in schedule.served}]
        changes: list[list[dict[str, np.ndarray]]] = [[] for _ in parts]
        for k in range(num_pieces):
            for rank, part in enumerate(pieces):
                state = true[max(0, k - schedule.staleness)]
                own = {**tables, **{name: state[name].copy() for name in schedule.served}}
                for earlier in range(max(0, k - schedule.staleness), k):
                    for name, there in rows[rank][earlier].items():
                        own[name][there] += changes[rank][earlier][name]
                before = {name: own[name].copy() for name in schedule.served}
                way.run(part[k], own)
                changes[rank].append({name: own[name][one] - before[name][one] for name, one in rows[rank][k].items()})
            merged = {name: one.copy() for name, one in true[-1].items()}
            for rank in range(len(parts)):
                for name, there in rows[rank][k].items():
                    merged[name][there] += changes[rank][k][name]
            true.append(merged)
        tables.update(true[-1])
    return tables


@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(
    num_ranks=st.integers(2, 6),
    merge_every=st.integers(1, 40),
    staleness=st.integers(0, 5),
    num_epochs=st.integers(1, 2),
    is_buffered=st.booleans(),
)
def test_servers_mean_what_is_documented(
    *, num_ranks: int, merge_every: int, staleness: int, num_epochs: int, is_buffered: bool, tmp_path: Path
) -> None:
    loop = _loop(tmp_path, options=', updates="buffered"' if is_buffered else "")
    choice = ScheduleChoice(data_parallel=True, merge_every=merge_every, staleness=staleness)
    told = LoopSettings(num_epochs=num_epochs, compiled=False, choice=choice)
    result = run_threads(loop, num_ranks, told)
    assert result.schedule.kind == "data_parallel"
    # Rows of the table with the most bytes stay with ranks; the others are shared.
    assert result.schedule.served == ("weights", "right")
    for name, expected in _emulated(loop, result, num_epochs).items():
        assert result.tables[name].tobytes() == expected.tobytes(), name


def test_merging_after_every_record_on_one_rank_is_serial(tmp_path: Path) -> None:
    loop = _loop(tmp_path)
    choice = ScheduleChoice(data_parallel=True, merge_every=1)
    records = loop.load_records()
    found = choose(analyse(loop, records), records, 1, choice)
    assert isinstance(found, LoopSchedule)
    assert found.kind == "serial"


def test_a_table_that_is_assigned_is_not_merged(tmp_path: Path) -> None:
    loop = _loop(tmp_path, left="*=")
    records = loop.load_records()
    chosen = choose(analyse(loop, records), records, 3, ScheduleChoice(data_parallel=True, stay="j"))
    assert isinstance(chosen, NoSchedule)
    assert any("left[i] is written at line" in reason and "+=" in reason for reason in chosen.reasons)
    # Along i its rows stay with their ranks, so they need not be merged.
    assert isinstance(choose(analyse(loop, records), records, 3, ScheduleChoice(data_parallel=True)), LoopSchedule)


def test_a_given_order_has_no_data_parallel_schedule(tmp_path: Path) -> None:
    loop = _loop(tmp_path, order="given")
    records = loop.load_records()
    chosen = choose(analyse(loop, records), records, 3, ScheduleChoice(data_parallel=True))
    assert isinstance(chosen, NoSchedule)
    assert "order" in chosen.reasons[0]


def test_the_command_declares_what_changes_the_result(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _loop(tmp_path)
    path = str(tmp_path / "shared.py")
    assert main.run(["loop", "run", path]) == 2
    assert "--data-parallel" in capsys.readouterr().err
    assert main.run(["loop", "analyse", path, "--data-parallel", "--merge-every", "8", "--staleness", "2"]) == 0
    shown = capsys.readouterr().out
    assert "schedule for 4 ranks: data-parallel" in shown
    assert "weights, right through servers: merged after 8 records of a rank" in shown
    assert "the result is not that of a serial run" in shown
    assert main.run(["loop", "analyse", path, "--merge-every", "8"]) == 2
    assert "--merge-every and --staleness need --data-parallel" in capsys.readouterr().err


def test_processes_share_rows_through_servers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """In the second run, the tables come from the checkpoint of the first, and the records from its files."""
    loop = _loop(tmp_path)
    output, checkpoint, shards = (str(tmp_path / name) for name in ("tables.npz", "state.npz", "shards"))
    kept = ["--checkpoint", checkpoint, "--shards", shards]
    served = ["--data-parallel", "--merge-every", "6", "--staleness", "2", "--interpreted"]
    common = ["loop", "run", str(tmp_path / "shared.py"), "--workers", "3", *served, *kept]
    assert main.run(common) == 0
    assert "exchanges with servers" in capsys.readouterr().out
    assert main.run([*common, "--epochs", "3", "--resume", "-o", output]) == 0
    shown = capsys.readouterr().err
    assert "epoch 3" in shown
    assert "epoch 1" not in shown
    choice = ScheduleChoice(data_parallel=True, merge_every=6, staleness=2)
    result = run_threads(loop, 3, LoopSettings(num_epochs=3, compiled=False, choice=choice))
    with np.load(output) as found:
        assert {name: found[name].tobytes() for name in found} == {
            name: table.tobytes() for name, table in result.tables.items()
        }
