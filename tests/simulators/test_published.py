"""The benchmark of published step times: its figures, its tables, and a small table from file to verdict."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.published import published
from benchmarks.published.figures import Judged, kendall_tau, median_error, near_picks
from benchmarks.published.points import HERE, Case, Point, cases_of, read_points, read_tables, table_of

CLUSTER = """schema: autosync.cluster/1
launcher: ssh
nodes: [{name: g, count: COUNT, devices: 2, bandwidth: 10 Gbit/s, intra_bandwidth: 10 GB/s}]
"""


def row(system: str, preset: str, pub: float, *, count: int = 2, **others: Any) -> dict[str, Any]:
    return {
        "table": "T",
        "cell": f"resnet20@{2 * count}",
        "system": system,
        "preset": preset,
        "opts": {},
        "model": "resnet20",
        "ngpu": 2 * count,
        "batch": 32,
        "compute": 0.05,
        "pub": pub,
        "cluster": CLUSTER.replace("COUNT", str(count)),
        **others,
    }


def cases(*rows: dict[str, Any], folder: Path) -> list[Case]:
    path = folder / "tables.json"
    path.write_text(json.dumps(rows), encoding="utf-8")
    return cases_of(read_points(path))


def judged(case: Case, *, factor: float) -> Judged:
    return Judged(case=case, predicted=factor * case.point.seconds)


def test_our_tables_are_read_and_their_sources_are_known() -> None:
    points = read_points(HERE / "tables.json")
    assert len(points) == 114
    known = read_tables(HERE / "sources.yaml")
    assert {point.table for point in points} == known.keys()
    assert [name for name, table in known.items() if not table.compares_strategies] == ["C"]
    machines: dict[str, set[object]] = {}
    for point in points:
        machines.setdefault(point.table, set()).add(point.machine)
    assert {len(found) for found in machines.values()} == {1}


def test_families_have_costs_of_their_own(tmp_path: Path) -> None:
    ring, server = cases(row("ring", "ddp", 500.0), row("server", "ps", 400.0), folder=tmp_path)
    assert (ring.family, server.family) == ("all-reduce", "servers")
    assert ring.cluster(1e9).profile_of_costs == "nccl-pcie"
    assert server.cluster(1e9).profile_of_costs == "servers-cpu"
    assert ring.model.step_seconds == pytest.approx(0.05)


def test_figures(tmp_path: Path) -> None:
    fast, slow, near = cases(
        row("fast", "ddp", 500.0), row("slow", "ps", 400.0), row("near", "ddp_cap", 495.0), folder=tmp_path
    )
    found = [judged(fast, factor=1.1), judged(slow, factor=0.9), judged(near, factor=1.0)]
    assert median_error(found, "all-reduce") == pytest.approx(0.05)
    assert median_error(found, "servers") == pytest.approx(0.1)
    # The pair of readings that are too near each other does not count.
    assert kendall_tau(found, {"T": table_of()}) == (1.0, 2)
    assert kendall_tau(found, {"T": table_of({"compares": "frameworks"})}) == (None, 0)
    assert kendall_tau(found, {"T": table_of({"reading_error": 0.0})}) == (pytest.approx(1 / 3), 3)
    assert near_picks(found) == (1.0, 1)
    assert near_picks([judged(fast, factor=2.0), judged(slow, factor=1.0)]) == (0.0, 1)


def test_a_table_from_file_to_verdict(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [row(name, preset, 500.0, count=count) for count in (2, 3) for name, preset in (("a", "ddp"), ("b", "ps"))]
    path = tmp_path / "tables.json"
    path.write_text(json.dumps(rows), encoding="utf-8")
    monkeypatch.setattr(sys, "argv", ["published.py", "--tables", str(path)])
    code = published.main()
    found = json.loads(capsys.readouterr().out)
    assert code == (0 if found["holds"] else 1)
    assert found["points"] == 2
    (rate,) = found["rates"]
    assert {one["cell"] for one in found["predictions"]}.isdisjoint(rate["given_by"])
    assert [one["figure"] for one in found["bounds"]] == [
        "median_error_all_reduce",
        "median_error_servers",
        "kendall_tau",
        "near_picks",
    ]


def test_a_point_without_a_key_is_refused(tmp_path: Path) -> None:
    broken = row("a", "ddp", 500.0)
    del broken["compute"]
    with pytest.raises(Exception, match="'compute' is missing"):
        cases(broken, folder=tmp_path)


def test_points_know_the_machine_that_clusters_share(tmp_path: Path) -> None:
    some = cases(row("a", "ddp", 500.0), row("a", "ddp", 500.0, count=3), folder=tmp_path)
    points: list[Point] = [case.point for case in some]
    assert points[0].machine == points[1].machine
