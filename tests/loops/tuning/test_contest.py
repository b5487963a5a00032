"""The contest of schedules: its goal, its finalists, and what it refuses. No test depends on which schedule wins."""

import json
import math
from pathlib import Path

import pytest

from autosync import documents
from autosync.cli import main
from autosync.errors import DocumentError, OperationError
from autosync.loops.declarations import SerialLoop
from autosync.loops.load import load_loop
from autosync.loops.rank_program import end_others, prepare
from autosync.loops.rank_run import LoopSettings
from autosync.loops.schedule_file import read_choice, write_choice
from autosync.loops.schedules import ScheduleChoice
from autosync.loops.tuning.contest import ContestResult, TuningOrders, tune_prepared
from autosync.loops.tuning.prediction import RankLinks
from autosync.loops.tuning.tune import TunedLoop, tuning_fields
from tests.helpers.loop_ranks import ThreadPeers, run_ranks

_FILE = """import numpy as np

import autosync


def records():
    chance = np.random.default_rng(3)
    found = np.zeros(160, dtype=[("i", "i8"), ("j", "i8"), ("x", "f8")])
    found["i"] = chance.integers(0, 20, size=160)
    found["j"] = chance.integers(0, 16, size=160)
    found["x"] = np.sin(found["i"]) + np.cos(found["j"])
    return found


def loss(records, left, right):
    return float(np.mean((records["x"] - left[records["i"]] - right[records["j"]]) ** 2))


@autosync.loop(records=records, {loss}tables={{
    "left": autosync.Table(shape=(20,){options}),
    "right": autosync.Table(shape=(16,){options}),
}})
def step(r, left, right):
    off = {rate} * (r.x - left[r.i] - right[r.j])
    left[r.i] += off
    right[r.j] += off
"""


def _write(folder: Path, *, loss: str = "loss=loss, ", options: str = "", rate: float = 0.05) -> Path:
    path = folder / "sums.py"
    path.write_text(_FILE.format(loss=loss, options=options, rate=rate), encoding="utf-8")
    return path


def _tuned(loop: SerialLoop, num_ranks: int = 3, **orders: object) -> ContestResult:
    links = RankLinks(nodes=(0,) * num_ranks, rates_out=(1e9,), rates_in=(1e9,), rates_within=(1e9,))
    told = TuningOrders(settings=LoopSettings(num_epochs=3, compiled=False), links=links, **orders)  # type: ignore[arg-type]

    def first(peers: ThreadPeers) -> ContestResult:
        result = tune_prepared(peers, prepare(loop), told, lambda _: None)
        end_others(peers)
        return result

    return run_ranks(loop, num_ranks, first)


def test_finalists_run_to_the_serial_loss(tmp_path: Path) -> None:
    result = _tuned(load_loop(str(_write(tmp_path))))
    finalists = [one for one in result.contestants if one.is_finalist]
    assert len(finalists) == 4
    assert result.contestants[0].seconds, "the winner has reached the goal"
    assert any(not one.choice.data_parallel for one in finalists)
    assert any(one.choice.data_parallel for one in finalists)
    assert 0 < result.goal < result.initial_loss
    for one in finalists:
        assert bool(one.seconds) != bool(one.why_not)
        assert len(one.seconds) <= result.num_rounds
        assert math.isfinite(one.predicted_seconds)
    sampled = [one for one in result.contestants if one.is_sampled]
    assert sum(not one.choice.data_parallel for one in sampled) == 1
    assert all(one.is_sampled for one in result.contestants if one.choice.data_parallel)


def test_a_goal_of_the_users(tmp_path: Path) -> None:
    loop = load_loop(str(_write(tmp_path)))
    easy = _tuned(loop, goal=0.9, num_rounds=1)
    assert easy.goal == 0.9
    assert easy.contestants[0].num_epochs == 1
    with pytest.raises(OperationError, match=r"the loss 1e-09 is not reached in 3 epochs"):
        _tuned(loop, goal=1e-9)


def test_buffered_tables_are_compared_with_one_rank(tmp_path: Path) -> None:
    result = _tuned(load_loop(str(_write(tmp_path, options=', updates="buffered", merge_every=10'))), num_rounds=1)
    serial = next(one for one in result.contestants if one.choice.on_one_rank)
    assert serial.is_finalist
    assert serial.is_sampled
    assert all(one.is_sampled for one in result.contestants)


def test_a_loss_that_grows_is_no_goal(tmp_path: Path) -> None:
    with pytest.raises(OperationError, match="the loss does not fall in the first epoch"):
        _tuned(load_loop(str(_write(tmp_path, rate=-0.05))))


