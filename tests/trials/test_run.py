"""Jobs on real ranks: what was measured, and each way to fail with its kind, in time and with nothing left running."""

import os
import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from autosync.errors import InputError
from autosync.launchers.local import STOP_SECONDS, LocalLaunch
from autosync.plan.identity import plan_id
from autosync.plan.lowering import lower
from autosync.specs.cluster import ClusterSpec, Node
from autosync.specs.model_file import model_of
from autosync.strategy.bundle import Bundle, save_bundle
from autosync.strategy.canonical import strategy_id
from autosync.strategy.presets import build_preset
from autosync.trials import run
from autosync.trials.job import Contestant, Job, JobFolder, new_folder
from autosync.trials.run import Failed, Measured, run_job

HERE = Path(__file__).parent
STOCK = Contestant(name="torch_ddp")


@pytest.fixture
def cluster() -> ClusterSpec:
    node = Node(name="this", host="localhost", devices=2, bandwidth_out=1e9, bandwidth_in=1e9)
    return ClusterSpec(name="pair", nodes=(node,))


@pytest.fixture
def folder(tmp_path: Path) -> JobFolder:
    # A path that an URL would spell differently.
    return new_folder(tmp_path / "with a space", "job 100%")


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """The ids of the processes that the launcher started."""
    ids: list[int] = []
    add = LocalLaunch.add

    def watched(self: LocalLaunch, process: object) -> None:
        add(self, process)  # type: ignore[arg-type]
        ids.append(self._running[-1].pid)

    monkeypatch.setattr(LocalLaunch, "add", watched)
    yield ids
    for process in ids:
        assert not _is_running(process), f"process {process} is left"


def _is_running(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True


def _task(name: str) -> str:
    return f"{HERE / 'task.py'}:{name}"


def _job(name: str, *contestants: Contestant, timeout_seconds: float = 60.0) -> Job:
    return Job(
        task=_task(name),
        contestants=contestants or (STOCK,),
        num_warmup_steps=1,
        num_steps=4,
        timeout_seconds=timeout_seconds,
    )


def _bundle(folder: JobFolder, preset: str, task: str, cluster: ClusterSpec) -> str:
    model = model_of(_task(task))
    strategy = build_preset(preset, model, cluster)
    bundle = Bundle(
        strategy=strategy,
        model=model,
        cluster=cluster,
        strategy_id=strategy_id(strategy, model, cluster),
        plan_id=plan_id(lower(strategy, model, cluster), cluster),
    )
    path = folder.path / f"{preset}.yaml"
    save_bundle(path, bundle)
    return str(path)


def test_contestants_are_measured_in_turn(folder: JobFolder, cluster: ClusterSpec, started: list[int]) -> None:
    contestants = (STOCK, Contestant(name="sharded", bundle=_bundle(folder, "sharded", "fine", cluster)))
    job = Job(task=_task("fine"), contestants=contestants, num_warmup_steps=2, num_blocks=3, num_steps=2)
    outcome = run_job(job, cluster, folder)
    assert isinstance(outcome, Measured), outcome
    assert set(outcome.step_seconds) == {"torch_ddp", "sharded"}
    for ranks in outcome.step_seconds.values():
        assert [len(steps) for steps in ranks] == [6, 6]
        assert all(seconds > 0 for steps in ranks for seconds in steps)
    assert len(started) == 2
    # A Python with torch in it is not small, and the test's own size must not be taken for it.
    assert all(50e6 < peak < 4e9 for peak in outcome.peak_memory_bytes)


@pytest.mark.parametrize(
    ("task", "told"),
    [
        ("raises", r"raised: rank 1: .*task\.py:\d+: loss\(model, batch\) raised ValueError: no such luck"),
        ("leaves_python", "raised: rank 1: .*SystemExit: 3"),
        ("is_killed", "lost_rank: rank 1 ended without an answer: killed by SIGKILL"),
        ("vanishes", "lost_rank: rank 1 ended without an answer: exit code 0"),
    ],
)
def test_a_failure_is_told_by_its_cause(
    task: str, told: str, folder: JobFolder, cluster: ClusterSpec, started: list[int]
) -> None:
    outcome = run_job(_job(task), cluster, folder)
    assert isinstance(outcome, Failed)
    assert re.match(told, f"{outcome.kind}: {outcome.message}"), outcome


def test_under_our_engine_too(folder: JobFolder, cluster: ClusterSpec, started: list[int]) -> None:
    contestant = Contestant(name="ours", bundle=_bundle(folder, "sharded", "fine", cluster))
    outcome = run_job(_job("raises", contestant), cluster, folder)
    assert isinstance(outcome, Failed)
    assert outcome.kind == "raised", outcome
    assert "rank 1: " in outcome.message
    assert "no such luck" in outcome.message


def test_a_hang_ends_at_the_limit(folder: JobFolder, cluster: ClusterSpec, started: list[int]) -> None:
    start = time.monotonic()
    outcome = run_job(_job("hangs", timeout_seconds=6.0), cluster, folder)
    assert outcome == Failed(kind="timeout", message="not done within 6 s: rank 0, 1")
    assert time.monotonic() - start < 6.0 + 2 * STOP_SECONDS


def test_a_strategy_that_cannot_run_is_refused(folder: JobFolder, cluster: ClusterSpec, started: list[int]) -> None:
    contestant = Contestant(name="ahead", bundle=_bundle(folder, "bytescheduler", "fine", cluster))
    outcome = run_job(_job("fine", contestant), cluster, folder)
    assert isinstance(outcome, Failed)
    assert outcome.kind == "refused"
    assert "transfers overlap the forward pass" in outcome.message


def test_stock_ddp_takes_a_model_that_leaves_parameters_out_only_when_told(
    folder: JobFolder, cluster: ClusterSpec, started: list[int]
) -> None:
    told = Contestant(name="torch_ddp", find_unused_parameters=True)
    assert isinstance(run_job(_job("leaves_out", told), cluster, folder), Measured)
    outcome = run_job(_job("leaves_out"), cluster, new_folder(folder.path, "again"))
    assert isinstance(outcome, Failed)
    assert outcome.kind == "raised"


def test_ranks_that_cannot_be_started(
    folder: JobFolder, cluster: ClusterSpec, started: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run.sys, "executable", "/no/such/python")
    outcome = run_job(_job("fine"), cluster, folder)
    assert isinstance(outcome, Failed)
    assert outcome.kind == "launch"
    assert "/no/such/python" in outcome.message


def test_an_interrupt_ends_the_ranks(
    folder: JobFolder, cluster: ClusterSpec, started: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(_: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(run.time, "sleep", interrupt)
    with pytest.raises(KeyboardInterrupt):
        run_job(_job("hangs"), cluster, folder)
    assert len(started) == 2


def test_a_cluster_elsewhere_is_refused_before_anything_runs(folder: JobFolder) -> None:
    nodes = tuple(Node(name=f"n{i}", host=f"10.0.0.{i}", bandwidth_out=1e9, bandwidth_in=1e9) for i in (1, 2))
    with pytest.raises(
        InputError, match=r"n1 is on 10\.0\.0\.1 \(the local launcher starts every rank on this machine"
    ):
        run_job(_job("fine"), ClusterSpec(name="far", nodes=nodes), folder)


def test_two_jobs_of_one_name_have_folders_of_their_own(tmp_path: Path) -> None:
    assert new_folder(tmp_path, "trial-0").path != new_folder(tmp_path, "trial-0").path
