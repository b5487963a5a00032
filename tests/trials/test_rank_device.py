"""Each rank of a cluster with NCCL trains on a GPU of its own, and all others on the CPU."""

from __future__ import annotations

from dataclasses import replace
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


@pytest.mark.parametrize(("num_gpus", "expected"), [(2, [0, 1, 0, 1]), (8, [0, 1, 0, 1])])
def test_ranks_of_a_node_have_gpus_of_their_own(
    monkeypatch: pytest.MonkeyPatch, num_gpus: int, expected: list[int]
) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: num_gpus)
    cluster = cluster_with("nccl")
    assert [rank_device(cluster, rank) for rank in range(4)] == [torch.device("cuda", index) for index in expected]


def test_nodes_of_one_machine_share_its_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    cluster = replace(cluster_with("nccl"), launcher="testbed")
    assert [rank_device(cluster, rank).index for rank in range(4)] == [0, 1, 2, 3]
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    with pytest.raises(OperationError, match=r"a: the cluster file has 4 devices there, and torch finds 2 GPUs"):
        rank_device(cluster, 0)


def test_over_gloo_ranks_train_on_the_cpu() -> None:
    assert rank_device(cluster_with("gloo"), 3) == torch.device("cpu")


def test_a_node_without_gpus_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    monkeypatch.setattr(torch.backends.cuda, "is_built", lambda: False)
    with pytest.raises(OperationError, match=r"b: the cluster's backend is nccl, which .* finds none \(install"):
        rank_device(cluster_with("nccl"), 2)
    monkeypatch.setattr(torch.backends.cuda, "is_built", lambda: True)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    with pytest.raises(OperationError, match=r"shows this rank none: CUDA_VISIBLE_DEVICES is ''; Slurm gives them by"):
        rank_device(cluster_with("nccl"), 2)


@pytest.mark.parametrize(("num_gpus", "told"), [(1, "1 GPU "), (2, "2 GPUs ")])
def test_a_node_with_too_few_gpus_is_named(monkeypatch: pytest.MonkeyPatch, num_gpus: int, told: str) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: num_gpus)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    nodes = (Node(name="a", host="a", devices=3, bandwidth_out=1e9, bandwidth_in=1e9),)
    with pytest.raises(OperationError, match=rf"a: the cluster file has 3 devices there, .* finds {told}.* is not set"):
        rank_device(ClusterSpec(name="c", nodes=nodes, backend="nccl"), 0)


def test_a_spec_is_not_tried_on_gpus(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"a model spec cannot be tried on GPUs .*give the task"):
        TrialService(target="gpt_mini", model=two_layers(), cluster=cluster_with("nccl"), folder=tmp_path)