_COUNTING = """import math

import numpy as np

import autosync

RECORDS = np.zeros(12, dtype=[("i", "i8")])
RECORDS["i"] = np.arange(12)


def loss(records, t):
    return {loss}


@autosync.loop(records=RECORDS, loss=loss, tables={{"t": autosync.Table(shape=(12,))}})
def step(r, t):
    t[r.i] += 1.0
"""


def _counting(folder: Path, loss: str) -> SerialLoop:
    """A loop whose table counts the epochs."""
    path = folder / "counting.py"
    path.write_text(_COUNTING.format(loss=loss), encoding="utf-8")
    return load_loop(str(path))


@pytest.mark.parametrize("last", ["nan", "inf", "-inf"])
def test_a_loss_that_is_not_finite_is_no_goal(last: str, tmp_path: Path) -> None:
    loop = _counting(tmp_path, f"9.0 - t[0] if t[0] < 3 else {'-' if last[0] == '-' else ''}math.{last.strip('-')}")
    with pytest.raises(OperationError, match=f"the loss is {last} after 3 epochs"):
        _tuned(loop)


def test_a_loss_may_begin_infinite(tmp_path: Path) -> None:
    outcome = _tuned(_counting(tmp_path, "9.0 - t[0] if t[0] else math.inf"), num_rounds=1)
    fields = tuning_fields(TunedLoop(loop="step", cluster="c", num_ranks=3, num_records=12, outcome=outcome))
    assert (fields["goal"], fields["initial_loss"]) == (6.0, None)
    assert json.loads(documents.format_json(fields))["contestants"][0]["seconds"]


def test_no_time_is_time_for_the_reference_alone(tmp_path: Path) -> None:
    result = _tuned(load_loop(str(_write(tmp_path))), budget_seconds=0.0)
    others = [one for one in result.contestants[1:] if one.is_finalist]
    assert [one.why_not for one in others] == ["not run: the time was over"] * 3
    assert not result.is_proven


def test_the_file_of_a_choice(tmp_path: Path) -> None:
    choice = ScheduleChoice(data_parallel=True, merge_every=7, staleness=2)
    write_choice(tmp_path / "schedule.yaml", choice)
    assert read_choice(tmp_path / "schedule.yaml") == choice
    text = (tmp_path / "schedule.yaml").read_text(encoding="utf-8")
    for old, new, words in (
        ("merge_every: 7", "merge_every: 0", "merge_every: is 0"),
        ("staleness", "stalenes", "did you mean"),
        ("loop_schedule/1", "loop_schedule/2", "newer"),
    ):
        (tmp_path / "wrong.yaml").write_text(text.replace(old, new), encoding="utf-8")
        with pytest.raises(DocumentError, match=words):
            read_choice(tmp_path / "wrong.yaml")


def test_the_command_tunes_a_loop(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, output = _write(tmp_path), tmp_path / "schedule.yaml"
    options = ["--cluster", "local-2", "--epochs", "2", "--trials", "2", "-o", str(output)]
    assert main.run(["tune", str(path), *options, "--json"]) == 0
    shown = capsys.readouterr()
    assert "sample: " in shown.err
    told = json.loads(shown.out)
    assert told["schema"] == "autosync.loop_tuning/1"
    winner = told["contestants"][0]
    assert winner["seconds"]
    assert documents.read_document(output).value["schema"] == "autosync.loop_schedule/1"
    assert read_choice(output) == ScheduleChoice(**winner["choice"])
    assert main.run(["loop", "analyse", str(path), "--schedule", str(output)]) == 0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--cluster", "local-2", "--proposer", "tpe"], "leave out --proposer"),
        ([], "missing option '--cluster'"),
        (["--cluster", "local-2", "--trials", "0"], "leaves no schedule to run"),
    ],
)
def test_options_that_do_not_fit_a_loop(
    arguments: list[str], words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.run(["tune", str(_write(tmp_path)), *arguments]) == 2
    assert words in capsys.readouterr().err


def test_a_loop_without_a_loss_is_not_tuned(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = _write(tmp_path, loss="")
    assert main.run(["tune", str(path), "--cluster", "local-2"]) == 2
    assert f"{path}:" in (error := capsys.readouterr().err)
    assert "declares no loss" in error


def test_options_of_loops_do_not_fit_a_model(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["tune", "resnet50", "--cluster", "4-hosts", "--goal", "1"]) == 2
    assert "only a loop, a function under @autosync.loop, has --goal" in capsys.readouterr().err
    assert main.run(["tune", "--cluster", "local-2", "--epochs", "1", "--", "train.py"]) == 2
    assert "leave out --epochs" in capsys.readouterr().err
