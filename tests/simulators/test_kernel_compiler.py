"""A process compiles all functions of simulators, and leaves a mark when it is done."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import numba
import numpy as np
import pytest

from autosync.compiled_cache import CompiledCache
from autosync.errors import OperationError
from autosync.first_calls import FIRST_CALLS, CompiledFunction
from autosync.simulators import jit, kernel_compiler
from autosync.simulators.kernel_compiler import compile_all, compiler_if_needed


@pytest.fixture
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setattr(jit, "KEPT", CompiledCache(is_enabled=True, folder=tmp_path))
    return tmp_path


def recorded(*functions: CompiledFunction) -> list[CompiledFunction]:
    with FIRST_CALLS.recording() as found:
        for function in functions:
            function(np.ones(1))
    return found


def kept(cache: Path, *, fails: bool = False) -> CompiledFunction:
    """A function whose cache is in a folder."""

    def first(numbers):
        return numbers[0] if not fails else numbers.no_such_thing

    return CompiledFunction(CompiledCache(is_enabled=True, folder=cache).compiled(first, {}), on_lists=True)


def test_all_functions_are_compiled_into_the_cache_and_then_marked(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernel_compiler, "_recorded", lambda: recorded(kept(cache)))
    compile_all()
    assert len(list(cache.rglob("*.nbc"))) == 1
    assert compiler_if_needed(meanwhile=False) is None
    monkeypatch.setattr(kernel_compiler, "_recorded", lambda: pytest.fail("all is compiled"))
    compile_all()


def test_without_a_mark_the_compiler_is_needed(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[tuple[str, ...]] = []
    monkeypatch.setattr("autosync.first_calls.start_compiler", started.append)
    assert compiler_if_needed(meanwhile=False) is None
    assert started == [kernel_compiler.COMMAND]


def test_a_mark_of_another_numba_does_not_count(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel_compiler, "_recorded", list)
    compile_all()
    monkeypatch.setattr(numba, "__version__", "0.0")
    started: list[tuple[str, ...]] = []
    monkeypatch.setattr("autosync.first_calls.start_compiler", started.append)
    compiler_if_needed(meanwhile=False)
    assert len(started) == 1


@pytest.mark.parametrize("changed", ["source.py", "__pycache__/sources.sha256"])
def test_a_mark_does_not_count_after_sources_were_written_or_the_cache_was_dropped(
    cache: Path, monkeypatch: pytest.MonkeyPatch, changed: str
) -> None:
    """With the same contents as before: numba goes by the times of files."""
    (cache / "__pycache__").mkdir()
    for name in ("source.py", "__pycache__/sources.sha256"):
        (cache / name).touch()
    monkeypatch.setattr(kernel_compiler, "_SIMULATORS", cache)
    monkeypatch.setattr(kernel_compiler, "_recorded", list)
    compile_all()
    started: list[tuple[str, ...]] = []
    monkeypatch.setattr("autosync.first_calls.start_compiler", started.append)
    compiler_if_needed(meanwhile=False)
    assert not started
    os.utime(cache / changed, (1, 1))
    compiler_if_needed(meanwhile=False)
    assert len(started) == 1


def test_if_a_function_cannot_be_compiled_there_is_no_mark(
    cache: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    broken = kept(cache, fails=True)
    broken._types = (numba.float64[:],)
    monkeypatch.setattr(kernel_compiler, "_recorded", lambda: [broken])
    with pytest.raises(OperationError, match="ended with 1"):
        compile_all()
    assert "no_such_thing" in capfd.readouterr().err
    assert not list(cache.glob("compiled-????????????????"))


def test_the_largest_functions_are_compiled_first_and_none_is_left_out() -> None:
    """After a rehearsal, a prediction calls no function that was not recorded."""
    functions = kernel_compiler._recorded()
    sizes = [one.code_size for one in functions]
    assert sizes == sorted(sizes, reverse=True)
    rooms = (jit, kernel_compiler.plan_jit)
    decorated = sum(
        path.read_text().count(f"\n@{name}\n")
        for room in rooms
        for path in Path(room.__file__ or "").parent.rglob("*.py")
        for name in ("borrows", "borrows_elements", "called")
    )
    assert len(functions) == decorated


COLD = """
import json, sys
from autosync.simulators.compile_notice import compiling_is_told
from autosync.simulators.timeline.simulator import TimelineSimulator
from autosync.specs.cluster import ClusterSpec, Node
from autosync.specs.model_file import load_model
from autosync.strategy.presets import build_preset

nodes = [Node(name=f"h{at}", host=f"h{at}", bandwidth_out=1.25e9, bandwidth_in=1.25e9) for at in range(8)]
model, cluster, told = load_model("resnet50"), ClusterSpec(name="eight", nodes=tuple(nodes)), []
with compiling_is_told(told.append, meanwhile=True):
    (found,) = TimelineSimulator(model, cluster).predict([build_preset("ddp", model, cluster)])
print(json.dumps({"told": told, "seconds": found.seconds}))
"""


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_cold_machine_predicts_before_anything_is_compiled_and_the_same_afterwards(tmp_path: Path) -> None:
    """The benchmark `first_prediction.py` measures how long it takes."""

    def predict() -> dict[str, object]:
        environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)}
        done = subprocess.run((sys.executable, "-c", COLD), env=environment, capture_output=True, check=True)
        found: dict[str, object] = json.loads(done.stdout)
        return found

    first = predict()
    assert not list(tmp_path.rglob("*.nbc"))
    while not list(tmp_path.rglob("compiled-????????????????")):
        time.sleep(1)
    second = predict()
    assert (len(first["told"]), second["told"]) == (1, [])  # type: ignore[arg-type]
    assert first["seconds"] == second["seconds"]
