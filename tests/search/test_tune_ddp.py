"""`--target ddp`: only stock DDP runs, and the winner can be emitted."""

from pathlib import Path

import pytest

from autosync.search.measurement_effort import Effort
from autosync.search.tune import tune
from autosync.specs.cluster import ClusterSpec
from autosync.specs.cluster_file import save_cluster
from autosync.specs.model import ModelSpec
from autosync.specs.model_file import save_model
from autosync.strategy.bundle import load_bundle
from autosync.strategy.emit.ddp import settings_for
from autosync.strategy.emit.settings import DdpSettings
from autosync.testing.trials import FakeService, FakeSteps
from autosync.trials.compare import Design
from autosync.trials.contestant import Contestant
from autosync.trials.policy import Policy

CHEAP = Effort(
    trial=Policy(max_warmup_steps=4, min_steps=4, max_steps=8, budget_seconds=2.0),
    proof=Design(num_steps=12, budget_seconds=5.0),
)


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("proposer", ["learned", "evolution", "tpe", "random"])
def test_whoever_proposes_everything_is_stock_ddp(
    proposer: str, model: ModelSpec, cluster: ClusterSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_model(model, "model.yaml")
    save_cluster(Path("pair.yaml"), cluster)
    prepared: list[Contestant] = []
    prepare = FakeService.prepare

    def watched(self: FakeService, contestant: Contestant) -> None:
        prepared.append(contestant)
        prepare(self, contestant)

    monkeypatch.setattr(FakeService, "prepare", watched)
    steps = {"stock DDP": FakeSteps(seconds=0.2, noise=0.005)}
    service = FakeService(steps, others=FakeSteps(seconds=0.1, noise=0.005))
    monkeypatch.setattr("autosync.search.tuning_plan.TrialService", lambda **_: service)
    tuned = tune(
        model="model.yaml", cluster="pair.yaml", study="s", proposer=proposer, target="ddp", num_trials=6, effort=CHEAP
    )
    assert len(prepared) > 6
    assert all(contestant.bundle is None for contestant in prepared)
    assert all(record.environment["engine"] == "torch_ddp" for record in tuned.records)
    assert all(record.failure is None for record in tuned.records)
    bundle = load_bundle("autosync-studies/s/best.yaml")
    assert settings_for(bundle.strategy, bundle.model, bundle.cluster)
    winner = tuned.summary["winner"]
    assert isinstance(winner, dict)
    assert winner["stock_ddp"] is not None
    assert winner["why_not_stock_ddp"] == ""
    assert any("DistributedDataParallel(model" in line or "wrap" in line for line in winner["use"])


@pytest.mark.slow
@pytest.mark.usefixtures("forked_ranks")
def test_on_real_ranks_with_every_flag() -> None:
    task = str(Path(__file__).with_name("tiny.py"))
    tuned = tune(
        model=task, cluster="local-2", study="s", proposer="random", target="ddp", num_trials=3, effort=CHEAP, seed=1
    )
    assert all(record.measurement is not None for record in tuned.records)
    assert tuned.verdict.left_out == {}
    settings = [result.contestant.settings for result in tuned.verdict.results]
    assert DdpSettings() in settings
    assert any(one is not None and one.static_graph for one in settings)
    assert any(one is not None and one.batched_grad_copy for one in settings)
