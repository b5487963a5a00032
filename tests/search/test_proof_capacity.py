"""The number of contestants that fit into memory at once."""

from dataclasses import replace
from pathlib import Path

from autosync.search.proof_capacity import most_at_once
from autosync.specs.cluster import ClusterSpec
from autosync.specs.model import ModelSpec


def test_what_is_free_is_shared_by_all_ranks(model: ModelSpec, cluster: ClusterSpec, tmp_path: Path) -> None:
    meminfo = tmp_path / "meminfo"
    contestant = 3 * model.num_bytes * 2
    meminfo.write_text(f"MemTotal: 99999999 kB\nMemAvailable: {contestant * 5 // 1024 + 1} kB\n", encoding="utf-8")
    assert most_at_once(model, cluster, meminfo=meminfo) == 4
    # Five copies in place of three.
    assert most_at_once(model, cluster, state_slots=2, meminfo=meminfo) == 2


def test_the_memory_that_a_cluster_file_states_counts_for_other_machines(
    model: ModelSpec, cluster: ClusterSpec
) -> None:
    enough = 4 * 3 * model.num_bytes * cluster.nodes[0].devices / 0.8 + 1000
    first, *others = cluster.nodes
    stated = replace(cluster, launcher="ssh", nodes=(replace(first, memory_bytes=int(enough)), *others))
    assert most_at_once(model, stated) == 4
    assert most_at_once(model, replace(stated, backend="nccl")) is None


def test_nobody_can_tell_of_other_machines_or_other_systems(
    model: ModelSpec, cluster: ClusterSpec, tmp_path: Path
) -> None:
    assert most_at_once(model, replace(cluster, launcher="ssh")) is None
    assert most_at_once(model, cluster, meminfo=tmp_path / "none") is None
    (tmp_path / "other").write_text("MemFree: 1 kB\n", encoding="utf-8")
    assert most_at_once(model, cluster, meminfo=tmp_path / "other") is None


def test_here(model: ModelSpec, cluster: ClusterSpec) -> None:
    assert (most_at_once(model, cluster) or 10) >= 2
