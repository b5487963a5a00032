"""All of tuning: once on real ranks, with steps of a few milliseconds; otherwise on a service that runs nothing."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from autosync.cli.verdict import describe
from autosync.datasets.schema import Record
from autosync.datasets.studies import read_study
from autosync.errors import InputError, OperationError
from autosync.plan.bound import bound
from autosync.plan.identity import plan_id
from autosync.plan.lowering import lower
from autosync.search.candidates import STOCK_DDP, candidate
from autosync.search.measurement_effort import Effort
from autosync.search.shown_summary import shown
from autosync.search.tune import tune
from autosync.search.tuned import Tuned
from autosync.specs.background_load import BackgroundLoad
from autosync.specs.cluster import ClusterSpec, Node
from autosync.specs.cluster_file import load_cluster, save_cluster
from autosync.specs.model import ModelSpec
from autosync.specs.model_file import load_model, model_of, save_model
from autosync.strategy.bundle import load_bundle
from autosync.strategy.emit.settings import DdpSettings
from autosync.strategy.presets import build_preset
from autosync.testing.trials import FakeService, FakeSteps
from autosync.trials.compare import Design
from autosync.trials.contestant import Contestant
from autosync.trials.policy import Policy

if TYPE_CHECKING:
    from conftest import Told

    TuneFake = Callable[..., tuple[Tuned, FakeService]]

TASKS = Path(__file__).with_name("tiny.py")
CHEAP = Effort(
    trial=Policy(max_warmup_steps=4, min_steps=4, max_steps=8, budget_seconds=2.0),
    proof=Design(num_steps=12, budget_seconds=5.0),
)
SUMMARY = {
    "schema",
    "study",
    "model",
    "cluster",
    "num_trials",
    "num_failed_trials",
    "num_stopped_trials",
    "num_busy_trials",
    "num_baseline_trials",
    "wall_seconds",
    "winner",
    "contests",
    "left_out",
    "other_cpu_share",
    "bound_seconds",
    "graphs",
    "loader",
    "profile",
    "prospect",
    "stages",
    "tried",
    "fidelity",
    "failures",
    "num_outages",
    "outages",
    "proposer",
    "search_seconds",
    "own_seconds",
    "peak_memory_bytes",
    "ended",
    "proved_at_once",
    "first_answer",
    "forecasts",
}
STOCK = STOCK_DDP.name


def _measured(tuned: Tuned) -> list[Record]:
    """All that was measured, in the order of the trials."""
    return sorted([*tuned.records, *tuned.baselines], key=lambda record: record.trial)


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.usefixtures("forked_ranks")
def test_from_a_task_to_a_bundle_on_real_ranks(told: Told) -> None:
    output = Path("out/best.yaml")
    tuned = tune(
        model=str(TASKS),
        cluster="local-2",
        num_trials=3,
        effort=CHEAP,
        study="first",
        proposer="mcmc",
        output=output,
        progress=told,
    )
    assert [record.origin for record in tuned.records][:2] == ["baseline:torch_ddp", "preset:ddp"]
    assert tuned.summary["proposer"] == "mcmc"
    assert all(record.measurement is not None for record in tuned.records)
    assert tuned.folder == Path("autosync-studies/first")
    assert list(read_study(tuned.folder)) == _measured(tuned)
    assert tuned.verdict.default.name == "stock DDP"
    assert len(tuned.verdict.results) >= 3

    assert output.read_text() == (tuned.folder / "best.yaml").read_text()
    bundle = load_bundle(output)
    bundle.check(load_model(str(tuned.folder / "model.yaml")), load_cluster(str(tuned.folder / "cluster.yaml")))
    assert bundle.plan_id == plan_id(lower(bundle.strategy, bundle.model, bundle.cluster), bundle.cluster)

    summary = json.loads((tuned.folder / "summary.json").read_text())
    assert summary == tuned.summary
    assert set(summary) == SUMMARY
    assert (summary["num_trials"], summary["num_failed_trials"], summary["failures"]) == (3, 0, [])
    assert summary["winner"]["beats_stock_ddp"] == tuned.verdict.beats_default

    trials = [line for line in told.notes if line.startswith("trial")]
    assert [line.partition(":")[0] for line in trials] == [f"trial {i} of 3" for i in (1, 2, 3)]
    assert all("best so far" in line for line in trials)

    with pytest.raises(InputError, match="the study autosync-studies/first exists"):
        tune(model=str(TASKS), cluster="local-2", num_trials=3, study="first")
    assert list(read_study(tuned.folder)) == _measured(tuned)


def test_the_winner_is_handed_over(tune_fake: TuneFake, names: list[str], told: Told) -> None:
    fast = names[3]
    tuned, service = tune_fake({fast: FakeSteps(seconds=0.05, noise=0.005)}, num_trials=6, progress=told)
    assert tuned.verdict.winner.candidate.name == fast
    best = load_bundle(tuned.folder / "best.yaml")
    assert best.strategy_id == tuned.records[3].strategy_id
    winner: Any = tuned.summary["winner"]
    assert (winner["origin"], winner["strategy_id"]) == (tuned.records[3].origin, best.strategy_id)
    assert winner["beats_stock_ddp"]
    assert winner["in_words"] == tuned.verdict.winner.candidate.in_words(best.model)
    assert winner["bundle"] == str(tuned.folder / "best.yaml")
    stock, *others = tuned.summary["contests"]  # type: ignore[misc]
    assert (stock["name"], stock["speedup_over_stock_ddp"]) == (STOCK, None)
    speedups = {one["name"]: one["speedup_over_stock_ddp"] for one in others}
    stopped = [one["name"] for one in others if "stopped_early" in one["flags"]]
    assert [speedups.pop(name) for name in stopped] == [None]
    verdicts = {name: one["verdict"] for name, one in speedups.items()}
    assert verdicts.pop(fast) == "faster"
    assert verdicts
    assert set(verdicts.values()) == {"no difference found"}

    # What came after the best was clearly worse than it, and its record says that it was stopped.
    assert [("stopped_early" in record.measurement.flags) for record in tuned.records if record.measurement] == (
        [False] * 4 + [True] * 2
    )
    assert tuned.summary["num_stopped_trials"] == 2
    assert list(read_study(tuned.folder)) == _measured(tuned)
    assert [("stopped early" in one) for one in told.notes if one.startswith("trial ")] == [False] * 4 + [True] * 2
    assert f"trying {STOCK} (trial 1 of 6)" in told.lines
    assert any(line.startswith("round 9 of 12") for line in told.lines)
    assert not service.prepared


def test_where_nothing_is_faster_the_default_is_handed_over(
    tune_fake: TuneFake,
) -> None:
    tuned, _ = tune_fake({STOCK: FakeSteps(seconds=0.09, noise=0.005)}, num_trials=5)
    assert not tuned.verdict.beats_default
    assert load_bundle(tuned.folder / "best.yaml").strategy.name == "ddp"
    winner: Any = tuned.summary["winner"]
    assert (winner["origin"], winner["strategy_id"]) == ("baseline:torch_ddp", None)
    assert not winner["beats_stock_ddp"]
    assert winner["in_words"] == "stock DDP as it ships"
    assert winner["bundle"] == str(tuned.folder / "best.yaml")
    assert "more than 4.5" in str(tuned.summary["prospect"])


def test_a_budget_that_is_spent_tries_nothing(tune_fake: TuneFake) -> None:
    tuned, _ = tune_fake({}, budget_seconds=0.0)
    assert tuned.records == ()
    assert len(tuned.verdict.results) == 1
    assert not tuned.verdict.beats_default
    assert list(read_study(tuned.folder)) == []
    assert load_bundle(tuned.folder / "best.yaml").strategy.name == "ddp"


def test_strategies_that_fail_are_kept_and_passed_over(tune_fake: TuneFake, names: list[str]) -> None:
    fails = {names[1]: FakeSteps(seconds=0.01, fails_at=0), names[4]: FakeSteps(seconds=0.01, fails_at=9)}
    tuned, _ = tune_fake(fails, num_trials=6)
    failed = [record for record in tuned.records if record.failure is not None]
    assert [record.trial for record in failed] == [1, 4]
    assert tuned.summary["failures"] == [
        {"trial": number, "origin": tuned.records[number].origin, "why": f"raised: rank 0: {names[number]} fails here"}
        for number in (1, 4)
    ]
    assert tuned.summary["num_failed_trials"] == 2
    assert {result.candidate.name for result in tuned.verdict.results}.isdisjoint(fails)
    assert list(read_study(tuned.folder)) == _measured(tuned)


def test_if_all_fail_the_reason_is_told_and_the_study_kept(tune_fake: TuneFake, names: list[str]) -> None:
    fails = {name: FakeSteps(seconds=0.1, fails_at=0) for name in names}
    with pytest.raises(OperationError, match=r"all 2 trials failed; the first: .*stock DDP fails.*autosync-studies/s"):
        tune_fake(fails, num_trials=2)
    records = list(read_study("autosync-studies/s"))
    assert [record.failure.kind for record in records if record.failure is not None] == ["raised", "raised"]
    assert not Path("autosync-studies/s/best.yaml").exists()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"model": "configs/model.yaml"}, "configs/model.yaml: cannot be read: no such file"),
        ({"cluster": "far.yaml"}, "this is on 10.0.0.1"),
        ({"study": "a/b"}, "is no name of a study"),
    ],
)
def test_bad_input_is_told_before_anything_is_written(changes: dict[str, str], words: str) -> None:
    node = Node(name="this", host="10.0.0.1", bandwidth_out=1e9, bandwidth_in=1e9)
    save_cluster(Path("far.yaml"), ClusterSpec(name="far", nodes=(node,)))
    with pytest.raises(InputError, match=words):
        tune(**{"model": str(TASKS), "cluster": "local-2", **changes})  # type: ignore[arg-type]
    assert not Path("autosync-studies").exists()


def test_where_lossy_strategies_are_allowed_the_bound_of_exact_ones_ends_nothing(
    tune_fake: TuneFake, model: ModelSpec, cluster: ClusterSpec
) -> None:
    at_once = FakeSteps(seconds=bound(model, cluster).seconds, noise=0.005)
    exact, _ = tune_fake({STOCK: at_once}, study="exact", num_trials=4, patience=0)
    assert len(exact.records) == 1
    assert str(exact.summary["ended"]).startswith("no strategy can be much faster")
    lossy, _ = tune_fake({STOCK: at_once}, study="lossy", num_trials=4, patience=0, allow=("lossy",))
    assert len(lossy.records) == 4


def test_a_step_below_the_bound_ends_nothing_and_is_told(tune_fake: TuneFake) -> None:
    tuned, _ = tune_fake({STOCK: FakeSteps(seconds=1e-6, noise=0.005)}, num_trials=4, patience=0)
    assert len(tuned.records) == 4
    prospect: Any = tuned.summary["prospect"]
    assert "shorter than the links' rates and the profile allow" in prospect["in_words"]


def test_a_lossy_strategy_that_does_not_train_is_told_and_does_not_win(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model, cluster = model_of(str(TASKS)), load_cluster("local-2")
    half = candidate("preset:fp16", build_preset("fp16", model, cluster), model, cluster)
    lost = FakeSteps(seconds=0.01, noise=0.005, loss=float("nan"), gradient_error=float("inf"))
    service = FakeService({}, others=FakeSteps(seconds=0.1, noise=0.005))
    run = service.prepare

    def prepare(contestant: Contestant) -> None:
        if "fp16" in contestant.name:
            service._steps[contestant.name] = lost
        run(contestant)

    monkeypatch.setattr(service, "prepare", prepare)
    monkeypatch.setattr("autosync.search.tuning_plan.TrialService", lambda **_: service)
    monkeypatch.setattr(
        "autosync.search.search_loop.choose_finalists",
        lambda tried, *_, **__: [half, *[one.candidate for one in tried if one.candidate.strategy][:1]],
    )
    tuned = tune(model=str(TASKS), cluster="local-2", num_trials=2, study="s", proposer="mcmc", allow=("lossy",))
    assert not tuned.verdict.beats_default
    (found,) = json.loads((tuned.folder / "summary.json").read_text())["fidelity"].values()
    assert (found["loss"], found["gradient_error"]) == (None, None)
    assert found["in_words"].endswith("so it cannot win")


def test_stock_ddp_s_flags_are_handed_over_as_a_file(monkeypatch: pytest.MonkeyPatch, tune_fake: TuneFake) -> None:
    fast = FakeSteps(seconds=0.05, noise=0.005)
    settings: list[DdpSettings] = []

    class Flagged(FakeService):
        def prepare(self, contestant: Contestant) -> None:
            if contestant.name.endswith(", static graph"):
                settings.append(contestant.ddp)
                self._steps[contestant.name] = fast
            super().prepare(contestant)

    tune_fake({}, study="other", num_trials=1)
    service = Flagged({}, others=FakeSteps(seconds=0.1, noise=0.005))
    monkeypatch.setattr("autosync.search.tuning_plan.TrialService", lambda **_: service)
    monkeypatch.setattr("autosync.search.winner_usage.call", lambda _: "x" * 101)
    tuned = tune(
        model="model.yaml", cluster="pair.yaml", num_trials=4, study="s", proposer="random", target="ddp", patience=0
    )
    assert tuned.verdict.winner.name.endswith(", static graph")
    script: dict[str, Any] = {}
    exec((tuned.folder / "tuned_ddp.py").read_text(), script)
    assert script["ARGUMENTS"] == settings[-1].arguments()
    assert script["ARGUMENTS"]["static_graph"]


def test_what_it_cost_is_measured(tune_fake: TuneFake, monkeypatch: pytest.MonkeyPatch) -> None:
    run = FakeService.run

    def slowly(self: FakeService, *arguments: Any, **options: Any) -> Any:
        time.sleep(0.005)
        return run(self, *arguments, **options)

    monkeypatch.setattr(FakeService, "run", slowly)
    tuned, service = tune_fake({}, num_trials=3)
    whats = [what for what, _, _ in service.calls]
    # Timelines are recorded after the summary is written.
    num_runs = sum(what.startswith("run") for what in whats) - whats.count("timeline")
    wall, own = tuned.summary["wall_seconds"], tuned.summary["own_seconds"]
    assert isinstance(wall, float)
    assert isinstance(own, float)
    assert 0 < tuned.summary["search_seconds"] < own  # type: ignore[operator]
    assert own < wall - 0.005 * num_runs + 0.001
    assert tuned.summary["peak_memory_bytes"] > 10_000_000  # type: ignore[operator]


def test_without_trials_the_predicted_are_proved(tune_fake: TuneFake) -> None:
    tuned, _ = tune_fake({}, num_trials=0, proposer="learned")
    assert tuned.records == ()
    roles = [result.contestant.role for result in tuned.verdict.results]
    assert roles[0] == "default"
    assert 1 + CHEAP.num_predicted <= len(roles) <= 3 + CHEAP.num_predicted
    assert all(result.candidate.strategy is not None for result in tuned.verdict.results[1:])


def test_it_stops_where_no_gain_is_likely(tune_fake: TuneFake, told: Told) -> None:
    tuned, _ = tune_fake({STOCK: FakeSteps(seconds=0.05)}, num_trials=40, patience=6, progress=told)
    assert len(tuned.records) == 7
    assert tuned.summary["ended"] == "no further gain is likely: 6 trials have brought none since the last that did"
    assert tuned.summary["ended"] in told.notes


def test_a_busy_machine_is_told_and_tries_no_patience(
    tune_fake: TuneFake, told: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    tune_fake({}, study="quiet", num_trials=1)
    monkeypatch.setattr(BackgroundLoad, "share", lambda _: 0.3)
    tuned, _ = tune_fake({STOCK: FakeSteps(seconds=0.05)}, num_trials=9, patience=6, progress=told)
    assert len(tuned.records) == 9
    assert tuned.summary["num_busy_trials"] == 9
    assert tuned.summary["other_cpu_share"] == 0.3
    assert any("other programs used 30% of the processors" in one for one in told.notes)
    text = describe(shown(tuned.summary), tuned.folder)
    assert "Other programs used 30% of this machine's processors meanwhile" in text


def test_it_ends_where_nothing_new_is_left(
    tune_fake: TuneFake, scalar: ModelSpec, cluster: ClusterSpec, told: Told
) -> None:
    tune_fake({}, num_trials=1)
    save_model(scalar, "model.yaml")
    tuned, _ = tune_fake({}, study="small", num_trials=60, patience=0, progress=told)
    assert 2 <= len(tuned.records) < 60
    assert "nothing new is left to try" in told.notes
    assert len({record.strategy_id for record in tuned.records}) == len(tuned.records)
