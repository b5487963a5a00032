"""Ranks as steps of a real two-node Slurm: one allocation for all, which is always given back."""

from __future__ import annotations

import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from autosync.errors import InputError
from autosync.launchers.agent_link import BOOT
from autosync.launchers.request import TrainingScript
from autosync.launchers.slurm import OF_TASKS, SlurmLauncher, _in_job
from autosync.specs.cluster import ClusterSpec, Node
from autosync.specs.cluster_file import save_cluster
from autosync.specs.launchers import LAUNCHERS

TRAIN = Path(__file__).parent / "train.py"

_node = partial(Node, bandwidth_out=1e8, bandwidth_in=1e8)
PLANNED = ClusterSpec(
    name="my lab",
    nodes=(
        _node(name="a", host="gpu01", devices=2),
        _node(name="s", host="cpu01", role="server", devices=0),
    ),
    launcher="slurm",
    python="/opt/torch/bin/python",
)


@pytest.fixture(autouse=True)
def _outside_of_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in OF_TASKS:
        monkeypatch.delenv(name, raising=False)


def test_the_batch_script_is_printed_in_full(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.setenv("AUTOSYNC_SLURM", "--partition=gpu --time=2:00:00")
    monkeypatch.setattr(sys, "orig_argv", ["python", "/bin/autosync", "launch", "--dry-run", "a b.yaml"])
    script = TrainingScript(
        command=("python", "train it.py"), server_command=("serve",), files={"AUTOSYNC_BUNDLE": Path("best.yaml")}
    )
    request = SlurmLauncher().plan_script(PLANNED, script, Path("logs"))
    step = "srun --overlap --nodes=1 --ntasks=1 --nodelist={} --unbuffered --cpu-bind=none --mpi=none"
    step += f" /opt/torch/bin/python -I -S -c '{BOOT}'"
    common = "OMP_NUM_THREADS=1 PYTHONUNBUFFERED=1"
    worker = "WORLD_SIZE=2 LOCAL_WORLD_SIZE=2 GROUP_RANK=0 GROUP_WORLD_SIZE=1 MASTER_ADDR=gpu01 MASTER_PORT=29500"
    quiet = "TORCH_CPP_LOG_LEVEL=ERROR"
    server = "WORLD_SIZE=2 LOCAL_WORLD_SIZE=1 MASTER_ADDR=gpu01 MASTER_PORT=29500"
    head = [
        "#!/bin/bash",
        "#SBATCH --job-name=autosync-my-lab",
        "#SBATCH --nodes=2",
        "#SBATCH --nodelist=gpu01,cpu01",
        "#SBATCH --ntasks-per-node=1",
        "#SBATCH --exclusive",
        "#SBATCH --partition=gpu",
        "#SBATCH --time=2:00:00",
    ]
    last = f"exec {sys.executable} /bin/autosync launch 'a b.yaml'"
    assert str(request).splitlines() == [
        *head,
        f"# gpu01: reached by {step.format('gpu01')}",
        "# gpu01: AUTOSYNC_BUNDLE names a copy of best.yaml",
        *(
            f"# gpu01: RANK={rank} LOCAL_RANK={rank} {worker} AUTOSYNC_NODE=a {common} python 'train it.py'"
            f" > logs/rank-{rank}.log 2>&1"
            for rank in (0, 1)
        ),
        f"# cpu01: reached by {step.format('cpu01')}",
        "# cpu01: AUTOSYNC_BUNDLE names a copy of best.yaml",
        f"# cpu01: RANK=2 LOCAL_RANK=0 {server} AUTOSYNC_NODE=s {common} {quiet} serve > logs/rank-2.log 2>&1",
        last,
    ]
    assert request.batch_script == "\n".join([*head, last, ""])


def test_the_training_keeps_its_own_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("AUTOSYNC_SLURM", raising=False)
    arguments = ["train.py", "--json", "--dry-run", "two\nlines"]
    own = ["python", "/bin/autosync", "launch", "b.yaml", "--json", "--dry-run", "--", *arguments]
    monkeypatch.setattr(sys, "orig_argv", own)
    request = SlurmLauncher().plan_script(PLANNED, TrainingScript(command=("python", *arguments)), Path("logs"))
    for text in (request.batch_script, str(request)):
        assert text is not None
        head, _, command = text.partition("\nexec ")
        assert shlex.split(command) == [sys.executable, "/bin/autosync", "launch", "b.yaml", "--", *arguments]
        assert all(line.startswith("#") for line in head.splitlines())


def test_options_are_quoted_for_sbatch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.setenv("AUTOSYNC_SLURM", r"""--comment='a # b' -p gpu "--wckey=a\\b" """)
    script = SlurmLauncher().plan(PLANNED, ("x",), Path()).batch_script
    assert script is not None
    # Within quotes, sbatch takes a backslash for an escape.
    expected = ["#SBATCH '--comment=a # b'", "#SBATCH -p", "#SBATCH gpu", r"#SBATCH '--wckey=a\\b'"]
    assert script.splitlines()[6:10] == expected


@pytest.mark.parametrize(
    ("devices", "given", "asked"),
    [
        ((4, 4), "--partition=gpu", ["--gres=gpu:4", "--partition=gpu"]),
        # Slurm gives as many to every node, and the user knows how they are to be had.
        ((4, 2), "", []),
        ((4, 4), "--gpus-per-node=a100:4", ["--gpus-per-node=a100:4"]),
        ((4, 4), "--gres=none", ["--gres=none"]),
    ],
)
def test_gpus_are_asked_for_where_nccl_needs_them(
    devices: tuple[int, int], given: str, asked: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.setenv("AUTOSYNC_SLURM", given)
    nodes = tuple(_node(name=f"n{place}", host=f"n{place}", devices=count) for place, count in enumerate(devices))
    cluster = ClusterSpec(name="lab", nodes=nodes, launcher="slurm", backend="nccl")
    script = SlurmLauncher().plan(cluster, ("x",), Path()).batch_script
    assert script is not None
    found = [line.removeprefix("#SBATCH ") for line in script.splitlines() if line.startswith("#SBATCH ")]
    assert found[5:] == asked


@pytest.mark.parametrize(
    ("given", "words"), [("--comment='x", "No closing quotation"), ("--comment='x\ny'", "an option with a line end")]
)
def test_options_that_no_script_can_hold_are_refused(given: str, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AUTOSYNC_SLURM", given)
    with pytest.raises(InputError, match=words):
        SlurmLauncher().plan(PLANNED, ("x",), Path())


def test_options_of_a_jobs_tasks_are_none_of_the_agents(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.setenv("SLURM_GPUS_PER_TASK", "1")
    monkeypatch.setenv("SLURM_CPUS_PER_TASK", "8")
    process = SlurmLauncher().plan(PLANNED, ("x",), Path()).processes[0]
    without = ("env", "-u", "SLURM_CPUS_PER_TASK", "-u", "SLURM_GPUS_PER_TASK")
    assert process.reach[:7] == (*without, "srun", "--overlap")
    # Scripts read them for the number of their loaders.
    assert process.environment["SLURM_CPUS_PER_TASK"] == "8"
    assert _in_job(process, "17", {"a": "10.0.0.1"}).reach[:7] == (*without, "srun", "--jobid=17")


def test_the_slurm_launcher_is_known_by_name() -> None:
    assert LAUNCHERS.get("slurm") is SlurmLauncher


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory, helper: Callable[[str], Any]) -> Iterator[Any]:
    """Two nodes."""
    slurm_hosts = helper("slurm_hosts")
    if why := slurm_hosts.missing():
        pytest.skip(why)
    nodes = (_node(name="n0", host="n0"), _node(name="n1", host="n1"))
    with slurm_hosts.slurm_hosts(tmp_path_factory.mktemp("slurm"), nodes) as found:
        yield found


@pytest.mark.slow
def test_a_script_trains_as_it_does_here(hosts: Any, check_losses: Callable[[ClusterSpec], None]) -> None:
    check_losses(hosts.cluster)


@pytest.mark.slow
def test_an_allocation_that_is_there_is_used(
    hosts: Any, bundle: Path, start: Callable[..., subprocess.Popen[str]], await_free: Callable[..., None]
) -> None:
    before = _count_jobs(hosts)
    allocation = ("salloc", "--nodes=2", "--ntasks-per-node=1", "--exclusive", "--quiet")
    inside = start("launch", bundle, "--", TRAIN, "--rank", "1", "--exit", "7", "--wait", within=allocation)
    _, err = inside.communicate(timeout=100)
    assert "error: rank 1 on n1: exit code 7" in err
    assert _count_jobs(hosts) == before + 1
    await_free()


TELL = "echo $SLURM_PROCID of $SLURM_NTASKS, $SLURM_LOCALID of $SLURM_NTASKS_PER_NODE, $SLURM_CPUS_PER_TASK"


@pytest.mark.slow
def test_ranks_within_a_job_have_their_place_in_the_training(
    hosts: Any, bundle: Path, start: Callable[..., subprocess.Popen[str]], await_free: Callable[..., None]
) -> None:
    allocation = ("salloc", "--nodes=2", "--ntasks-per-node=1", "--exclusive", "--quiet")
    # Without these, srun would refuse what no node has.
    job = ("env", "SLURM_GPUS=8", "SLURM_TRES_PER_TASK=cpu:7", "SLURM_CPUS_PER_TASK=7", "SRUN_CPUS_PER_TASK=7")
    inside = start("launch", bundle, "--", "sh", "-c", TELL, within=(*allocation, *job))
    out, err = inside.communicate(timeout=100)
    assert inside.returncode == 0, err
    assert sorted(out.splitlines()) == ["n0 rank 0 | 0 of 2, 0 of 1, 7", "n1 rank 1 | 1 of 2, 0 of 1, 7"]
    await_free()


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_tuning_has_one_allocation(hosts: Any, check_tuning: Callable[..., None]) -> None:
    before = _count_jobs(hosts)
    check_tuning(hosts.cluster)
    assert _count_jobs(hosts) == before + 1


def _count_jobs(hosts: Any) -> int:
    """All that Slurm knows of, also those that have ended."""
    return int(hosts.ask("scontrol", "--oneliner", "show", "jobs").count("JobId="))


def _cancel(hosts: Any) -> None:
    hosts.ask("scancel", *hosts.ask("squeue", "--noheader", "-o", "%i").split())


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_nothing_is_left_when_the_launch_is_ended_or_killed(check_ended: Callable[[int], None], number: int) -> None:
    check_ended(number)


@pytest.mark.slow
@pytest.mark.parametrize("why", ["CANCELLED", "TIMEOUT"])
def test_an_allocation_that_ends_is_named_and_nothing_is_left(
    hosts: Any,
    start_waiting: Callable[..., tuple[subprocess.Popen[str], list[int]]],
    await_free: Callable[..., None],
    why: str,
) -> None:
    # A minute is the least that Slurm can give.
    launched, _ = start_waiting(within=("env", "AUTOSYNC_SLURM=--time=1"))
    if why == "CANCELLED":
        _cancel(hosts)
    _, err = launched.communicate(timeout=30 if why == "CANCELLED" else 150)
    assert launched.returncode == 255, err
    assert re.search(rf"error: n\d( \(\S+\))?: the allocation \d+ has ended: {why}", err), err
    await_free()


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_of_tuning_that_is_interrupted_or_killed_the_trials_are_kept(
    check_tuning_ended: Callable[[int], None], number: int
) -> None:
    check_tuning_ended(number)


@pytest.mark.slow
def test_of_tuning_whose_allocation_ends_the_trials_are_kept(
    hosts: Any,
    start_tuning: Callable[[], subprocess.Popen[str]],
    check_kept: Callable[[], None],
    await_free: Callable[..., None],
) -> None:
    tuned = start_tuning()
    _cancel(hosts)
    _, err = tuned.communicate(timeout=30)
    assert tuned.returncode == 1, err
    ended = r"n\d( \(\S+\))?: the allocation \d+ has ended: CANCELLED"
    assert re.search(rf"error: .*{ended}.* \(the study is kept in \S*kept\)", err), err
    check_kept()
    await_free()


@pytest.mark.slow
def test_ctrl_c_at_any_moment_leaves_nothing(check_ctrl_c: Callable[..., None]) -> None:
    check_ctrl_c(0.5, 1.5, 2.5, 4.0)


@pytest.mark.slow
def test_waiting_in_the_queue_is_said_and_can_be_interrupted(
    bundle: Path,
    start: Callable[..., subprocess.Popen[str]],
    start_waiting: Callable[[], tuple[subprocess.Popen[str], list[int]]],
    await_free: Callable[..., None],
) -> None:
    first, _ = start_waiting()
    second = start("launch", bundle, "--", TRAIN)
    assert second.stderr is not None
    assert "Pending job allocation" in second.stderr.readline()
    second.send_signal(signal.SIGINT)
    out, err = second.communicate(timeout=30)
    assert (second.returncode, out, err.splitlines()[-1]) == (130, "", "interrupted")
    assert first.poll() is None
    first.send_signal(signal.SIGTERM)
    first.communicate(timeout=30)
    await_free()


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_node_that_vanishes_is_named_and_its_ranks_end(check_vanished: Callable[..., None]) -> None:
    check_vanished("n0", "head")


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_node_that_vanishes_ends_tuning_and_what_was_tried_is_kept(
    check_vanished_in_tuning: Callable[..., None],
) -> None:
    check_vanished_in_tuning("n0", "head")


@pytest.mark.slow
def test_a_full_disk_of_one_node_is_named(check_full_disk: Callable[[], None]) -> None:
    check_full_disk()


@pytest.mark.slow
def test_an_allocation_that_slurm_refuses_is_an_error(
    hosts: Any,
    bundle: Path,
    tmp_path: Path,
    run: Callable[..., tuple[int, str, str]],
    await_free: Callable[..., None],
) -> None:
    nodes = tuple(replace(node, host=f"x{node.host}") for node in hosts.cluster.nodes)
    save_cluster(tmp_path / "c.yaml", replace(hosts.cluster, nodes=nodes))
    code, _, err = run("launch", bundle, "--cluster", "c.yaml", "--", TRAIN)
    assert code == 1
    assert "error: Slurm gives no allocation: " in err
    assert "Invalid node name specified" in err
    save_cluster(tmp_path / "p.yaml", replace(hosts.cluster, python="/no/such/python"))
    code, _, err = run("launch", bundle, "--cluster", "p.yaml", "--", TRAIN)
    assert code == 1
    assert re.search(r"error: n\d( \(\S+\))?: no Python at /no/such/python", err), err
    await_free()


@pytest.mark.slow
def test_it_keeps_the_contract_of_launchers(
    hosts: Any, check_contract: Callable[..., None], await_free: Callable[..., None]
) -> None:
    check_contract(hosts.cluster, through=hosts.through, **hosts.environment)
    await_free()
