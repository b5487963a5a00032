"""What files name that would be run or reached: listed, asked for, and remembered where the user typed it."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from autosync.errors import InputError
from autosync.specs.cluster import ClusterSpec, Node
from autosync.specs.cluster_file import load_cluster, shipped_clusters
from autosync.specs.consent import (
    FileAction,
    agree,
    cluster_actions,
    refuse,
    remember,
    require,
    storage_actions,
    task_actions,
    unconfirmed,
)
from autosync.specs.launch_options import KubernetesOptions, RayOptions

NODES = tuple(Node(name=f"n{i}", host=f"h{i}", bandwidth_out=1e8, bandwidth_in=1e8) for i in range(2))
HERE = ClusterSpec(name="c", nodes=NODES)


@pytest.fixture(autouse=True)
def forgetful(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is remembered to begin with."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


def _told(cluster: ClusterSpec) -> list[str]:
    return [str(one) for one in cluster_actions(cluster, file="b.yaml")]


@pytest.mark.parametrize("name", sorted(shipped_clusters()))
def test_what_ships_names_nothing(name: str) -> None:
    assert cluster_actions(load_cluster(name), file=name) == []


def test_a_cluster_on_this_machine_names_its_python_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert _told(HERE) == []
    assert _told(replace(HERE, python=sys.executable)) == []
    told = "cluster.python: ranks would run this Python (local): {} on this machine"
    assert _told(replace(HERE, python="./python")) == [told.format(tmp_path / "python")]
    assert _told(replace(HERE, python="python3")) == [told.format("python3")]


@pytest.mark.parametrize(("launcher", "way"), [("ssh", "by ssh"), ("slurm", "through Slurm"), ("ray", "through Ray")])
def test_machines_elsewhere_are_named(launcher: str, way: str) -> None:
    there = replace(HERE, launcher=launcher)
    assert _told(there) == [f"cluster.nodes: these machines would be reached {way}: h0, h1"]
    assert _told(replace(there, python="~/python"))[0] == (
        f"cluster.python: ranks would run this Python ({launcher}): ~/python on h0, h1"
    )


def test_all_that_a_pod_would_have_is_named() -> None:
    container = {"env": [{"name": "LD_PRELOAD", "value": "/evil.so"}]}
    options = KubernetesOptions(image="evil:1", context="prod", container=container, pod={"hostPID": True})
    assert _told(replace(HERE, launcher="kubernetes", kubernetes=options)) == [
        "cluster.kubernetes.image: pods would run this image: evil:1 in the namespace default of the context prod",
        f"cluster.kubernetes.container: the container would have these fields: {json.dumps(container)}",
        'cluster.kubernetes.pod: the pod would have these fields: {"hostPID": true}',
        "cluster.nodes: these machines would be reached through Kubernetes: h0, h1",
    ]
    assert any(
        "runtime" in line
        for line in _told(replace(HERE, launcher="kubernetes", kubernetes=replace(options, kind="trainjob")))
    )


def test_a_ray_cluster_is_named() -> None:
    there = replace(HERE, launcher="ray", ray=RayOptions(address="ray.example:6379"))
    assert _told(there)[0] == "cluster.ray.address: this Ray cluster would be contacted: ray.example:6379"


def test_a_task_is_named_by_where_it_lies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (one,) = task_actions("model.py:other", file="study.json")
    assert str(one) == f"task: this Python file would be run: {tmp_path / 'model.py'}"
    assert task_actions("resnet50@x4", file="study.json") == []


def test_a_storage_is_named_where_it_is_contacted_or_written() -> None:
    def told(url: str | None, *, is_written: bool) -> list[str]:
        return [one.what for one in storage_actions(url, file="study.json", is_written=is_written)]

    for url in ("postgresql://db.example/x", "mysql+driver://db/x"):
        assert told(url, is_written=True) == ["this storage would be written to"]
        assert told(url, is_written=False) == ["this storage would be contacted"]
    for url in ("journal:/home/you/notes.txt", "sqlite:////home/you/x.db"):
        assert told(url, is_written=True) == ["this storage would be written to"]
        assert told(url, is_written=False) == []
    assert told(None, is_written=True) == []


def test_what_is_named_is_refused_with_the_list_and_the_way_out() -> None:
    named = cluster_actions(replace(HERE, launcher="ssh", python="/evil/python"), file="b.yaml")
    with pytest.raises(InputError) as refused:
        require(named, refuse)
    first, second = refused.value.problems
    assert str(first) == (
        "b.yaml:1: cluster.python: ranks would run this Python (ssh): /evil/python on h0, h1 "
        "(what a file names runs, or is contacted, only where you say so); look at it, then say --trust"
    )
    assert "h0, h1" in second.what
    require(named, agree)
    require([], refuse)


def test_what_was_typed_once_is_not_asked_for_again() -> None:
    ours = replace(HERE, launcher="ssh", python="/opt/python")
    remember(cluster_actions(ours, file="lab.yaml", place=""))
    require(cluster_actions(ours, file="best.yaml"), refuse)
    # The same Python elsewhere is another thing, and so is another one there.
    for other in (replace(ours, launcher="slurm"), replace(ours, python="/opt/python3")):
        assert unconfirmed(cluster_actions(other, file="best.yaml"))
    elsewhere = replace(ours, nodes=tuple(replace(node, host=f"evil{i}") for i, node in enumerate(NODES)))
    assert len(unconfirmed(cluster_actions(elsewhere, file="best.yaml"))) == 2


def test_a_value_is_shown_on_one_line_and_not_without_end() -> None:
    one = FileAction(file="f", place="p", what="w", value="a\x1b[2J\n" + "b" * 1000)
    assert len(str(one)) < 300
    assert str(one).isprintable()
    assert one.key != replace(one, value=one.value + "c").key
