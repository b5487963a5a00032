"""`autosync strategy divide`: stages from the partitioner or by hand, and what comes of them in other commands."""

from pathlib import Path
from typing import Any

import pytest

from autosync.specs.model_file import save_model
from autosync.strategy.bundle import load_bundle
from autosync.strategy.files import load_strategy
from tests.helpers.staged_models import chain

DIVIDE = ("strategy", "divide", "chain.yaml", "--cluster", "cluster.yaml")


@pytest.fixture(autouse=True)
def _chain(shell: Any) -> None:
    assert shell is not None
    save_model(chain(6, batch_size=4, tied=[(0, 5)], seconds=[1.0] * 6), Path("chain.yaml"))


def test_stages_are_found(shell: Any) -> None:
    assert shell.run(*DIVIDE, "--bundle", "-o", "b.yaml") == 0, shell.err
    assert "the work is divided into" in shell.err
    found = load_bundle(Path("b.yaml")).strategy
    assert sorted(rank for stage in found.stages for rank in stage.ranks) == [0, 1, 2]
    assert shell.run("strategy", "show", "b.yaml") == 0
    assert "microbatches a step" in shell.out
    assert shell.run("strategy", "validate", "b.yaml") == 0


def test_stages_by_hand(shell: Any) -> None:
    stages = ("--microbatches", "6", "--schedule", "gpipe", "--stage", "0:2", "--stage", "3:0+1")
    assert shell.run(*DIVIDE, *stages, "-o", "s.yaml") == 0, shell.err
    found, _ = load_strategy("s.yaml")
    assert [(one.before, one.ranks) for one in found.stages] == [(0, (2,)), (3, (0, 1))]
    assert (found.microbatches, found.schedule) == (6, "gpipe")
    assert shell.json(*DIVIDE, *stages)["microbatches"] == 6


def test_what_cannot_be_divided_says_why(shell: Any) -> None:
    assert shell.run("strategy", "divide", "model.yaml", "--cluster", "cluster.yaml") == 2
    assert "autosync profile --cuts" in shell.err
    assert shell.run(*DIVIDE, "--microbatches", "5") == 2
    assert "microbatches divide the global batch" in shell.err
    assert shell.run(*DIVIDE, "--microbatches", "6", "--stage", "0:2", "--stage", "4:x") == 2
    assert "SEGMENT:RANK+RANK" in shell.err
    assert shell.run(*DIVIDE, "--microbatches", "6", "--stage", "0:0", "--stage", "3:1") == 2
    assert "rank 2 in no stage" in shell.err
    assert shell.run(*DIVIDE, "--stage", "0:0") == 2


def test_the_timeline_predicts_stages_and_others_refuse_them_by_name(shell: Any) -> None:
    assert shell.run(*DIVIDE, "-o", "s.yaml") == 0
    simulate = ("simulate", "s.yaml", "--model", "chain.yaml", "--cluster", "cluster.yaml")
    (prediction,) = shell.json(*simulate)["predictions"]
    # 16 seconds of compute for each rank's batch.
    assert 16.0 < prediction["seconds"] < 40.0
    assert shell.run(*simulate, "--simulator", "analytical") == 2
    assert "a strategy with stages cannot be predicted" in shell.err
    assert shell.run(*simulate, "--trace", "t.json") == 2
