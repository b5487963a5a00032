"""The training scripts train alike under stock DDP and under strategies; one line of a script decides between them."""

import ast
import json
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from autosync.plan.bundling import bundled
from autosync.strategy.bundle import save_bundle

ROOT = Path(__file__).parents[2]
SCRIPTS = sorted((ROOT / "examples/training").glob("*.py"))
HERE = Path(__file__).parent
ENVIRONMENT = {**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1", "PYTHONSAFEPATH": "1"}


@pytest.fixture
def suite(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The suite of loss curves as a module."""
    monkeypatch.syspath_prepend(str(HERE))
    import loss_curves

    return loss_curves


def run(*arguments: str, limit_seconds: float = 380) -> dict[str, Any]:
    done = subprocess.run(
        (sys.executable, HERE / "loss_curves.py", *arguments),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        env=ENVIRONMENT,
        timeout=limit_seconds,
        check=False,
    )
    assert done.stdout, done.stderr
    printed: dict[str, Any] = json.loads(done.stdout)
    return printed


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_nothing_but_one_choice_says_who_synchronises(path: Path) -> None:
    """`args.bundle` is asked for once and handed over once; each way of training begins in one place."""
    tree = ast.parse(path.read_text())
    asked = [node for node in ast.walk(tree) if isinstance(node, ast.Attribute) and node.attr == "bundle"]
    assert len(asked) == 2
    (choice,) = (
        node for node in ast.walk(tree) if isinstance(node, ast.If) and ast.unparse(node.test) == "args.bundle"
    )
    ours, ddp = (ast.unparse(ast.Module(lines, [])) for lines in (choice.body, choice.orelse))
    # With DDP the wrapper has `no_sync`, with us a function: whoever accumulates says which.
    accumulates = path.stem == "accumulation"
    no_sync = ("\nwithout_sync = functools.partial(autosync.no_sync, model)", "\nwithout_sync = model.no_sync")
    assert ours == "model, optimizer = autosync.parallelize(model, optimizer, args.bundle)" + no_sync[0] * accumulates
    assert ddp == "model = DistributedDataParallel(model)" + no_sync[1] * accumulates
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    names = [ast.unparse(call.func) for call in calls]
    assert names.count("autosync.parallelize") == names.count("DistributedDataParallel") == 1


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_the_docstring_says_how_to_run_and_tune_it(path: Path) -> None:
    place = path.relative_to(ROOT)
    words = ast.get_docstring(ast.parse(path.read_text())) or ""
    assert f"    torchrun --nproc-per-node 2 {place}" in words
    assert f"    autosync tune {place} --cluster configs/clusters/local-2.yaml -o best.yaml\n" in words
    assert f"    torchrun --nproc-per-node 2 {place} --bundle best.yaml" in words


STRATEGIES = ("rings into the next forward pass", "shards into the next forward pass", "servers of parts")


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("scripts", [pytest.param(("language model",), id="one"), pytest.param((), id="all")])
def test_curves_are_ddps_under_three_strategies_each(scripts: tuple[str, ...]) -> None:
    """In float64 where a script has it: there a curve that is off by more than rounding stands out."""
    chosen = [argument for name in STRATEGIES for argument in ("--strategy", name)]
    chosen += [argument for name in scripts for argument in ("--script", name)]
    found = run("--random", "0", "--yardsticks", "1", "--one-dtype", *chosen, limit_seconds=580)
    assert len(found["results"]) == (len(scripts) or 6)
    wrong = [one for one in found["results"] if not all(held["passes"] for held in one["strategies"].values())]
    assert not wrong
    assert found["fewest_strategies"] >= 3
    # A task that scales its loss refuses codecs, and so the control.
    has_control = {one["script"]: one["control"] is not None for one in found["results"]}
    assert has_control == {script: script != "mixed precision, float16" for script in has_control}
    assert found["controls_told_apart"] == found["num_controls"] == sum(has_control.values())
    assert all(one["num_losses"] >= 30 and one["last_loss"] < one["first_loss"] for one in found["results"])


def test_differences_are_the_largest_so_far(suite: ModuleType) -> None:
    assert suite.differences([2.0, 1.5, 1.0], [2.0, 1.0, 1.0]) == [0.0, 0.5, 0.5]


def test_tolerances_follow_the_yardsticks_and_never_fall_below_roundings_of_the_loss(suite: ModuleType) -> None:
    reference = [1.0, 1.0, 1.0]
    yardsticks = [[1.0, 1.25, 1.0], [1.0, 1.0, 1.5]]
    assert suite.tolerances(reference, yardsticks, "float64") == [16 * 2.0**-52, 2.5, 5.0]


def test_a_scripts_control_is_that_of_its_most_precise_numbers(suite: ModuleType) -> None:
    results = [
        {"script": "a", "control": {"dtype": "float64"}},
        {"script": "a", "control": {"dtype": "float32"}},
        {"script": "b", "control": None},
    ]
    assert suite.controlled(results) == results[:1]


@pytest.mark.parametrize(
    ("losses", "failure", "passes"),
    [
        ([2.0, 1.0], "", True),
        ([2.0, 1.01], "", True),
        ([2.0, 1.2], "", False),
        ([2.3, 1.0], "", False),
        ([2.0, float("nan")], "", False),
        ([2.0], "", False),
        (None, "OperationError: so it goes", False),
    ],
)
def test_what_passes(suite: ModuleType, losses: list[float] | None, failure: str, passes: bool) -> None:
    outcome = {"losses": losses, "failure": failure, "seconds": 1.0}
    assert suite.held(outcome, [2.0, 1.0], [0.1, 0.1])["passes"] is passes


@pytest.mark.slow
def test_a_script_under_torchrun(tmp_path: Path, suite: ModuleType) -> None:
    """The command of the docstrings, by a bundle."""
    import curve_cases as cases

    script, cluster = cases.SCRIPTS["image classifier"], cases.cluster_of(2)
    model = cases.model_of(script, "float32")
    strategy = cases.BUILDERS["shards into the next forward pass"](model, cluster)
    save_bundle(tmp_path / "best.yaml", bundled(strategy, model, cluster))
    torchrun = (sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone")
    done = subprocess.run(
        (*torchrun, script.path, "--bundle", tmp_path / "best.yaml", "--losses", tmp_path / "log"),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        env=ENVIRONMENT,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("epoch ") == 2, "one rank reports"
    losses = json.loads((tmp_path / "log").read_text())
    assert len(losses) == 32
    assert losses[-1] < losses[0]
