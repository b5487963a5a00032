"""The check of nodes: its findings, and that it asks real nodes."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import autosync
from autosync.errors import OperationError
from autosync.launchers.node_check import ClusterCheck, NodeFacts, check_nodes, find, require_fit_nodes
from autosync.specs.cluster import ClusterSpec, Node

FACTS = NodeFacts(
    node="n0",
    host="10.0.0.1",
    python="3.11.7",
    torch="2.13.0",
    autosync=autosync.__version__,
    interface="eth0",
    free_memory_bytes=16 * 2**30,
    free_disk_bytes={"/tmp": 2**30},
    files={},
    unreachable={},
)


def _nodes(**odd: Any) -> list[NodeFacts]:
    """Three nodes, the second of which is odd."""
    return [FACTS, replace(FACTS, node="n1", **odd), replace(FACTS, node="n2")]


def _told(**odd: Any) -> list[str]:
    return [f"{finding.severity}: {finding}" for finding in find(_nodes(**odd))]


@pytest.mark.parametrize(
    ("odd", "told"),
    [
        ({}, []),
        ({"torch": "2.12.0"}, ["error: n1 has torch 2.12.0, the others have 2.13.0"]),
        ({"torch": ""}, ["error: n1 has no torch in Python 3.11.7"]),
        ({"autosync": "0.0.9"}, [f"error: n1 has autosync 0.0.9, the others have {autosync.__version__}"]),
        ({"python": "3.11.8"}, ["warning: n1 has python 3.11.8, the others have 3.11.7"]),
        ({"unreachable": {"n2": "timed out"}}, ["error: n1 cannot reach n2: timed out"]),
        ({"free_disk_bytes": {"/tmp": 0}}, ["error: n1 has no room on its disk: 0 B free at /tmp"]),
        ({"free_memory_bytes": 2**20}, ["warning: n1 has 1.049 MB of memory free"]),
        ({"free_memory_bytes": None}, []),
        (
            {"interface": ""},
            ["warning: n1 has no interface that leads to the others: set GLOO_SOCKET_IFNAME there"],
        ),
    ],
)
def test_the_odd_one_out_is_named(odd: dict[str, Any], told: list[str]) -> None:
    assert _told(**odd) == told


def test_nodes_that_all_differ_from_this_machine_are_found() -> None:
    nodes = [replace(facts, autosync="9.9") for facts in _nodes()]
    assert [str(finding) for finding in find(nodes)] == [
        f"n0 and all others have autosync 9.9, this machine has {autosync.__version__}"
    ]


def test_files_must_be_as_they_are_here(tmp_path: Path) -> None:
    file = tmp_path / "train.py"
    file.write_text("right")
    right = {str(file): hashlib.sha256(b"right").hexdigest()}
    nodes = [
        replace(FACTS, files=right),
        replace(FACTS, node="n1", files={str(file): hashlib.sha256(b"wrong").hexdigest()}),
        replace(FACTS, node="n2", files={str(file): ""}),
    ]
    assert [str(finding) for finding in find(nodes, [file])] == [
        f"n1 has another {file} than this machine",
        f"n2 has no {file}",
    ]


def test_the_table_has_a_line_for_each_node() -> None:
    checked = ClusterCheck(nodes=tuple(_nodes(torch="", unreachable={"n0": "refused"}, interface="")), findings=())
    assert checked.table().splitlines() == [
        "node  python  torch   autosync  interface  reaches     free memory  free disk",
        "n0    3.11.7  2.13.0  0.1.0     eth0       all         17.18 GB     1.074 GB",
        "n1    3.11.7  none    0.1.0     ?          all but n0  17.18 GB     1.074 GB",
        "n2    3.11.7  2.13.0  0.1.0     eth0       all         17.18 GB     1.074 GB",
    ]


def _here(**fields: Any) -> ClusterSpec:
    nodes = tuple(Node(name=f"n{i}", host="localhost", bandwidth_out=1e8, bandwidth_in=1e8) for i in range(2))
    return ClusterSpec(name="here", nodes=nodes, **fields)


def test_nodes_are_asked(tmp_path: Path) -> None:
    checked = check_nodes(_here(), tmp_path, files=[Path(__file__)])
    assert [facts.node for facts in checked.nodes] == ["n0", "n1"]
    assert {facts.autosync for facts in checked.nodes} == {autosync.__version__}
    assert {facts.interface for facts in checked.nodes} == {"lo"}
    assert not checked.errors


def test_what_makes_trials_hopeless_is_refused(tmp_path: Path) -> None:
    missing = tmp_path / "absent.py"
    with pytest.raises(
        OperationError, match=r"n0 has no .*absent.py; n1 has no .*absent.py \(all nodes: .*nodes.txt\)"
    ):
        require_fit_nodes(_here(), tmp_path, files=[missing])
    assert "n1" in (tmp_path / "nodes.txt").read_text()


def test_a_node_that_cannot_be_asked_is_named(tmp_path: Path) -> None:
    program = tmp_path / "python"
    program.write_text("#!/bin/sh\necho broken; exit 3\n")
    program.chmod(0o755)
    with pytest.raises(OperationError, match=r"n[01] could not be asked: exit code 3: broken"):
        check_nodes(_here(python=str(program)), tmp_path / "logs")
