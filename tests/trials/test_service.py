"""The trial service on real ranks: what is measured, that contestants leave nothing behind, and each way to fail."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from autosync.errors import InputError, OperationError
from autosync.launchers.local import STOP_SECONDS, LocalLauncher
from autosync.plan.bundling import bundled
from autosync.specs.cluster import ClusterSpec, Node
from autosync.specs.model import ModelSpec
from autosync.specs.model_file import model_of
from autosync.strategy.bundle import Bundle, save_bundle
from autosync.strategy.emit.settings import DdpSettings
from autosync.strategy.presets import build_preset
from autosync.testbed import processes
from autosync.trials import control, rank_requests, ranks
from autosync.trials.service import Contestant, TrialFailed, TrialService

TASK = str(Path(__file__).with_name("task.py"))
STOCK = Contestant(name="stock")

MakeService = Callable[..., TrialService]


@pytest.fixture
def make(cluster: ClusterSpec, started: list[int], tmp_path: Path) -> MakeService:
    def make(target: str = TASK, cluster: ClusterSpec = cluster) -> TrialService:
        return TrialService(
            target=target,
            model=model_of(target),
            cluster=cluster,
            # A path that an URL would spell differently.
            folder=tmp_path / "with a space 100%",
            timeout_seconds=60.0,
        )

    return make


@pytest.fixture
def fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the next fault of rank 1 is told."""
    monkeypatch.setenv("FAULT_FILE", str(tmp_path / "fault"))
    return tmp_path / "fault"


def _bundle(preset: str, model: ModelSpec, cluster: ClusterSpec) -> Bundle:
    strategy = build_preset(preset, model, cluster)
    return bundled(strategy, model, cluster)


def _failure(service: TrialService, contestant: Contestant = STOCK) -> TrialFailed:
    try:
        service.prepare(contestant)
        service.run(contestant.name, 3)
    except TrialFailed as failure:
        return failure
    raise AssertionError("nothing failed")


def test_contestants_take_turns(make: MakeService, cluster: ClusterSpec, started: list[int], tmp_path: Path) -> None:
    save_bundle(tmp_path / "s.yaml", _bundle("sharded", model_of(TASK), cluster))
    with make() as service:
        service.prepare(STOCK)
        for process in started:
            _check_token(process)
        service.prepare(Contestant(name="sharded", bundle=tmp_path / "s.yaml"))
        for name in ("stock", "sharded", "stock"):
            samples = service.run(name, 4)
            assert [len(steps) for steps in samples.step_seconds] == [4, 4]
            assert all(seconds > 0 for steps in samples.step_seconds for seconds in steps)
            assert 0 <= samples.cpu_share <= 1
            # Over loopback nobody can tell whose bytes they are.
            assert (samples.bytes_sent, samples.bytes_received) == (None, None)
            assert all(50e6 < peak < 4e9 for peak in samples.peak_memory_bytes)
        with pytest.raises(OperationError, match="stock is prepared already"):
            service.prepare(STOCK)
        service.release("stock")
        with pytest.raises(OperationError, match="stock is not prepared"):
            service.run("stock", 1)
        service.release("stock")
        service.prepare(STOCK)
        assert service.run("sharded", 1).step_seconds
    assert len(started) == 2
    service.close()


def _check_token(process: int) -> None:
    """A rank's environment had the token at its start; its command line never."""
    environment = Path(f"/proc/{process}/environ").read_bytes().split(b"\0")
    (token,) = (line.partition(b"=")[2] for line in environment if line.startswith(b"AUTOSYNC_CONTROL_TOKEN"))
    assert len(token) == 64
    assert token not in Path(f"/proc/{process}/cmdline").read_bytes()


def _rank_facts(processes: list[int]) -> list[tuple[int, int, int]]:
    """Resident bytes, threads and open files of each rank."""
    found = []
    for process in processes:
        status = Path(f"/proc/{process}/status").read_text()
        resident, threads = (
            int(re.findall(rf"^{key}:\s+(\d+)", status, re.MULTILINE)[0]) for key in ("VmRSS", "Threads")
        )
        found.append((resident * 1024, threads, len(list(Path(f"/proc/{process}/fd").iterdir()))))
    return found


