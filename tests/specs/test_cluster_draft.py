"""Clusters from a few answers."""

from __future__ import annotations

from pathlib import Path

import pytest

from autosync.errors import InputError
from autosync.specs.cluster import symmetry_classes
from autosync.specs.cluster_draft import ClusterAnswers, draft_cluster
from autosync.specs.cluster_file import load_cluster, save_cluster


def test_hosts_with_equal_links_are_alike(tmp_path: Path) -> None:
    answers = ClusterAnswers(
        name="lab", launcher="ssh", hosts=("a", "b", "c", "d"), devices=2, bandwidths=(1e9, 1e9, 5e8, 2e9), python="/p"
    )
    spec = draft_cluster(answers)
    assert [node.name for node in spec.nodes] == [node.host for node in spec.nodes] == ["a", "b", "c", "d"]
    assert spec.num_workers == 8
    assert symmetry_classes(spec) == ((0, 1), (2,), (3,))
    assert (spec.launcher, spec.python) == ("ssh", "/p")
    save_cluster(tmp_path / "lab.yaml", spec)
    assert load_cluster(tmp_path / "lab.yaml") == spec


def test_one_rate_is_that_of_all_hosts() -> None:
    spec = draft_cluster(ClusterAnswers(name="lab", launcher="slurm", hosts=("a", "b"), bandwidths=(1e9,)))
    assert {node.bandwidth_out for node in spec.nodes} == {1e9}
    assert symmetry_classes(spec) == ((0, 1),)


def test_this_machine_has_one_node() -> None:
    spec = draft_cluster(ClusterAnswers(name="here", launcher="local", devices=3))
    assert (len(spec.nodes), spec.num_workers, spec.is_one_machine) == (1, 3, True)


def test_gpus_of_this_machine_have_the_rate_of_the_profile() -> None:
    spec = draft_cluster(ClusterAnswers(name="here", launcher="local", devices=8, backend="nccl"))
    assert spec.nodes[0].intra_bandwidth is None
    assert spec.profile_of_costs == "nccl-pcie"


def test_mistakes_are_those_of_cluster_files() -> None:
    with pytest.raises(InputError, match="2 rates for 3 hosts"):
        draft_cluster(ClusterAnswers(name="lab", launcher="ssh", hosts=("a", "b", "c"), bandwidths=(1.0, 2.0)))
    with pytest.raises(InputError, match="'a'"):
        draft_cluster(ClusterAnswers(name="lab", launcher="ssh", hosts=("a", "a"), bandwidths=(1e9,)))
