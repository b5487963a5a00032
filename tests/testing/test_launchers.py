"""The conformance suite holds for the launchers of this machine, and notices a launcher that is wrong."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from autosync.errors import OperationError
from autosync.launchers.local import LocalLauncher
from autosync.launchers.request import LaunchRequest
from autosync.specs.cluster import ClusterSpec, Node
from autosync.testbed.requirements import find_folders
from autosync.testing.launchers import check_codes, check_launcher, check_plans, check_traits


def _node(name: str, **fields: object) -> Node:
    return Node(name=name, host="localhost", bandwidth_out=1e8, bandwidth_in=1e8, **fields)  # type: ignore[arg-type]


CLUSTER = ClusterSpec(name="here", nodes=(_node("n0", devices=2), _node("n1"), _node("s", role="server", devices=0)))


def test_the_local_launcher_keeps_the_contract(tmp_path: Path) -> None:
    check_launcher(CLUSTER, tmp_path)


def test_the_testbed_launcher_keeps_the_contract(tmp_path: Path) -> None:
    try:
        find_folders()
    except OperationError as error:
        pytest.skip(str(error))
    nodes = tuple(replace(node, host=node.name) for node in CLUSTER.nodes)
    check_launcher(ClusterSpec(name="contract", nodes=nodes, launcher="testbed"), tmp_path)


class _Forgetful(LocalLauncher):
    """Leaves the last rank out."""

    def plan(self, cluster: ClusterSpec, command: Sequence[str], logs: Path) -> LaunchRequest:
        request = super().plan(cluster, command, logs)
        return replace(request, processes=request.processes[:-1])


class _Careless(LocalLauncher):
    """Gives all ranks the same number."""

    def plan(self, cluster: ClusterSpec, command: Sequence[str], logs: Path) -> LaunchRequest:
        request = super().plan(cluster, command, logs)
        same: Mapping[str, str] = request.processes[0].environment
        return replace(request, processes=tuple(replace(p, environment=same) for p in request.processes))


class _Secretive(LocalLauncher):
    """Does not say how it reaches machines elsewhere."""

    is_one_machine = False


def test_launchers_that_break_it_are_noticed(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="way is empty"):
        check_traits(_Secretive())
    with pytest.raises(AssertionError):
        check_plans(_Forgetful(), CLUSTER)
    with pytest.raises(AssertionError):
        check_codes(_Careless(), CLUSTER, tmp_path)
