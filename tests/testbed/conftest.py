"""Clusters whose testbeds are real, under names that nobody else has, and taken down whatever a test does."""

import secrets
from collections.abc import Callable, Iterator

import pytest

from autosync.errors import OperationError
from autosync.specs.cluster import ClusterSpec, Node, Rack
from autosync.testbed import live
from autosync.testbed.requirements import find_folders

MBIT = 125_000.0

MakeCluster = Callable[..., ClusterSpec]


@pytest.fixture
def make_cluster() -> Iterator[MakeCluster]:
    """Makes clusters for testbeds; skips where the kernel or the user may not have one."""
    try:
        find_folders()
    except OperationError as error:
        pytest.skip(str(error))
    made: list[ClusterSpec] = []

    def make(*rates: float | tuple[float, float], racks: tuple[Rack, ...] = (), name: str = "") -> ClusterSpec:
        pairs = [rate if isinstance(rate, tuple) else (rate, rate) for rate in rates or (100.0, 100.0)]
        nodes = tuple(
            Node(
                name=f"n{index}",
                host=f"h{index}",
                bandwidth_out=out * MBIT,
                bandwidth_in=into * MBIT,
                rack=racks[index % len(racks)].name if racks else None,
            )
            for index, (out, into) in enumerate(pairs)
        )
        cluster = ClusterSpec(name=name or f"test-{secrets.token_hex(4)}", nodes=nodes, racks=racks, launcher="testbed")
        made.append(cluster)
        return cluster

    yield make
    for cluster in made:
        live.down(cluster, force=True)
