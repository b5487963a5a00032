"""Trials of a task with a dataset read with their strategy's input settings."""

import statistics
from dataclasses import replace
from pathlib import Path
from typing import get_args

import pytest

from autosync.plan.bundling import bundled
from autosync.specs.cluster import ClusterSpec
from autosync.specs.input_settings import InputSettings, RightOfWay
from autosync.specs.model_file import model_of
from autosync.strategy.presets import build_preset
from autosync.trials.service import Contestant, TrialService

TASK = f"{Path(__file__).with_name('task.py')}:with_dataset"


def test_steps_take_as_long_as_their_input(cluster: ClusterSpec, started: list[int], tmp_path: Path) -> None:
    model = model_of(TASK)
    ddp = build_preset("ddp", model, cluster)
    with TrialService(target=TASK, model=model, cluster=cluster, folder=tmp_path, timeout_seconds=60.0) as service:
        # Without settings of its own, it reads with the two workers of the defaults.
        assert service.prepare(Contestant(name="stock")) == 2
        for number in (0, 8):
            strategy = replace(ddp, input=InputSettings(num_workers=number))
            contestant = Contestant(name=str(number), bundle=bundled(strategy, model, cluster))
            assert service.prepare(contestant) == max(number, 1)
        medians = {}
        for name in ("0", "8", "stock"):
            service.run(name, 10)
            samples = service.run(name, 16)
            medians[name] = statistics.median(samples.step_seconds[0])
            assert samples.inputs is not None
            assert samples.inputs[0]["num_batches"] == 16
        # Without workers, the rank itself makes each batch, in 20 ms.
        assert medians["0"] > 0.02
        # They train on the same examples.
        assert service.difference("stock", "0") == pytest.approx(0.0, abs=1e-6)
        assert service.difference("stock", "8") == pytest.approx(0.0, abs=1e-6)
        for name in ("0", "8", "stock"):
            service.release(name)
        # The workers of released contestants are gone, and the ranks go on.
        service.prepare(Contestant(name="again"))
        service.run("again", 2)


def test_the_right_of_way_changes_no_weights(cluster: ClusterSpec, started: list[int], tmp_path: Path) -> None:
    model = model_of(TASK)
    sharded = build_preset("sharded", model, cluster)
    with TrialService(target=TASK, model=model, cluster=cluster, folder=tmp_path, timeout_seconds=60.0) as service:
        service.prepare(Contestant(name="stock"))
        service.run("stock", 4)
        for right in get_args(RightOfWay):
            strategy = replace(sharded, input=InputSettings(num_workers=1, right_of_way=right))
            service.prepare(Contestant(name=right, bundle=bundled(strategy, model, cluster)))
            service.run(right, 4)
            assert service.difference("stock", right) == pytest.approx(0.0, abs=1e-6)


def test_the_start_of_workers_is_in_the_first_step_alone(
    cluster: ClusterSpec, started: list[int], tmp_path: Path
) -> None:
    model = model_of(TASK)
    strategy = replace(build_preset("ddp", model, cluster), input=InputSettings(num_workers=8))
    with TrialService(target=TASK, model=model, cluster=cluster, folder=tmp_path, timeout_seconds=60.0) as service:
        service.prepare(Contestant(name="8", bundle=bundled(strategy, model, cluster)))
        (first,) = service.run("8", 1).step_seconds[0]
        later = service.run("8", 7).step_seconds[0]
        # A mean of eight steps with the first one would be longer.
        assert min(later) < first / 8
