"""Each rank of a cluster with NCCL trains on a GPU of its own, and all others on the CPU."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from autosync.errors import InputError, OperationError
from autosync.specs.cluster import BackendName, ClusterSpec, Node
from autosync.testing.simulators import two_layers
from autosync.trials.rank_device import rank_device
from autosync.trials.service import TrialService


def cluster_with(backend: BackendName) -> ClusterSpec:
    nodes = tuple(Node(name=name, host=name, devices=2, bandwidth_out=1e9, bandwidth_in=1e9) for name in ("a", "b"))
    return ClusterSpec(name="c", nodes=nodes, backend=backend, launcher="ssh")


@pytest.mark.parametrize(("num_gpus", "expected"), [(1, [0, 0, 0, 0]), (2, [0, 1, 0, 1]), (8, [0, 1, 0, 1])])
def test_ranks_of_a_node_have_gpus_of_their_own(
    monkeypatch: pytest.MonkeyPatch, num_gpus: int, expected: list[int]
) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: num_gpus)
    cluster = cluster_with("nccl")
    assert [rank_device(cluster, rank) for rank in range(4)] == [torch.device("cuda", index) for index in expected]


def test_over_gloo_ranks_train_on_the_cpu() -> None:
    assert rank_device(cluster_with("gloo"), 3) == torch.device("cpu")


def test_a_node_without_gpus_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    with pytest.raises(OperationError, match=r"b: the cluster's backend is nccl, which needs a GPU .* finds none"):
        rank_device(cluster_with("nccl"), 2)


def test_a_node_with_too_few_gpus_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    nodes = (Node(name="a", host="a", devices=3, bandwidth_out=1e9, bandwidth_in=1e9),)
    with pytest.raises(OperationError, match=r"a: the cluster file has 3 devices, and torch finds 2 GPUs"):
        rank_device(ClusterSpec(name="c", nodes=nodes, backend="nccl"), 2)


def test_a_spec_is_not_tried_on_gpus(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"a model spec cannot be tried on GPUs .*give the task"):
        TrialService(target="gpt_mini", model=two_layers(), cluster=cluster_with("nccl"), folder=tmp_path)
