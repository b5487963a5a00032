"""Clusters by hand, and one that can be emulated for the probe that is real."""

import secrets
from collections.abc import Callable, Iterator

import pytest

from autosync.errors import OperationError
from autosync.specs.cluster import ClusterSpec, Node
from autosync.testbed import live
from autosync.testbed.requirements import find_folders

MakeCluster = Callable[..., ClusterSpec]


@pytest.fixture
def make_cluster() -> MakeCluster:
    """A cluster with a node for each rate in bytes per second."""

    def make(*rates: float, name: str = "lab", launcher: str = "testbed", devices: int = 1) -> ClusterSpec:
        nodes = tuple(
            Node(name=f"n{index}", host=f"h{index}", devices=devices, bandwidth_out=rate, bandwidth_in=rate)
            for index, rate in enumerate(rates)
        )
        return ClusterSpec(name=name, nodes=nodes, launcher=launcher)

    return make


@pytest.fixture
def emulated(make_cluster: MakeCluster) -> Iterator[Callable[[int], ClusterSpec]]:
    """Hosts that can be emulated here, under a name that nobody else has; taken down whatever a test does."""
    try:
        find_folders()
    except OperationError as error:
        pytest.skip(str(error))
    made: list[ClusterSpec] = []

    def make(num_hosts: int) -> ClusterSpec:
        made.append(make_cluster(*[12.5e6] * num_hosts, name=f"test-{secrets.token_hex(4)}"))
        return made[-1]

    yield make
    for cluster in made:
        live.down(cluster, force=True)


@pytest.fixture
def two_hosts(emulated: Callable[[int], ClusterSpec]) -> ClusterSpec:
    return emulated(2)