@pytest.mark.slow
def test_contestants_leave_nothing_behind(make: MakeService, cluster: ClusterSpec, started: list[int]) -> None:
    target = f"{TASK}:large"
    model = model_of(target)
    presets = ("sharded", "ddp", "all_reduce_per_variable")
    with make(target) as service:
        facts = []
        for number in range(25):
            bundle = None if number % 4 == 3 else _bundle(presets[number % 4], model, cluster)
            service.prepare(Contestant(name="one", bundle=bundle))
            service.run("one", 2)
            service.release("one")
            facts.append(_rank_facts(started))
        before, after = facts[5], facts[-1]
        # A connection that is being closed has a thread and a file for a moment yet.
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline and any(
            now[1] > then[1] or now[2] > then[2] for then, now in zip(before, after, strict=True)
        ):
            time.sleep(0.2)
            after = _rank_facts(started)
    for (resident, threads, files), (resident_after, threads_after, files_after) in zip(before, after, strict=True):
        # What the C library keeps of freed memory goes up and down by some 60 MB. Had each of these twenty left its
        # parameters alone, there would be 160 MB more; with gradients and momentum three times that.
        assert resident_after < resident + 110e6
        assert threads_after <= threads
        assert files_after <= files
    assert len(started) == 2


RAISED = r"raised: rank 1: .*task\.py:\d+: .* raised ValueError: no such luck"
KILLED = "lost_rank: rank 1 is gone: killed by SIGKILL"
ABORTED = "lost_rank: rank 1 is gone: killed by SIGABRT"
OUT_OF_MEMORY = "raised: rank 1: .*(MemoryError|can't allocate memory)"


@pytest.mark.parametrize(
    ("preset", "how", "told"),
    [
        ("sharded", "raise", RAISED),
        ("sharded", "kill", KILLED),
        pytest.param("", "abort", ABORTED, marks=pytest.mark.slow),
        pytest.param("", "out of memory", OUT_OF_MEMORY, marks=pytest.mark.slow),
        pytest.param("", "raise", RAISED, marks=pytest.mark.slow),
        pytest.param("", "kill", KILLED, marks=pytest.mark.slow),
        pytest.param("sharded", "abort", ABORTED, marks=pytest.mark.slow),
        pytest.param("sharded", "out of memory", OUT_OF_MEMORY, marks=pytest.mark.slow),
        pytest.param("", "exit", "raised: rank 1: .*SystemExit: 3", marks=pytest.mark.slow),
        pytest.param("", "leave", "lost_rank: rank 1 is gone: exit code 0", marks=pytest.mark.slow),
    ],
)
@pytest.mark.usefixtures("forked_ranks")
def test_a_failure_is_told_by_its_cause_and_the_next_trial_runs(
    preset: str, how: str, told: str, make: MakeService, fault: Path
) -> None:
    with make() as service:
        bundle = _bundle(preset, service.model, service.cluster) if preset else None
        fault.write_text(how)
        start = time.monotonic()
        failure = _failure(service, Contestant(name="it", bundle=bundle))
        assert re.match(told, f"{failure.kind}: {failure.message}"), str(failure)
        assert time.monotonic() - start < 60
        if how == "kill":
            fault.unlink()
            service.prepare(STOCK)
            assert service.run("stock", 2).step_seconds


@pytest.mark.usefixtures("forked_ranks")
def test_what_does_not_end_ends_at_the_limit_and_each_rank_says_where_it_is(
    make: MakeService, fault: Path, cluster: ClusterSpec
) -> None:
    """One rank hangs in the user's code, one is stopped, one waits for them."""
    three = replace(cluster, nodes=(replace(cluster.nodes[0], devices=3),))
    with make(cluster=three) as service:
        # The first preparation imports half of torch, which on a busy machine takes longer than that.
        service.prepare(STOCK)
        service.run("stock", 1)
        service._timeout_seconds = 1.0
        fault.write_text("hang,stop")
        start = time.monotonic()
        with pytest.raises(TrialFailed) as caught:
            service.run("stock", 3)
        assert time.monotonic() - start < 1.0 + ranks.WHERE_SECONDS + STOP_SECONDS + 30
        assert caught.value.kind == "timeout"
        told = (
            r"not done within 1 s: rank 2 does not answer at all \(stopped.*\); "
            r"rank 0 is in step 1 of 3, in the .*ward pass, at .*; "
            r"rank 1 is in step 1 of 3, in the forward pass, at task\.py:\d+ \(_go_wrong\)"
        )
        assert re.fullmatch(told, caught.value.message), caught.value.message
        with pytest.raises(TrialFailed, match="the ranks that had stock prepared were ended: not done within 1 s"):
            service.run("stock", 1)


