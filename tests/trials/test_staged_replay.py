"""Replayed stages: passes take the times of their layers, and steps end on all ranks."""

from dataclasses import replace
from pathlib import Path

import pytest
from torch import nn

from autosync.plan.bundling import bundled
from autosync.plan.lowering import lower
from autosync.runtime.stages.recorded_model import planned_bytes
from autosync.specs.cluster import ClusterSpec
from autosync.specs.model_file import save_model
from autosync.strategy.dividing.divided import divided_strategy
from autosync.strategy.stage_compute import strategy_compute_seconds
from autosync.strategy.stages import ModelStage
from autosync.trials.replay import ReplayedModel
from autosync.trials.service import Contestant, TrialService
from autosync.trials.staged_replay import replay_stages
from tests.helpers.staged_models import chain, nodes

MODEL = chain(4, batch_size=4, tied=[(0, 3)], seconds=[0.002] * 4)
STAGES = [ModelStage(before=0, ranks=(0,)), ModelStage(before=2, ranks=(1,))]


@pytest.mark.usefixtures("forked_ranks")
def test_stages_of_a_spec_are_replayed_on_real_ranks(cluster: ClusterSpec, tmp_path: Path) -> None:
    path = tmp_path / "chain.yaml"
    save_model(MODEL, path)
    strategy = divided_strategy(MODEL, STAGES, 4)
    with TrialService(target=str(path), model=MODEL, cluster=cluster, folder=tmp_path / "f") as service:
        service.prepare(Contestant(name="stages", bundle=bundled(strategy, MODEL, cluster)))
        samples = service.run("stages", 3)
        service.release("stages")
    least = strategy_compute_seconds(strategy, MODEL, cluster)
    assert len(samples.step_seconds) == 2
    assert min(min(steps) for steps in samples.step_seconds) > 0.9 * least


@pytest.mark.usefixtures("forked_ranks")
def test_stages_that_stash_parameters_are_replayed_on_real_ranks(cluster: ClusterSpec, tmp_path: Path) -> None:
    path, model = tmp_path / "chain.yaml", chain(4, batch_size=4, seconds=[0.002] * 4)
    save_model(model, path)
    with TrialService(target=str(path), model=model, cluster=cluster, folder=tmp_path / "f") as service:
        for microbatches in (1, 4):
            name, strategy = f"in {microbatches}", divided_strategy(model, STAGES, microbatches, "stashing")
            service.prepare(Contestant(name=name, bundle=bundled(strategy, model, cluster)))
            samples = service.run(name, 4)
            service.release(name)
            # Without a flush, no rank waits for the pipeline: the first step alone takes longer.
            assert min(min(steps[1:]) for steps in samples.step_seconds) > 0.8 * 2 * 2 * 3 * 0.002


def test_with_several_versions_gradients_come_with_the_last_backward_pass_of_a_step() -> None:
    model = chain(4, batch_size=4, seconds=[0.05] * 4)
    plan = lower(divided_strategy(model, STAGES, 4, "stashing"), model, nodes(1, 1))
    replayed = ReplayedModel(model)
    first = replay_stages(model, 0, plan, replayed)[0]
    own = dict(replayed.named_parameters())
    versions = [{name: nn.Parameter(one.detach().clone()) for name, one in own.items()} for _ in range(2)]
    turns = [first.with_parameters({own[name]: one for name, one in version.items()}) for version in versions]
    for number, turn in enumerate((0, 1, 1, 1)):
        turns[turn].backward(turns[turn].forward([], {}, keeps=True), {}, scale=0.25)
        found = [{name for name, one in version.items() if one.grad is not None} for version in versions]
        assert found == [set(), {"w0", "w1"} if number == 3 else set()]


def test_gradients_come_with_the_last_backward_pass() -> None:
    cluster = nodes(1, 1)
    plan = lower(divided_strategy(MODEL, STAGES, 4), MODEL, cluster)
    model = ReplayedModel(MODEL)
    first, last = replay_stages(MODEL, 1, plan, model)
    assert first.arriving is None
    assert last.leaving is None
    assert first.leaving is not None
    assert (len(first.leaving.forward), len(first.leaving.backward)) == planned_bytes(plan, 0)
    for number in range(4):
        passed = last.forward([], {}, keeps=True)
        assert passed.loss is not None
        sent = last.backward(passed, {}, scale=0.25)
        assert len(sent[0]) == planned_bytes(plan, 0)[1]
        gradients = {name for name, one in model.named_parameters() if one.grad is not None}
        # The tied weight is in the last stage too.
        assert gradients == ({"w0", "w2"} if number == 3 else set())


def test_split_backward_passes_bring_gradients_with_those_of_the_weights() -> None:
    plan = lower(divided_strategy(MODEL, STAGES, 2, "zero_bubble"), MODEL, nodes(1, 1))
    model = ReplayedModel(MODEL)
    last = replay_stages(MODEL, 1, plan, model)[1]
    for number in range(2):
        passed = last.forward([], {}, keeps=True)
        last.backward(passed, {}, scale=0.5)
        assert not any(one.grad is not None for _, one in model.named_parameters())
        last.weights(passed.left)
        gradients = {name for name, one in model.named_parameters() if one.grad is not None}
        assert gradients == ({"w0", "w2"} if number == 1 else set())


def test_gradients_of_embeddings_have_the_rows_that_all_microbatches_of_a_step_touch() -> None:
    facts = {"kind": "embedding", "sparse": True, "touched_rows": 10.0, "max_touched_rows": 20}
    table = replace(MODEL.variables[0], shape=(100, 3), **facts)
    spec = replace(MODEL, variables=(table, *MODEL.variables[1:]))
    model = ReplayedModel(spec)
    first = replay_stages(spec, 0, lower(divided_strategy(MODEL, STAGES, 4), MODEL, nodes(1, 1)), model)[0]
    for _ in range(4):
        first.backward(first.forward([], {}, keeps=True), {}, scale=0.25)
    gradient = model.parameter("w0").grad
    assert gradient is not None
    # Two ranks' batches touch 10 of 100 rows each: 19 together.
    assert gradient.coalesce().values().shape == (19, 3)


@pytest.mark.parametrize("name", ["w0", "w2"])
def test_a_replayed_model_has_its_parameters(name: str) -> None:
    assert ReplayedModel(MODEL).parameter(name).shape == MODEL.variable(name).shape
