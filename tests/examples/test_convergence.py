"""The benchmark of convergence trains, judges and draws. Results of a whole run are in docs/convergence.md."""

import itertools
import json
import os
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
BENCHMARKS = ROOT / "benchmarks" / "convergence"


@pytest.fixture
def benchmark() -> ModuleType:
    """The benchmark as a module."""
    from benchmarks.convergence import convergence

    return convergence


@pytest.fixture
def report() -> ModuleType:
    from benchmarks.convergence import report

    return report


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_short_run(tmp_path: Path) -> None:
    """Forty steps by contestants of all kinds: each does something of its own."""
    chosen = ("bf16", "PowerSGD, rank 4", "top-k 1 %", "top-k 1 %, momentum corrected", "DiLoCo, every 20")
    done = subprocess.run(
        (
            *(sys.executable, BENCHMARKS / "convergence.py", "--training", "convnet", "--steps", "40", "--seeds", "1"),
            *("--markdown", tmp_path / "table.md", "--pictures", tmp_path / "pictures"),
            *(argument for name in chosen for argument in ("--contestant", name)),
        ),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONSAFEPATH": "1"},
        timeout=280,
        check=False,
    )
    assert done.stdout, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)["trainings"]["convnet"]["contestants"]
    assert list(found) == ["exact", *chosen]
    assert not [one["failures"] for one in found.values() if one["failures"]]
    losses = {name: one["final_loss"]["mean"] for name, one in found.items()}
    assert len(set(losses.values())) == len(losses)
    assert found["exact"]["ratio"]["each"] == [1.0]
    assert abs(found["bf16"]["ratio"]["mean"] - 1) < 0.02
    assert losses["exact"] < found["exact"]["curve"][0][1]
    num_bytes = {name: one["bytes_a_step"] / found["exact"]["bytes_a_step"] for name, one in found.items()}
    assert num_bytes["bf16"] == pytest.approx(0.5, rel=1e-3)
    # A hundredth of the numbers, each with its position; and of two ranks an all-reduce sends as many as a gather.
    assert num_bytes["top-k 1 %"] == pytest.approx(0.02, rel=0.3)
    assert num_bytes["DiLoCo, every 20"] == pytest.approx(1 / 20, rel=1e-3)
    assert (tmp_path / "table.md").read_text().count("\n| ") == 1 + len(found)
    (picture,) = (tmp_path / "pictures").iterdir()
    words = "".join(ET.fromstring(picture.read_text()).itertext())
    assert all(name in words for name in found)


def test_final_losses_are_of_the_last_twentieth(benchmark: ModuleType) -> None:
    assert benchmark.final_loss([5.0] * 38 + [1.0, 2.0]) == 1.5
    assert benchmark.final_loss([4.0, 3.0]) == 3.0


def test_a_curve_has_means_of_stretches(benchmark: ModuleType) -> None:
    assert benchmark.curve_of([float(number) for number in range(100)])[:2] == [(2, 0.5), (4, 2.5)]
    assert benchmark.curve_of([1.0, 2.0]) == [(1, 1.0), (2, 2.0)]


@pytest.mark.parametrize(("own", "holds"), [(1.0, True), (1.019, True), (1.03, False), (float("nan"), False)])
def test_promises_are_held_by_the_mean_over_seeds(benchmark: ModuleType, own: float, holds: bool) -> None:
    contestant = next(one for one in benchmark.CONTESTANTS if one.bound is not None)
    exact = [[_result(1.0), _result(3.0)], [_result(2.0), _result(2.0)]]
    mine = [[_result(own), _result(3 * own)], [_result(2.0), _result(2.0 * own)]]
    found = benchmark.judged(contestant, mine, exact)
    assert found["holds"] is holds
    if own == 1.03:
        assert found["ratio"]["each"] == pytest.approx([1.03, 1.015])


def _result(loss: float) -> dict[str, Any]:
    return {"losses": [loss] * 40, "evaluation": loss, "seconds": 1.0, "failure": ""}


@pytest.mark.parametrize(("counts", "code"), [((2, 2), 0), ((1, 2), 1), ((0, 0), 1)])
def test_the_exit_code_tells_of_promises(
    benchmark: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, counts: tuple[int, int], code: int
) -> None:
    path = tmp_path / "read.json"
    path.write_text(json.dumps(dict(zip(("num_kept", "num_promises"), counts, strict=True))))
    monkeypatch.setattr(sys, "argv", ["convergence.py", "--read", str(path)])
    assert benchmark.main() == code


def test_labels_stand_apart(report: ModuleType) -> None:
    scale = report.Scale(0.0, 100, 1.0, 2.0)
    curves = {str(number): [(0, 2.0), (100, 1.0 + number / 1000)] for number in range(6)}
    places = report._label_places(scale, curves)
    ordered = sorted(places.values())
    assert all(after - before >= 15.9 for before, after in itertools.pairwise(ordered))
    assert max(ordered) <= report.HEIGHT
    assert list(places) == ["5", "4", "3", "2", "1", "0"], "the highest loss stands highest"


@pytest.mark.parametrize(("least", "most"), [(0.3, 3.0), (1.61, 1.75), (0.011, 0.9), (2.0, 2.001)])
def test_ticks_are_a_few_round_numbers(report: ModuleType, least: float, most: float) -> None:
    ticks = report._ticks(least, most)
    assert 2 <= len(ticks) <= 8
    assert ticks == sorted(ticks)
    assert least - 0.001 <= ticks[0]
    assert ticks[-1] <= most + 0.001
