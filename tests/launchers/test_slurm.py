"""Ranks as steps of a real two-node Slurm: one allocation for all, given back whatever happens."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from autosync.errors import InputError
from autosync.launchers import LAUNCHERS
from autosync.launchers.line import BOOT
from autosync.launchers.request import Script
from autosync.launchers.slurm import SlurmLauncher
from autosync.specs.cluster import ClusterSpec, Node
from autosync.specs.cluster_file import save_cluster

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


def test_the_batch_script_is_printed_in_full(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.setenv("AUTOSYNC_SLURM", "--partition=gpu --time=2:00:00")
    monkeypatch.setattr(sys, "orig_argv", ["python", "/bin/autosync", "launch", "--dry-run", "a b.yaml"])
    script = Script(
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


def test_options_that_no_shell_reads_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AUTOSYNC_SLURM", "--comment='x")
    with pytest.raises(InputError, match="No closing quotation"):
        SlurmLauncher().plan(PLANNED, ("x",), Path())


def test_the_slurm_launcher_is_known_by_name() -> None:
    assert LAUNCHERS.get("slurm") is SlurmLauncher


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory, helper: Callable[[str], Any]) -> Iterator[Any]:
    """Two nodes."""
    slurm_hosts = helper("slurm_hosts")
    if why := slurm_hosts.missing():
        pytest.skip(why)
    nodes = (_node(name="n0", host="n0"), _node(name="n1", host="n1"))
    with slurm_hosts.slurm_hosts(tmp_path_factory.mktemp("slurm"), nodes) as found:
        yield found


@pytest.fixture
def start(slurm: Any, start_autosync: Callable[..., subprocess.Popen[str]]) -> Callable[..., subprocess.Popen[str]]:
    """Starts a command line of autosync's where Slurm is used from."""

    def command(*arguments: str | Path, within: tuple[str, ...] = ()) -> subprocess.Popen[str]:
        return start_autosync(*arguments, through=(*slurm.through, *within), **slurm.environment)

    return command


@pytest.fixture
def bundle(slurm: Any, make_bundle: Callable[..., Path]) -> Path:
    return make_bundle(slurm.cluster)


def _await_free(slurm: Any) -> None:
    """Until no job is there and nothing of one runs."""
    deadline = time.monotonic() + 30
    while slurm.ask("squeue", "--noheader").strip() or any(slurm.running(node) for node in ("n0", "n1", "head")):
        left = (slurm.ask("squeue"), [slurm.running(node) for node in ("n0", "n1", "head")])
        assert time.monotonic() < deadline, left
        time.sleep(0.2)


def _waits(launched: subprocess.Popen[str]) -> None:
    assert launched.stdout is not None
    for _ in range(2):
        assert "waits as process" in launched.stdout.readline()


@pytest.mark.slow
def test_a_script_trains_as_it_does_here(
    slurm: Any,
    bundle: Path,
    make_bundle: Callable[..., Path],
    start: Callable[..., subprocess.Popen[str]],
    losses: Callable[[str], list[str]],
) -> None:
    launched = start("launch", bundle, "--", TRAIN)
    out, err = launched.communicate(timeout=100)
    assert launched.returncode == 0, err + slurm.told()
    nodes = tuple(replace(node, host="localhost") for node in slurm.cluster.nodes)
    local = start(
        "launch", make_bundle(replace(slurm.cluster, launcher="local", nodes=nodes), name="l.yaml"), "--", TRAIN
    )
    local_out, _ = local.communicate(timeout=100)
    assert len(losses(out)) == 4
    assert losses(out) == losses(local_out)
    _await_free(slurm)
    options = ("--nodes=2", "--ntasks-per-node=1", "--exclusive", "--quiet")
    inside = start("launch", bundle, "--", TRAIN, "--rank", "1", "--exit", "7", "--wait", within=("salloc", *options))
    _, err = inside.communicate(timeout=100)
    assert "error: rank 1 on n1: exit code 7" in err
    _await_free(slurm)


@pytest.mark.slow
def test_tuning_has_one_allocation(slurm: Any, tmp_path: Path, start: Callable[..., subprocess.Popen[str]]) -> None:
    save_cluster(tmp_path / "c.yaml", slurm.cluster)
    before = slurm.ask("scontrol", "--oneliner", "show", "jobs").count("JobId=")
    tuned = start("tune", f"{TRAIN}:task", "--cluster", "c.yaml", "--trials", "2", "--effort", "quick", "--json")
    out, err = tuned.communicate(timeout=110)
    assert tuned.returncode == 0, err
    assert json.loads(out)["schema"].startswith("autosync.")
    assert slurm.ask("scontrol", "--oneliner", "show", "jobs").count("JobId=") == before + 1
    _await_free(slurm)


@pytest.mark.slow
@pytest.mark.parametrize("how", ["SIGTERM", "SIGKILL", "scancel"])
def test_whatever_ends_it_nothing_is_left(
    slurm: Any, bundle: Path, start: Callable[..., subprocess.Popen[str]], how: str
) -> None:
    launched = start("launch", bundle, "--", TRAIN, "--wait")
    _waits(launched)
    began = time.monotonic()
    if how == "scancel":
        slurm.ask("scancel", slurm.ask("squeue", "--noheader", "-o", "%i").strip())
    else:
        launched.send_signal(signal.Signals[how])
    _, err = launched.communicate(timeout=60)
    assert time.monotonic() - began < 30
    assert launched.returncode == {"SIGTERM": 143, "SIGKILL": -9, "scancel": 255}[how]
    if how == "scancel":
        assert re.search(r"error: n\d( \(\S+\))?: the allocation \d+ has ended: CANCELLED", err), err
    _await_free(slurm)


@pytest.mark.slow
def test_an_allocation_that_slurm_refuses_is_an_error(
    slurm: Any, bundle: Path, tmp_path: Path, start: Callable[..., subprocess.Popen[str]]
) -> None:
    nodes = tuple(replace(node, host=f"x{node.host}") for node in slurm.cluster.nodes)
    save_cluster(tmp_path / "c.yaml", replace(slurm.cluster, nodes=nodes))
    launched = start("launch", bundle, "--cluster", "c.yaml", "--", TRAIN)
    _, err = launched.communicate(timeout=60)
    assert launched.returncode == 1
    assert "error: Slurm gives no allocation: " in err
    assert "Invalid node name specified" in err
    save_cluster(tmp_path / "p.yaml", replace(slurm.cluster, python="/no/such/python"))
    launched = start("launch", bundle, "--cluster", "p.yaml", "--", TRAIN)
    _, err = launched.communicate(timeout=60)
    assert launched.returncode == 1
    assert re.search(r"error: n\d( \(\S+\))?: no Python at /no/such/python", err), err
    _await_free(slurm)


@pytest.mark.slow
def test_it_keeps_the_contract_of_launchers(slurm: Any, check_contract: Callable[..., None]) -> None:
    check_contract(slurm.cluster, through=slurm.through, **slurm.environment)
    _await_free(slurm)