@pytest.mark.usefixtures("forked_ranks")
def test_the_limit_is_one_for_each_step(make: MakeService, fault: Path) -> None:
    with make() as service:
        service.prepare(STOCK)
        service.run("stock", 1)
        service._timeout_seconds = 3.0
        fault.write_text("slow")
        (samples, _) = service.run("stock", 4).step_seconds
        assert sum(samples) > service._timeout_seconds
        fault.write_text("slow then hang")
        with pytest.raises(TrialFailed, match=r"no step was done within 3 s: .*rank 1 is in step 3 of 4") as caught:
            service.run("stock", 4)
        assert (caught.value.kind, caught.value.blame) == ("timeout", "strategy")


_KILLED_SERVICE = """
import sys, time
from pathlib import Path
from autosync.specs.cluster_file import load_cluster
from autosync.specs.model_file import model_of
from autosync.trials.service import TrialService

task, folder = sys.argv[1:]
with TrialService(target=task, model=model_of(task), cluster=load_cluster("local-2"), folder=Path(folder)) as service:
    service._start_ranks()
    print(*(process.pid for process in service._ranks._launch._running), flush=True)
    time.sleep(600)
"""


@pytest.mark.slow
def test_a_service_that_is_killed_takes_its_ranks_along_stopped_ones_too(tmp_path: Path) -> None:
    command = [sys.executable, "-c", _KILLED_SERVICE, TASK, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as service:
        assert service.stdout is not None
        try:
            ids = [int(word) for word in service.stdout.readline().split()]
            assert len(ids) == 2
            # A process that is stopped does not see that its connection is closed.
            os.kill(ids[1], signal.SIGSTOP)
        finally:
            service.kill()
    # The deadline is for what is wrong; what is right takes milliseconds.
    deadline = time.monotonic() + 30
    while any(processes.start_time(process) for process in ids) and time.monotonic() < deadline:
        time.sleep(0.01)
    left = [process for process in ids if processes.start_time(process)]
    for process in left:
        os.kill(process, signal.SIGKILL)
    assert not left


@pytest.mark.slow
def test_a_rank_that_ends_between_trials(make: MakeService, started: list[int]) -> None:
    with make() as service:
        service.prepare(STOCK)
        os.kill(started[1], signal.SIGKILL)
        with pytest.raises(TrialFailed, match="rank 1 is gone: killed by SIGKILL"):
            service.run("stock", 1)
        service.prepare(STOCK)
        service.release("stock")
        os.kill(started[2], signal.SIGKILL)
        while service._ranks is not None and service._ranks.are_well:
            time.sleep(0.01)
        # Nobody's trial is hurt by it.
        service.prepare(STOCK)
        assert len(started) == 6


@pytest.mark.usefixtures("forked_ranks")
def test_what_cannot_run_is_refused(make: MakeService, cluster: ClusterSpec, tmp_path: Path) -> None:
    with make() as service:
        other = _bundle("ddp", model_of(f"{TASK}:large"), cluster)
        for bundle in (other, tmp_path / "nowhere.yaml"):
            failure = _failure(service, Contestant(name="other", bundle=bundle))
            assert failure.kind == "refused"


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
@pytest.mark.usefixtures("forked_ranks")
def test_ranks_without_gpus_are_not_started_for_nccl(make: MakeService, cluster: ClusterSpec) -> None:
    nccl = replace(cluster, backend="nccl")
    with make(cluster=nccl) as service:
        failure = _failure(service, Contestant(name="on-nccl", bundle=_bundle("ddp", model_of(TASK), nccl)))
    assert failure.kind == "launch"
    assert "this: the cluster's backend is nccl, which needs a GPU for each rank, and torch" in failure.message


@pytest.mark.usefixtures("forked_ranks")
def test_stock_ddp_takes_a_model_that_leaves_parameters_out_only_when_told(make: MakeService) -> None:
    with make(f"{TASK}:leaves_out") as service:
        service.prepare(Contestant(name="told", ddp=DdpSettings(find_unused_parameters=True)))
        service.run("told", 3)
        assert _failure(service).kind == "raised"


def test_ranks_that_cannot_be_started(make: MakeService, monkeypatch: pytest.MonkeyPatch) -> None:
    with make() as service:
        monkeypatch.setattr(LocalLauncher, "default_python", "/no/such/python")
        failure = _failure(service)
        assert failure.kind == "launch"
        assert "/no/such/python" in failure.message
        monkeypatch.setattr(LocalLauncher, "default_python", "/bin/false")
        failure = _failure(service)
        assert (failure.kind, failure.message) == ("launch", "rank 0 ended at its start: exit code 1")


def test_ranks_that_never_come(make: MakeService, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    silent = tmp_path / "silent"
    silent.write_text("#!/bin/sh\nexec sleep 600\n")
    silent.chmod(0o700)
    monkeypatch.setattr(LocalLauncher, "default_python", str(silent))
    monkeypatch.setattr(ranks, "START_SECONDS", 0.3)
    with make() as service:
        failure = _failure(service)
        assert (failure.kind, failure.message) == ("launch", "not there within 0.3 s: rank 0, rank 1")


def test_a_control_port_that_is_taken(make: MakeService, monkeypatch: pytest.MonkeyPatch) -> None:
    def taken(*_: object) -> None:
        raise OSError(98, "Address already in use")

    with monkeypatch.context() as patch, make() as service:
        patch.setattr(control, "listen_on_loopback", taken)
        failure = _failure(service)
        assert failure.kind == "launch"
        assert "Address already in use" in failure.message


@pytest.mark.slow
def test_an_interrupt_ends_the_ranks(
    make: MakeService, fault: Path, started: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    with make() as service:
        service.prepare(STOCK)

        def interrupt(*_: object) -> None:
            raise KeyboardInterrupt

        monkeypatch.setattr(ranks.Ranks, "_see_exits", interrupt)
        with pytest.raises(KeyboardInterrupt):
            service.run("stock", 1)
        assert not any(Path(f"/proc/{process}").exists() for process in started)


def test_a_cluster_elsewhere_is_refused_before_anything_runs(tmp_path: Path) -> None:
    nodes = tuple(Node(name=f"n{i}", host=f"10.0.0.{i}", bandwidth_out=1e9, bandwidth_in=1e9) for i in (1, 2))
    far = ClusterSpec(name="far", nodes=nodes)
    with pytest.raises(InputError, match=r"n1 is on 10\.0\.0\.1 \(the local launcher starts every rank"):
        TrialService(target=TASK, model=model_of(TASK), cluster=far, folder=tmp_path / "f")
    assert not (tmp_path / "f").exists()


def test_the_error_of_a_rank_comes_before_those_of_ranks_whose_connections_it_closed() -> None:
    """Only the first has a cause of its own, so the strategy is blamed at once, and not tried again."""
    closed = {"kind": "raised", "message": "Connection closed by peer", "blame": "either"}
    own = {"kind": "raised", "message": "KeyError: 'w'", "blame": "strategy"}
    of_ranks = SimpleNamespace(_launch=SimpleNamespace(lost=dict), _names=["rank 0", "rank 1", "rank 2"])
    heard = SimpleNamespace(errors={0: closed, 1: own, 2: closed}, lost={}, answers={})
    failure = ranks.Ranks._failure(of_ranks, heard)  # type: ignore[arg-type]
    assert (failure.kind, failure.message, failure.blame) == ("raised", "rank 1: KeyError: 'w'", "strategy")


def test_an_error_is_told_with_the_failure_that_was_the_first() -> None:
    """The engine wraps the errors of waits that another rank's failure ended. Errors of torch only hide such a one."""
    closed = OperationError("Connection closed by peer")
    named = OperationError("Connection closed by peer; the first failure: rank 1: KeyError: 'w'")
    named.__cause__ = closed
    hidden = RuntimeError("in the backward pass, at model.py:3")
    hidden.__cause__ = closed
    assert rank_requests._in_words(named) == str(named)
    assert rank_requests._in_words(hidden) == str(closed)
