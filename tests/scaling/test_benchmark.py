"""The benchmark of scaling: its figures follow from its points, and unknown figures meet no target."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks.scaling_prediction.points import PointFolder, Target, figures_of
from benchmarks.scaling_prediction.scaling_prediction import results, two_hosts


def _row(hosts: int, seconds: float, predicted: float, *, model: str = "m") -> dict[str, Any]:
    forecast = {"value": predicted, "low": predicted * 0.95, "high": predicted * 1.05}
    head = {"model": model, "megabits": 1000.0, "hosts": hosts, "kind": "best"}
    return {**head, "seconds": seconds, "flags": [], "pace": 1.0, "predicted": forecast}


def test_figures_follow_from_points() -> None:
    rows = [_row(3, 1.0, 1.02), _row(4, 1.0, 1.02), _row(5, 1.3, 1.25)]
    found = results(rows, [{"prediction_seconds": 30.0, "sizes": [1, 2, 3]}, None])
    assert found["num_points"] == 3
    assert round(found["median_error"], 6) == 0.02
    assert found["coverage"] == 1.0
    assert found["knees_right"] == 1.0
    assert found["most_seconds"] == 10.0
    assert found["holds"] == {
        "points": False,
        "median_error": True,
        "coverage": False,
        "knees_right": True,
        "seconds": True,
    }


def test_nothing_measured_meets_no_target() -> None:
    assert not any(results([], [])["holds"].values())


def test_the_folder_gives_back_what_it_keeps(tmp_path: Path) -> None:
    folder, target = PointFolder(tmp_path / "scaling"), Target("resnet20@x4", 500.0)
    assert folder.probed(500.0) is None
    assert folder.prediction(target) is None
    assert folder.point(target, 3) is None
    folder.keep_probed(500.0, two_hosts(500.0))
    folder.keep_pace(500.0, 0.0012)
    assert folder.pace(500.0) == 0.0012
    assert folder.probed(500.0) == two_hosts(500.0)
    seconds = {"value": 0.1, "low": 0.09, "high": 0.11}
    sizes = [{"nodes": 3, "stock_ddp": {"step_seconds": seconds}, "best": {"step_seconds": seconds}}]
    folder.keep_prediction(target, {"sizes": sizes})
    folder.keep_point(target, 3, {"stock_ddp": {"seconds": 0.1, "flags": []}, "best": None})
    (row,) = figures_of(folder, [target, Target("other", 1.0)], [3, 4])
    assert (row["kind"], row["hosts"], row["predicted"]) == ("stock_ddp", 3, seconds)
