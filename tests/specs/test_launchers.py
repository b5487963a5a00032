"""What launchers say of the machines that they start ranks on."""

from __future__ import annotations

import sys

import pytest

from autosync.errors import UnknownNameError
from autosync.specs.cluster import ClusterSpec, Node
from autosync.specs.launch_options import KubernetesOptions, RayOptions
from autosync.specs.launchers import LAUNCHERS, launcher_traits
from autosync.testing.launchers import check_traits

NODE = Node(name="n0", host="n0", bandwidth_out=1e8, bandwidth_in=1e8)


def test_a_cluster_has_the_properties_of_its_launcher() -> None:
    clusters = {name: ClusterSpec(name="c", nodes=(NODE,), launcher=name) for name in LAUNCHERS.names()}
    assert {name for name, cluster in clusters.items() if cluster.is_one_machine} == {"local", "testbed"}
    assert {name for name, cluster in clusters.items() if cluster.is_emulated} == {"testbed"}
    assert {name for name, cluster in clusters.items() if cluster.shares_loopback} == {"local"}


@pytest.mark.parametrize("name", LAUNCHERS.names())
def test_shipped_launchers_have_all_properties(name: str) -> None:
    check_traits(LAUNCHERS.get(name)())


def test_only_images_have_a_python_of_their_own() -> None:
    paths = {name: launcher_traits(name).default_python for name in LAUNCHERS.names()}
    assert paths.pop("kubernetes") == "python3"
    assert set(paths.values()) == {sys.executable}


def test_an_unknown_launcher_has_no_properties() -> None:
    with pytest.raises(UnknownNameError, match="slrum"):
        launcher_traits("slrum")


def test_a_cluster_has_the_options_of_its_own_launcher() -> None:
    options = {"ray": RayOptions(), "kubernetes": KubernetesOptions(image="train")}
    cluster = {name: ClusterSpec(name="c", nodes=(NODE,), launcher=name, **options) for name in LAUNCHERS.names()}  # type: ignore[arg-type]
    assert {name: one.launcher_options for name, one in cluster.items() if one.launcher_options} == options
