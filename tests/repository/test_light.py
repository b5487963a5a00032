"""Whoever asks for help, reads a file or builds a strategy does not wait for torch.

Each check runs in an interpreter of its own, because this one has everything loaded already.
"""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

_HEAVY = {"torch", "optuna", "pandas", "xgboost"}
_LIGHT_ROOMS = {"", "configs", "specs", "strategy", "plan", "pictures", "cli"}
# Measuring a model runs it: these modules are loaded by whoever does that.
_TOUCH_TENSORS = "autosync.specs.profile."

# Tells after each step which heavy packages it was the first to load.
_PRELUDE = f"""
import contextlib, importlib, io, json, sys
heavy, culprits = {_HEAVY!r}, {{}}
def note(step):
    loaded = sorted(heavy.intersection(sys.modules))
    heavy.difference_update(loaded)
    if loaded:
        culprits[step] = loaded
"""

_HELP = """
import click
from autosync.cli import main as module
group = next(value for value in vars(module).values() if isinstance(value, click.Group))
commands = group.list_commands(click.Context(group))
for arguments in [["--help"], *([name, "--help"] for name in commands)]:
    sys.argv = ["autosync", *arguments]
    with contextlib.redirect_stdout(io.StringIO()) as shown:
        try:
            module.main()
        except SystemExit as stop:
            assert stop.code in (0, None), (arguments, stop.code)
    assert "Usage" in shown.getvalue(), arguments
    note(" ".join(sys.argv))
"""

# Tells which names cannot be had where they are the first.
_IN_FORKS = """
import json, os, torch
failed = []
for names in named:
    child = os.fork()
    if child == 0:
        import autosync
        os._exit(0 if all(getattr(autosync, name) is not None for name in names) else 1)
    if os.waitpid(child, 0)[1]:
        failed.append(names)
print(json.dumps(failed))
"""


def _is_light(module: str, path: Path) -> bool:
    parts = module.split(".")
    is_package = path.name == "__init__.py"
    room = parts[1] if len(parts) > 2 or (len(parts) == 2 and is_package) else ""
    return room in _LIGHT_ROOMS and not module.startswith(_TOUCH_TENSORS) and parts[-1] != "__main__"


def test_light_modules_load_nothing_heavy(modules: dict[str, Path], run_python: Callable[[str], str]) -> None:
    light = [module for module, path in modules.items() if _is_light(module, path)]
    assert "autosync" in light
    code = f"{_PRELUDE}\nfor name in {light!r}:\n    importlib.import_module(name)\n    note(name)"
    assert json.loads(run_python(f"{code}\nprint(json.dumps(culprits))")) == {}


def test_help_loads_nothing_heavy(package_dirs: dict[str, Path], run_python: Callable[[str], str]) -> None:
    if not (package_dirs["autosync.cli"] / "main.py").exists():
        pytest.skip("the command line is not in this checkout")
    assert json.loads(run_python(f"{_PRELUDE}\n{_HELP}\nprint(json.dumps(culprits))")) == {}


def test_a_heavy_import_is_found(run_python: Callable[[str], str]) -> None:
    code = "import optuna\nnote('first')\nimport json\nnote('second')\nprint(json.dumps(culprits))"
    assert "optuna" in json.loads(run_python(f"{_PRELUDE}\n{code}"))["first"]


def test_the_shop_window_is_lazy_and_complete(modules: dict[str, Path], run_python: Callable[[str], str]) -> None:
    code = "import autosync, json\nprint(json.dumps([sorted(autosync.__all__), autosync._LAZY]))"
    names, lazy = json.loads(run_python(code))
    runtime = {"consolidate", "describe", "drain", "load", "no_sync", "parallelize", "release", "save", "weigh"}
    others = {"Table", "Task", "loader", "loop", "share_sampler", "trainer", "tune"}
    assert set(names) == {"__version__"} | others | runtime
    assert lazy.keys() == others | runtime
    # Each module is the first of ours that is imported in a process of its own; what is wrong with its imports shows.
    # The processes are forks, because to import torch takes each of them seconds.
    of_modules = [
        [name for name, found in lazy.items() if found == module]
        for module in sorted(set(lazy.values()) & modules.keys())
    ]
    failed = json.loads(run_python(f"named = {of_modules!r}\n{_IN_FORKS}"))
    assert failed == []
    run_python("import autosync\nassert not hasattr(autosync, 'taks')")
