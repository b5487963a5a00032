"""Training on a GPU: `pytest tests/runtime/test_gpu.py`. Several ranks share one under gloo; NCCL takes one rank a GPU.

Skipped, with the reason, where torch finds none. What can be proved on a CPU is in `test_device.py`.
"""

from __future__ import annotations

import random
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from autosync.runtime.engine.device import used_here
from autosync.strategy.representation import Overlap
from autosync.strategy.space import Limits, Space
from tests.helpers.example_plans import Example, cluster_of, examples, model_of
from tests.helpers.whole_plans import check

HERE = Path(__file__).parent
# A workload's gradients are no products of factors.
WITHOUT_FACTORS = sorted(set(examples("backward")) - {"factors"})
LIMITS = Limits(synchronisers=("all_reduce", "parameter_server", "sharded", "sparse_gather", "periodic"), max_parts=3)

needs_a_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no CUDA device here")
needs_nccl = pytest.mark.skipif(
    not (torch.cuda.is_available() and torch.distributed.is_nccl_available()),
    reason="torch finds no CUDA device here, or was built without NCCL",
)


@needs_a_gpu
@pytest.mark.parametrize("overlap", ["backward", "forward"])
@pytest.mark.parametrize("name", WITHOUT_FACTORS)
def test_whole_plans_on_a_gpu(name: str, overlap: Overlap) -> None:
    check(examples(overlap)[name], device="cuda")


@needs_a_gpu
@pytest.mark.parametrize("overlap", ["backward", "forward"])
def test_one_rank_queues_its_work_on_a_gpu(overlap: Overlap) -> None:
    for seed in range(8):
        cluster = replace(cluster_of(1), backend="nccl")
        space = Space(model=model_of(), cluster=cluster, limits=LIMITS)
        strategy = replace(space.sample(random.Random(seed)), overlap=overlap)
        check(Example(strategy=strategy, model=model_of(), cluster=cluster), device="cuda")


@needs_a_gpu
@pytest.mark.timeout(600)
def test_two_ranks_share_a_gpu_under_gloo(exactness: Any) -> None:
    found = exactness("--device", "cuda", "--cluster", "2 nodes", "--count", "40", "--seed", "13", limit_seconds=500)
    assert found["failures"] == []
    assert found["trained"] == 40


@needs_a_gpu
@pytest.mark.timeout(600)
def test_a_server_without_a_gpu_serves_those_with_one(exactness: Any) -> None:
    options = ("--cluster", "2 nodes and a server", "--count", "20", "--seed", "14")
    found = exactness("--device", "cuda", *options, limit_seconds=500)
    assert found["failures"] == []
    assert found["trained"] == 20


@needs_nccl
@pytest.mark.timeout(600)
def test_as_many_ranks_as_gpus_under_nccl(exactness: Any) -> None:
    shapes = {1: "one rank", 2: "2 nodes", 4: "4 nodes"}
    cluster = shapes[max(count for count in shapes if count <= torch.cuda.device_count())]
    options = ("--cluster", cluster, "--count", "40", "--seed", "15")
    found = exactness("--device", "cuda", "--backend", "nccl", *options, limit_seconds=500)
    assert found["failures"] == []
    assert found["trained"] == 40


@needs_nccl
def test_every_collective_of_nccl_among_one_rank(tmp_path: Path) -> None:
    """Collectives of one member change nothing; that they are called as NCCL wants them is what shows here."""
    found = subprocess.run(
        (sys.executable, HERE / "device_cases.py", tmp_path / "store"),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert (found.returncode, found.stdout.strip()) == (0, "['nccl']"), found.stderr


@needs_a_gpu
def test_contents_are_marked_for_whoever_gets_them() -> None:
    content = (torch.ones(4, device="cuda"), [torch.ones(2, device="cuda")])
    with torch.cuda.stream(torch.cuda.Stream()):
        used_here(content)
