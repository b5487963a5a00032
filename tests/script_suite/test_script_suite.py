"""The suite itself: two of its scripts pass, and it notices what is wrong."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

HERE = Path(__file__).parent
LIMIT_SECONDS = 900


def _run(folder: Path, *arguments: str) -> tuple[int, dict[str, Any], str]:
    """Return the exit code, the JSON document and what was printed."""
    output = folder / "suite.json"
    process = subprocess.Popen(
        (sys.executable, HERE / "run.py", "--output", output, *arguments),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
        env={**os.environ, "PYTHONSAFEPATH": "1"},
    )
    try:
        printed, _ = process.communicate(timeout=LIMIT_SECONDS)
    finally:
        if process.poll() is None:
            # It ends what it has started when it is asked to end.
            process.send_signal(signal.SIGTERM)
            process.wait(60)
    return process.returncode, json.loads(output.read_text()) if output.exists() else {}, printed


@pytest.mark.slow
@pytest.mark.timeout(LIMIT_SECONDS + 90)
def test_two_scripts_are_as_under_stock_ddp(tmp_path: Path) -> None:
    pytest.importorskip("accelerate")
    code, document, printed = _run(tmp_path, "--only", "plain_sparse", "accelerate_basic")
    assert code == 0, printed
    assert set(document["counts"]) <= {"same", "refused"}
    assert len(document["results"]) == 8


def test_unknown_names_are_bad_input(tmp_path: Path) -> None:
    code, _, printed = _run(tmp_path, "--only", "nothing_of_the_kind")
    assert code == 2
    assert "nothing_of_the_kind is not known" in printed


@pytest.fixture(scope="module")
def suite() -> Any:
    """The suite's modules, by name."""
    path = list(sys.path)
    sys.path.insert(0, str(HERE))
    names = ("listed", "written", "judging", "cells", "processes")
    before = {name: sys.modules.pop(name) for name in names if name in sys.modules}
    try:
        import cells
        import judging
        import listed
        import processes
        import written

        from benchmarks.break_even import break_even
    finally:
        sys.path[:] = path
    modules: dict[str, ModuleType] = {one.__name__: one for one in (cells, judging, listed, processes, written)}
    modules["break_even"] = break_even
    for name in names:
        del sys.modules[name]
    sys.modules.update(before)
    return modules


def test_each_script_of_the_list_is_a_file(suite: Any) -> None:
    listed = suite["listed"]
    assert {one.path for one in listed.SCRIPTS} == set(listed.SCRIPTS_FOLDER.glob("*.py"))
    assert all(set(one.refused) <= set(suite["cells"].CELLS) for one in listed.SCRIPTS)


def test_no_script_names_autosync(suite: Any) -> None:
    assert not [one.name for one in suite["listed"].SCRIPTS if "autosync" in one.path.read_text(encoding="utf-8")]


def _written(suite: Any, losses: tuple[float, ...], *values: float) -> Any:
    return suite["written"].Written(losses=losses, tensors={"weight": torch.tensor(values), "frozen": torch.ones(2)})


def test_twice_the_distance_of_stock_ddp_is_allowed(suite: Any) -> None:
    judging = suite["judging"]
    stock, jitter = _written(suite, (2.0, 1.0), 3.0, 4.0), _written(suite, (2.0, 1.01), 3.0, 4.1)
    allowed = judging.allowances(stock, stock, jitter)
    assert allowed[judging.LOSSES] == pytest.approx(0.02 + 2e-6)
    assert allowed["weight"] == pytest.approx(0.2 + 5e-6, rel=1e-4)

    def share(losses: tuple[float, ...], *values: float) -> tuple[float, str]:
        found: tuple[float, str] = judging.excess(judging.distances(_written(suite, losses, *values), stock), allowed)
        return found

    assert share((2.0, 1.0), 3.1, 4.1)[0] < 1
    assert share((2.0, 1.0), 3.0, 4.3)[0] > 1
    assert share((2.0, 1.03), 3.0, 4.0) == (pytest.approx(1.5, rel=1e-3), judging.LOSSES)
    assert share((2.0, 1.0), 3.0, float("nan")) == (float("inf"), "weight")
    assert share((2.0, float("nan")), 3.0, 4.0) == (float("inf"), judging.LOSSES)


