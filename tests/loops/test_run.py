"""Runs on real processes, through the command line: the tables are those of a serial order, bit for bit."""

import functools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from autosync.cli import main
from autosync.errors import OperationError
from autosync.loops.checkpoints import Checkpoints
from autosync.loops.choosing import choose
from autosync.loops.dependences import analyse
from autosync.loops.launch import this_machine
from autosync.loops.load import load_loop
from autosync.loops.passes import record_pass
from autosync.loops.rank_run import LoopSettings
from autosync.loops.record_blocks import serial_order, split
from autosync.loops.run import run_loop
from autosync.loops.schedules import LoopSchedule
from tests.helpers.serial_loop import run_serial

EXAMPLE = Path(__file__).parents[2] / "examples/loops/matrix_factorisation.py"


def _json(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, object]:
    capsys.readouterr()
    assert main.run([*arguments, "--json"]) == 0, capsys.readouterr().err
    found: dict[str, object] = json.loads(capsys.readouterr().out)
    return found


CLUSTER = """schema: autosync.cluster/1
name: two-nodes
nodes:
  - {name: a, host: localhost, devices: 1, bandwidth: 1 Gbit/s}
  - {name: b, host: localhost, devices: 2, bandwidth: 1 Gbit/s}
"""


def test_processes_of_a_cluster_have_the_tables_of_a_serial_order(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output, cluster = tmp_path / "tables.npz", tmp_path / "cluster.yaml"
    cluster.write_text(CLUSTER, encoding="utf-8")
    options = ("--cluster", str(cluster), "--epochs", "2", "--seed", "4", "-o", str(output))
    arguments = ("loop", "run", str(EXAMPLE), *options)
    told = _json(capsys, *arguments)
    assert told["schedule"] == "two_dimensions"
    assert told["is_compiled"] is True

    loop = load_loop(str(EXAMPLE))
    records, tables = loop.load_records(), loop.initial_tables(4)
    analysis = analyse(loop, records)
    schedule = choose(analysis, records, 3)
    assert isinstance(schedule, LoopSchedule)
    way = record_pass(loop, records.dtype, compiled=True)
    order = serial_order(schedule, split(schedule, records))
    run_serial(loop, records, tables, order=order, num_epochs=2, way=way)
    with np.load(output) as found:
        assert {name: found[name].tobytes() for name in found} == {name: one.tobytes() for name, one in tables.items()}
    losses = told["losses"]
    assert isinstance(losses, list)
    assert losses[1] == loop.loss(records, **tables) < losses[0]


def test_an_error_of_the_users_code_names_its_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = EXAMPLE.read_text(encoding="utf-8")
    broken = text.replace("guesses = (users", "guesses = 1 / 0 + (users")
    path = tmp_path / "broken.py"
    path.write_text(broken, encoding="utf-8")
    line = next(number for number, one in enumerate(broken.splitlines(), start=1) if "1 / 0" in one)
    assert main.run(["loop", "run", str(path), "--workers", "2"]) == 1
    assert f"broken.py:{line}: the loss raised ZeroDivisionError" in capsys.readouterr().err


def test_a_loop_without_a_schedule_is_not_started(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "counts.py"
    path.write_text(
        """import numpy as np
import autosync

RECORDS = np.zeros(4, dtype=[("i", "i8"), ("x", "f8")])


@autosync.loop(records=RECORDS, tables={"mean": autosync.Table(shape=(1,))})
def step(r, mean):
    mean[0] = 0.9 * mean[0] + r.x
""",
        encoding="utf-8",
    )
    assert main.run(["loop", "run", str(path)]) == 2
    error = capsys.readouterr().err
    assert f"{path}:7: no schedule keeps the serial result: mean[0] written at line 9: any two records" in error
    assert 'updates="buffered"' in error
    assert main.run(["loop", "analyse", str(path)]) == 0
    assert "schedule for 4 ranks: none keeps the serial result" in capsys.readouterr().out
    assert main.run(["loop", "run", str(path), "--workers", "1"]) == 0


@pytest.mark.parametrize(
    ("target", "words"),
    [
        ("missing.py", "missing.py:1: no such file"),
        ("loop.txt", "names no loop"),
        (f"{EXAMPLE}:stp", "has no loop 'stp' (known: step); did you mean 'step'?"),
    ],
)
def test_targets_that_name_no_loop(target: str, words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["loop", "analyse", target]) == 2
    assert words in capsys.readouterr().err


def test_the_analysis_for_programs(capsys: pytest.CaptureFixture[str]) -> None:
    told = _json(capsys, "loop", "analyse", str(EXAMPLE), "--workers", "3")
    assert told["dimensions"] == ["user", "item"]
    assert [one["distances"] for one in told["dependences"]] == [[0, None], [None, 0]]  # type: ignore[attr-defined]
    assert told["result"] == "serial"
    assert told["schedule"]["stay"] == "user"  # type: ignore[index]


_COUNTING = """import numpy as np
import autosync

RECORDS = np.zeros(4, dtype=[("i", "i8")])
RECORDS["i"] = np.arange(4)


def loss(records, t):
    return 8.0 - t[0] if t[0] < 2 else float("nan")


@autosync.loop(records=RECORDS, tables={"t": autosync.Table(shape=(4,))}, loss=loss)
def step(r, t):
    t[r.i] += 1.0
"""


@pytest.fixture
def counting(tmp_path: Path) -> Path:
    """A loop whose loss is not finite after its second epoch."""
    path = tmp_path / "counting.py"
    path.write_text(_COUNTING, encoding="utf-8")
    return path


def test_a_loss_that_is_not_finite_is_null(counting: Path, capsys: pytest.CaptureFixture[str]) -> None:
    told = _json(capsys, "loop", "run", str(counting), "--workers", "1", "--epochs", "2", "--interpreted")
    assert told["losses"] == [7.0, None]


@pytest.mark.parametrize("kind", ["output", "checkpoints"])
def test_rank_0_replaces_no_file_unasked(kind: str, counting: Path, tmp_path: Path) -> None:
    path = tmp_path / "mine.npz"
    path.write_bytes(b"mine")
    files: dict[str, Any] = {kind: path if kind == "output" else Checkpoints(path=path)}
    epochs: list[dict[str, Any]] = []
    run = functools.partial(run_loop, str(counting), this_machine(1), LoopSettings(compiled=False), **files)
    with pytest.raises(OperationError, match=r"mine\.npz exists"):
        run(told=epochs.append)
    assert (path.read_bytes(), epochs) == (b"mine", [])
    run(force=True)
    assert path.read_bytes() != b"mine"


@pytest.mark.parametrize("force", [False, True])
def test_on_other_machines_their_own_files_count(
    counting: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, force: bool
) -> None:
    given: dict[str, object] = {}

    def run(*_: object, **options: object) -> dict[str, object]:
        given.update(options)
        raise OperationError("enough is known")

    monkeypatch.setattr("autosync.loops.run.run_loop", run)
    output, cluster = tmp_path / "tables.npz", tmp_path / "cluster.yaml"
    output.write_bytes(b"of this machine")
    cluster.write_text(CLUSTER.replace("localhost", "gpu-0", 1) + "launcher: ssh\n", encoding="utf-8")
    options = ["--cluster", str(cluster), "-o", str(output), *(["--force"] if force else [])]
    assert main.run(["loop", "run", str(counting), *options]) == 1
    assert given["force"] is force
