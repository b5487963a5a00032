"""A forked process has its arguments, environment, folder and streams, takes signals, and ends with its own code."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.helpers.forks import Forked

TELLS = """
import json, os, sys
print(json.dumps([sys.argv, dict(os.environ), os.getcwd(), os.getpid(), "torch" in sys.modules]))
print("an error", file=sys.stderr)
"""
ENDS = {
    "": 0,
    "import sys; sys.exit(7)": 7,
    "import sys; sys.exit('words')": 1,
    "raise ValueError('words')": 1,
    "import os, signal; os.kill(os.getpid(), signal.SIGKILL)": -9,
}


@pytest.fixture
def script(tmp_path: Path) -> Callable[[str], Path]:
    """Writes a script."""

    def write(text: str) -> Path:
        path = tmp_path / "script.py"
        path.write_text(text, encoding="utf-8")
        return path

    return write


def test_it_has_what_it_is_given(script: Callable[[str], Path], tmp_path: Path) -> None:
    process = Forked(
        (sys.executable, "-P", script(TELLS), "one", "two"),
        env={"WISH": "granted"},
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    told, errors = process.communicate(60)
    arguments, environment, folder, identity, has_torch = json.loads(told)
    assert (arguments, environment) == ([str(tmp_path / "script.py"), "one", "two"], {"WISH": "granted"})
    assert (Path(folder), identity, has_torch) == (tmp_path, process.pid, True)
    assert (process.returncode, errors) == (0, "an error\n")
    with pytest.raises(ProcessLookupError):
        os.kill(process.pid, 0)


@pytest.mark.parametrize("text", ENDS)
def test_it_ends_with_its_own_code(text: str, script: Callable[[str], Path]) -> None:
    process = Forked((sys.executable, script(text)), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    (errors,) = process.communicate(60)
    assert process.returncode == ENDS[text]
    assert ("words" in errors) == (ENDS[text] == 1)


def test_it_takes_signals_and_is_awaited_for_so_long(script: Callable[[str], Path]) -> None:
    process = Forked((sys.executable, script("import time; time.sleep(600)")), start_new_session=True)
    assert process.poll() is None
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.05)
    assert os.getpgid(process.pid) == process.pid
    process.terminate()
    assert process.wait(60) == -signal.SIGTERM
    # It is gone: this reaches no other process.
    process.kill()


def test_a_module_is_run_by_its_name() -> None:
    process = Forked((sys.executable, "-m", "json.tool", "--help"), stdout=subprocess.PIPE)
    (told,) = process.communicate(60)
    assert process.returncode == 0
    assert "usage" in told


def test_another_python_is_not_forked() -> None:
    with pytest.raises(AssertionError, match="/bin/python is not the Python that is forked"):
        Forked(("/bin/python", "script.py"))


def test_many_at_a_time_are_told_apart(script: Callable[[str], Path]) -> None:
    path = script("import sys, time; time.sleep(0.01); sys.exit(int(sys.argv[1]))")
    started = [Forked((sys.executable, path, str(number))) for number in range(8)]
    assert [one.wait(60) for one in started] == list(range(8))
