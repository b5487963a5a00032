"""Models of vertex functions on a GPU. Skipped, with the reason, where torch finds none."""

from pathlib import Path

import pytest
import torch

from autosync.specs.profile.run import profile
from autosync.specs.task_file import load_task
from tests.helpers.policy_checks import check_policies

EXAMPLE = str(Path(__file__).parents[2] / "examples/graphs/tree_lstm.py")

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no CUDA device here")


@pytest.mark.timeout(300)
def test_every_policy_equals_naive_execution() -> None:
    for seed in range(60):
        check_policies(seed, torch.device("cuda"))


@pytest.mark.timeout(300)
def test_policies_are_measured_on_the_gpu() -> None:
    spec = profile(load_task(EXAMPLE), device="cuda", steps=3)
    assert spec.graphs is not None
    assert spec.timeline.device == torch.cuda.get_device_name()
