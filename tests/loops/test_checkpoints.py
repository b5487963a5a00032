"""Checkpoints: a run that continues has the result of a run without interruption; damaged files are refused."""

import pickle
import zipfile
from pathlib import Path

import numpy as np
import pytest

from autosync.cli import main
from autosync.errors import InputError
from autosync.loops.checkpoints import Checkpoints
from autosync.loops.declarations import SerialLoop
from autosync.loops.load import load_loop
from autosync.loops.rank_run import LoopSettings
from autosync.loops.schedules import ScheduleChoice
from tests.helpers.loop_ranks import run_threads

_FILE = """import numpy as np

import autosync


def records():
    chance = np.random.default_rng(3)
    found = np.zeros(60, dtype=[("i", "i8"), ("j", "i8"), ("x", "f8")])
    found["i"] = chance.integers(0, 9, size=60)
    found["j"] = chance.integers(0, 7, size=60)
    found["x"] = chance.normal(size=60)
    return found


@autosync.loop(records=records, {loss}tables={{
    "left": autosync.Table(shape=(9,), initial=lambda chance: chance.normal(size=9)),
    "right": autosync.Table(shape=(7,), initial=1.0),
    "total": autosync.Table(shape=(1,), updates="buffered", merge_every=4),
    "seen": autosync.Table(shape=(9,), dtype="int64", updates="commutative"),
}})
def step(r, left, right, total, seen):
    r.x = 0.5 * r.x + right[r.j]
    left[r.i] += 0.1 * r.x
    right[r.j] += 0.1 * left[r.i] - 0.01 * total[0]
    total[0] += r.x
    seen[r.i] += 1
"""
_LOSS = "loss=lambda records, **tables: float(records['x'].sum() + tables['left'].sum()), "


@pytest.fixture(params=["", _LOSS], ids=["no loss", "loss"])
def loop(request: pytest.FixtureRequest, tmp_path: Path) -> SerialLoop:
    path = tmp_path / "kept.py"
    path.write_text(_FILE.format(loss=request.param), encoding="utf-8")
    return load_loop(str(path))


@pytest.mark.parametrize("choice", [ScheduleChoice(), ScheduleChoice(data_parallel=True, merge_every=5, staleness=2)])
def test_a_run_continues_as_if_it_had_not_ended(loop: SerialLoop, choice: ScheduleChoice, tmp_path: Path) -> None:
    def run(num_epochs: int, checkpoints: Checkpoints | None = None):
        told = LoopSettings(num_epochs=num_epochs, compiled=False, choice=choice)
        return run_threads(loop, 3, told, checkpoints=checkpoints)

    path = tmp_path / "state.npz"
    whole = run(5)
    run(3, Checkpoints(path=path, every=2))
    continued = run(5, Checkpoints(path=path, every=2, resumes=True))
    for name, table in whole.tables.items():
        assert continued.tables[name].tobytes() == table.tobytes(), name
    assert continued.records.tobytes() == whole.records.tobytes()
    assert continued.losses == whole.losses
    with pytest.raises(InputError, match="5 epochs are done"):
        run(5, Checkpoints(path=path, resumes=True))


def _kept(loop: SerialLoop, path: Path) -> None:
    run_threads(loop, 2, LoopSettings(compiled=False), checkpoints=Checkpoints(path=path))


def _resume(loop: SerialLoop, path: Path) -> None:
    run_threads(loop, 1, LoopSettings(num_epochs=4, compiled=False), checkpoints=Checkpoints(path=path, resumes=True))


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-200])


def _with_pickle(path: Path) -> None:
    array = np.array([print], dtype=object)
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("evil.npy", pickle.dumps(array))


def _with_an_open_bracket(path: Path) -> None:
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("open.npy", b"\x93NUMPY\x01\x00\x0c\x00{'descr': (\n")


def _too_large(path: Path) -> None:
    with zipfile.ZipFile(path, "a", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("large.npy", bytes(3 * 2**20))


def _without_a_table(path: Path) -> None:
    with np.load(path) as found:
        arrays = {name: found[name] for name in found.files if name != "table.left"}
    np.savez(path, **arrays)


DAMAGES = {
    "cut": (_cut, "is damaged"),
    "empty": (lambda path: path.write_bytes(b""), "is damaged"),
    "no archive": (lambda path: path.write_bytes(b"PK\x03\x04 and more"), "is damaged"),
    "a pickle": (_with_pickle, "is damaged"),
    "an open bracket": (_with_an_open_bracket, "is damaged"),
    "too large": (_too_large, "is damaged"),
    "a table is missing": (_without_a_table, "does not fit the loop: table.left"),
    "gone": (Path.unlink, "no such checkpoint"),
}


@pytest.mark.parametrize("how", DAMAGES)
def test_a_damaged_checkpoint_is_refused(how: str, loop: SerialLoop, tmp_path: Path) -> None:
    damage, words = DAMAGES[how]
    path = tmp_path / "state.npz"
    _kept(loop, path)
    damage(path)
    with pytest.raises(InputError, match=words):
        _resume(loop, path)


def test_a_checkpoint_of_another_loop_is_refused(loop: SerialLoop, tmp_path: Path) -> None:
    path = tmp_path / "state.npz"
    _kept(loop, path)
    file = tmp_path / "kept.py"
    file.write_text(file.read_text(encoding="utf-8").replace("0.01 *", "0.02 *"), encoding="utf-8")
    with pytest.raises(InputError, match="another loop"):
        _resume(load_loop(str(file)), path)


OTHER_RECORDS = {
    "another value": ("return found\n", "found['x'][7] += 1.0\n    return found\n"),
    "another order": ("return found\n", "return found[::-1]\n"),
    "other rows": ("default_rng(3)", "default_rng(4)"),
    "another type": ('("i", "i8")', '("i", "u8")'),
}


@pytest.mark.parametrize("how", OTHER_RECORDS)
def test_a_checkpoint_of_other_records_is_refused(how: str, loop: SerialLoop, tmp_path: Path) -> None:
    path, file = tmp_path / "state.npz", tmp_path / "kept.py"
    _kept(loop, path)
    file.write_text(file.read_text(encoding="utf-8").replace(*OTHER_RECORDS[how]), encoding="utf-8")
    with pytest.raises(InputError, match="other records"):
        _resume(load_loop(str(file)), path)


def test_the_command_keeps_no_file_by_accident(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, path = tmp_path / "kept.py", tmp_path / "state.npz"
    file.write_text(_FILE.format(loss=_LOSS), encoding="utf-8")
    path.write_bytes(b"of another program")
    assert main.run(["loop", "run", str(file), "--checkpoint", str(path)]) == 2
    assert "state.npz" in capsys.readouterr().err
    assert main.run(["loop", "run", str(file), "--resume"]) == 2
    assert "--every and --resume need --checkpoint" in capsys.readouterr().err
