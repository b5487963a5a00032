"""The whole road on real ranks, with tasks of a few milliseconds a step. Nothing here depends on who is faster."""

import json
from pathlib import Path

import pytest

from autosync.datasets.studies import read_study
from autosync.errors import InputError, OperationError
from autosync.plan.identity import plan_id
from autosync.plan.lowering import lower
from autosync.search.tune import tune
from autosync.specs.cluster import ClusterSpec, Node
from autosync.specs.cluster_file import load_cluster, save_cluster
from autosync.specs.model_file import load_model
from autosync.strategy.bundle import load_bundle

TASKS = Path(__file__).with_name("tiny.py")
SUMMARY = {
    "schema",
    "study",
    "model",
    "cluster",
    "num_trials",
    "num_failed_trials",
    "wall_seconds",
    "winner",
    "contests",
    "bound_seconds",
    "failures",
}


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_from_a_task_to_a_bundle() -> None:
    told: list[str] = []
    output = Path("out/best.yaml")
    tuned = tune(model=str(TASKS), cluster="local-2", num_trials=3, study="first", output=output, progress=told.append)
    assert [record.origin for record in tuned.records][:2] == ["baseline:torch_ddp", "preset:all_reduce_per_variable"]
    assert all(record.measurement is not None for record in tuned.records)
    assert tuned.folder == Path("autosync-studies/first")
    assert list(read_study(tuned.folder)) == list(tuned.records)
    assert tuned.verdict.contests[0].candidate.name == "stock DDP"
    assert len(tuned.verdict.contests) == 3

    assert output.read_text() == (tuned.folder / "best.yaml").read_text()
    bundle = load_bundle(output)
    bundle.check(load_model(str(tuned.folder / "model.yaml")), load_cluster(str(tuned.folder / "cluster.yaml")))
    assert bundle.plan_id == plan_id(lower(bundle.strategy, bundle.model, bundle.cluster), bundle.cluster)

    summary = json.loads((tuned.folder / "summary.json").read_text())
    assert summary == tuned.summary
    assert set(summary) == SUMMARY
    assert (summary["num_trials"], summary["num_failed_trials"], summary["failures"]) == (3, 0, [])
    assert summary["winner"]["beats_stock_ddp"] == tuned.verdict.beats_default

    assert [line.partition(":")[0] for line in told if line.startswith("trial")] == [
        f"trial {i} of 3" for i in (1, 2, 3)
    ]
    assert all("best so far" in line for line in told if line.startswith("trial"))

    with pytest.raises(InputError, match="the study autosync-studies/first exists"):
        tune(model=str(TASKS), cluster="local-2", num_trials=3, study="first")
    assert list(read_study(tuned.folder)) == list(tuned.records)


def test_a_budget_that_is_spent_tries_nothing() -> None:
    tuned = tune(model=str(TASKS), cluster="local-2", budget_seconds=0.0, study="none")
    assert tuned.records == ()
    assert not tuned.verdict.beats_default
    assert list(read_study(tuned.folder)) == []
    assert load_bundle(tuned.folder / "best.yaml").strategy.name == "ddp"


def test_strategies_that_fail_are_kept_and_passed_over() -> None:
    tuned = tune(model=f"{TASKS}:fails_where_the_engine_updates", cluster="local-2", num_trials=7, study="some", seed=1)
    failed = [record for record in tuned.records if record.failure is not None]
    assert 0 < len(failed) < 6
    assert "preset:sharded" in [record.origin for record in failed]
    assert all(record.failure is not None and "not like this" in record.failure.message for record in failed)
    assert tuned.summary["num_failed_trials"] == len(failed)
    assert list(read_study(tuned.folder)) == list(tuned.records)


def test_if_all_fail_the_reason_is_told_and_the_study_kept() -> None:
    with pytest.raises(OperationError, match=r"all 2 trials failed; the first: .*out of luck.*autosync-studies/bad"):
        tune(model=f"{TASKS}:fails_in_trials", cluster="local-2", num_trials=2, study="bad")
    records = list(read_study("autosync-studies/bad"))
    assert [record.failure.kind for record in records if record.failure is not None] == ["raised", "raised"]
    assert not Path("autosync-studies/bad/best.yaml").exists()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"model": "configs/model.yaml"}, "configs/model.yaml:1: cannot be read: no such file"),
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