def test_a_script_that_amplifies_rounding_shows_nothing(suite: Any) -> None:
    judging = suite["judging"]
    stock = _written(suite, (2.0, 1.0), 3.0)
    assert not judging.too_wide(judging.allowances(stock, _written(suite, (2.0, 1.01), 3.0)), stock)
    assert judging.too_wide(judging.allowances(stock, _written(suite, (2.0, float("nan")), 3.0)), stock)
    assert "0.2 of the largest loss" in judging.too_wide(
        judging.allowances(stock, _written(suite, (2.0, 1.2), 3.0)), stock
    )


def test_break_even_needs_a_winner_that_is_fast_enough_for_a_promise(suite: Any) -> None:
    are_in_time = suite["break_even"].are_in_time
    slow, fast = {"break_even_step": None, "most_steps": None}, {"break_even_step": 200, "most_steps": 300}
    assert not are_in_time([slow])
    assert are_in_time([slow, fast])
    assert not are_in_time([fast, {**fast, "break_even_step": 301}])
    assert not are_in_time([fast, {**fast, "break_even_step": None}])


def test_what_cannot_be_compared_is_told(suite: Any) -> None:
    mismatch = suite["judging"].mismatch
    stock = _written(suite, (2.0, 1.0), 3.0)
    assert mismatch(_written(suite, (2.0,), 3.0), stock) == "1 losses were logged, under stock DDP 2"
    assert "weight is torch.float32 (2,)" in mismatch(_written(suite, (2.0, 1.0), 3.0, 4.0), stock)
    assert not mismatch(stock, stock)


def test_logs_and_checkpoints_are_read(suite: Any, tmp_path: Path) -> None:
    written = suite["written"]
    (tmp_path / "log.jsonl").write_text('{"step": 1, "loss": 2.5}\n{"loss_g": 1.0, "loss_d": 0.5}\n{"lo')
    assert written.losses_in(tmp_path / "log.jsonl") == (2.5, 1.0, 0.5)
    (tmp_path / "metrics.csv").write_text("epoch,step,train_loss\n0,0,1.5\n0,,\n0,1,1.25\n")
    assert written.losses_in(tmp_path / "metrics.csv") == (1.5, 1.25)
    torch.save({"model": {"weight": torch.ones(2)}, "steps": [torch.zeros(1), 3]}, tmp_path / "model-1.pt")
    assert list(written.tensors_in(written.found(tmp_path, "model-*.pt"))) == ["model.weight", "steps[0]"]


def test_failures_have_their_verdicts(suite: Any, tmp_path: Path) -> None:
    cells, processes = suite["cells"], suite["processes"]
    script = suite["listed"].Script(name="none", kind="plain", weights="", refused={"merged": "it is refused"})
    runs = cells.Runs(script, tmp_path, limit_seconds=1)

    def verdict(cell: str, code: int | None, output: str) -> str:
        ended = processes.Ended(code=code, printed="", output=output, seconds=0.0)
        found: str = cells._of_failure(runs, cell, cells.RunFailed(cell, ended)).verdict
        return found

    assert verdict("merged", 1, "error: it is refused\n") == "refused"
    assert verdict("merged", 1, "error: it is not allowed\n") == "unlisted"
    assert verdict("tune", 1, "autosync.errors.OperationError: it is refused\n") == "unlisted"
    assert verdict("tune", -11, "Segmentation fault\n") == "crash"
    assert verdict("tune", None, "") == "hang"


def test_a_command_over_its_limit_is_ended_with_what_it_has_started(tmp_path: Path) -> None:
    """In a process of its own, because the one that runs commands adopts what they leave."""
    program = (
        "import sys, time; sys.path.insert(0, sys.argv[1]); import processes; from pathlib import Path\n"
        "processes.PARTING_SECONDS = 1\n"
        "processes.adopt_orphans()\n"
        "script = 'sleep 99 & echo $! > left; setsid sleep 99 & echo $! >> left; trap \"\" TERM; sleep 9; sleep 9'\n"
        "ended = processes.run(('sh', '-c', script), folder=Path(sys.argv[2]), environment={}, limit_seconds=1)\n"
        "assert ended.code is None\n"
    )
    subprocess.run((sys.executable, "-c", program, HERE, tmp_path), check=True, timeout=60)
    left = [int(word) for word in (tmp_path / "left").read_text().split()]
    assert len(left) == 2
    assert not [pid for pid in left if Path(f"/proc/{pid}").exists()]
