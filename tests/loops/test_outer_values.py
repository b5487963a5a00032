"""The numbers around a loop's function are constants: ranks agree on them, and no user code changes them in a run."""

import inspect
from pathlib import Path

import pytest

from autosync.cli import main
from autosync.errors import InputError
from autosync.loops.declarations import SerialLoop
from autosync.loops.load import load_loop
from autosync.loops.outer_values import numbers_of
from autosync.loops.rank_program import digest_of
from autosync.loops.rank_run import LoopSettings
from tests.helpers.loop_ranks import run_threads

_FILE = """import numpy as np

import autosync

RATE = 0.5
count = 0


def records():
    global RATE, count
    found = np.zeros(12, dtype=[("i", "i8"), ("count", "f8")])
    found["i"] = np.arange(12) % 6
    {in_records}
    return found


def initial(chance):
    global RATE, count
    {in_initial}
    return np.ones(6)


def loss(records, t):
    global RATE, count
    {in_loss}
    return float(t.sum())


@autosync.loop(records=records, tables={{"t": autosync.Table(shape=(6,), initial=initial)}}, loss=loss)
def step(r, t):
    t[r.i] += RATE * (1.0 + r.count)
"""
_FALLS = "RATE *= 0.5"


def _write(folder: Path, **lines: str) -> Path:
    path = folder / "numbers.py"
    texts = {"in_records": "pass", "in_initial": "pass", "in_loss": "pass", **lines}
    path.write_text(_FILE.format(**texts), encoding="utf-8")
    return path


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize(("place", "words"), [("in_loss", "the loss"), ("in_initial", "the initial tables")])
def test_user_code_that_changes_a_number_in_a_run_is_refused(
    place: str, words: str, tmp_path: Path, *, compiled: bool
) -> None:
    loop = load_loop(str(_write(tmp_path, **{place: _FALLS})))
    with pytest.raises(InputError, match=rf"numbers\.py:\d+: {words} changes RATE from 0\.5 to 0\.25 "):
        run_threads(loop, 1, LoopSettings(num_epochs=2, compiled=compiled))


def test_numbers_that_the_loop_does_not_use_may_change(tmp_path: Path) -> None:
    # The loop uses a field of the same name.
    loop = load_loop(str(_write(tmp_path, in_records="count += 1", in_initial="count += 1", in_loss="count += 1")))
    assert run_threads(loop, 2, LoopSettings(num_epochs=2, compiled=False)).losses == (12.0, 18.0)


def test_one_rank_may_set_numbers_in_its_records(tmp_path: Path) -> None:
    loop = load_loop(str(_write(tmp_path, in_records="RATE = 1.0")))
    assert run_threads(loop, 1, LoopSettings(compiled=False)).losses == (18.0,)


def test_ranks_name_a_number_that_differs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = _write(tmp_path, in_records="RATE = 1.0")
    assert main.run(["loop", "run", str(path), "--workers", "2", "--interpreted"]) == 1
    error = capsys.readouterr().err
    assert "numbers.py: RATE is 0.5 on rank 1, and 1.0 on rank 0" in error
    assert "only rank 0 calls records()" in error


_FACTORY = """import numpy as np

import autosync

RECORDS = np.zeros(8, dtype=[("i", "i8"), ("few", "f8", (3,))])
RECORDS["i"] = np.arange(8) % 4
RECORDS["few"] = 1.0


def made(rate, dot):
    @autosync.loop(records=RECORDS, tables={{"t": autosync.Table(shape=(4,))}})
    def step(r, t):
        t[r.i] += rate * dot(r.few, r.few)

    return step


step = made({rate}, {dot})
"""


def _made(folder: Path, rate: float, dot: str) -> SerialLoop:
    path = folder / "factory.py"
    path.write_text(_FACTORY.format(rate=rate, dot=dot), encoding="utf-8")
    return load_loop(str(path))


def test_a_digest_has_numbers_of_closures_and_no_addresses(tmp_path: Path) -> None:
    first, again = _made(tmp_path, 0.5, "lambda a, b: 1.0"), _made(tmp_path, 0.5, "lambda a, b: 1.0")
    functions = [inspect.getclosurevars(one.function).nonlocals["dot"] for one in (first, again)]
    assert repr(functions[0]) != repr(functions[1])
    assert numbers_of(first.function) == {"rate": "0.5"}
    digest = digest_of(first)
    assert digest == digest_of(again)
    assert digest != digest_of(_made(tmp_path, 0.25, "lambda a, b: 1.0"))


@pytest.mark.parametrize("options", [[], ["--interpreted"]])
def test_ranks_run_a_loop_that_a_function_made(options: list[str], tmp_path: Path) -> None:
    _made(tmp_path, 0.5, "np.dot")
    assert main.run(["loop", "run", str(tmp_path / "factory.py"), "--workers", "2", *options]) == 0
