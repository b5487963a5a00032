"""Files with loops are recognised without running them; files with a task stay tasks."""

from pathlib import Path

import pytest

from autosync.loops.recognise import is_loop

_BODY = "def step(r, t):\n    t[r.i] += 1\n"
LOOPS = {
    "decorated": f"import autosync\n@autosync.loop(records=1, tables=2)\n{_BODY}",
    "renamed module": f"import autosync as a\n@a.loop(records=1, tables=2)\n{_BODY}",
    "imported": f"from autosync import loop as serial\n@serial(records=1, tables=2)\n{_BODY}",
    "called": f"import autosync\n{_BODY}\nfactors = autosync.loop(records=1)(step)\n",
}
OTHERS = {
    "a task": "import autosync\ndef task():\n    return autosync.Task()\n",
    "a task and a loop": f"import autosync\n@autosync.loop(records=1)\n{_BODY}\ndef task(): ...\n",
    "another loop": f"import pyglet\n@pyglet.loop(records=1)\n{_BODY}",
    "a loop in a function": "import autosync\ndef make(step):\n    return autosync.loop(records=1)(step)\n",
    "no Python": "import autosync (",
    "zeros": "\x00",
}


@pytest.mark.parametrize("name", LOOPS)
def test_files_with_loops(name: str, tmp_path: Path) -> None:
    path = tmp_path / "a.py"
    path.write_text(LOOPS[name], encoding="utf-8")
    assert is_loop(str(path))
    assert is_loop(f"{path}:{'factors' if name == 'called' else 'step'}")
    assert not is_loop(f"{path}:other")


@pytest.mark.parametrize("name", OTHERS)
def test_other_files(name: str, tmp_path: Path) -> None:
    path = tmp_path / "a.py"
    path.write_text(OTHERS[name], encoding="utf-8")
    assert not is_loop(str(path))


def test_a_name_decides_between_a_task_and_a_loop(tmp_path: Path) -> None:
    path = tmp_path / "a.py"
    path.write_text(OTHERS["a task and a loop"], encoding="utf-8")
    assert is_loop(f"{path}:step")
    assert not is_loop(f"{path}:task")


@pytest.mark.parametrize("target", ["resnet50", "missing.py", "spec.yaml"])
def test_targets_that_are_no_python_files(target: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert not is_loop(target)
