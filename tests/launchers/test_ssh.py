"""Ranks on hosts reached by a real ssh: training, trials, failures of all kinds, and a clean end."""

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
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

import autosync
from autosync.errors import InputError, OperationError
from autosync.launchers.agent_link import BOOT
from autosync.launchers.request import TrainingScript
from autosync.launchers.ssh import SshLauncher, _explain, _is_put_off
from autosync.specs.cluster import ClusterSpec, Node
from autosync.specs.cluster_file import load_cluster, save_cluster
from autosync.specs.launchers import LAUNCHERS

TRAIN = Path(__file__).parent / "train.py"

_node = partial(Node, bandwidth_out=1e8, bandwidth_in=1e8)
PLANNED = ClusterSpec(
    name="planned",
    nodes=(
        _node(name="n0", host="10.0.0.1", devices=2),
        _node(name="s0", host="store", role="server", devices=0),
    ),
    launcher="ssh",
    python="/opt/torch/bin/python",
)
REACH = "-oBatchMode=yes -oConnectTimeout=10 -oControlPath=none -oClearAllForwardings=yes -oLogLevel=ERROR -a -x -T --"


def test_the_request_is_printed_to_the_letter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AUTOSYNC_SSH", "ssh -F 'my config'")
    script = TrainingScript(
        command=("python", "train it.py"),
        server_command=("serve",),
        environment={"WISH": "1"},
        files={"AUTOSYNC_BUNDLE": Path("best.yaml")},
    )
    request = SshLauncher().plan_script(PLANNED, script, Path("logs"))
    remote = f"'exec /opt/torch/bin/python -I -S -c '\"'\"'{BOOT}'\"'\"''"
    serves = "store: RANK=2 LOCAL_RANK=0 WORLD_SIZE=2 LOCAL_WORLD_SIZE=1 MASTER_ADDR=10.0.0.1 MASTER_PORT=29500"
    quiet = "OMP_NUM_THREADS=1 PYTHONUNBUFFERED=1 TORCH_CPP_LOG_LEVEL=ERROR WISH=1"
    last = "OMP_NUM_THREADS=1 PYTHONUNBUFFERED=1 WISH=1"
    worker = "WORLD_SIZE=2 LOCAL_WORLD_SIZE=2 GROUP_RANK=0 GROUP_WORLD_SIZE=1 MASTER_ADDR=10.0.0.1 MASTER_PORT=29500"
    assert str(request).splitlines() == [
        f"10.0.0.1: reached by ssh -F 'my config' {REACH} 10.0.0.1 {remote}",
        "10.0.0.1: AUTOSYNC_BUNDLE names a copy of best.yaml",
        *(
            f"10.0.0.1: RANK={rank} LOCAL_RANK={rank} {worker} AUTOSYNC_NODE=n0 {last} python 'train it.py'"
            f" > logs/rank-{rank}.log 2>&1"
            for rank in (0, 1)
        ),
        f"store: reached by ssh -F 'my config' {REACH} store {remote}",
        "store: AUTOSYNC_BUNDLE names a copy of best.yaml",
        f"{serves} AUTOSYNC_NODE=s0 {quiet} serve > logs/rank-2.log 2>&1",
    ]


@pytest.mark.parametrize(("given", "words"), [("", "AUTOSYNC_SSH is empty"), ("ssh 'x", "No closing quotation")])
def test_an_ssh_command_that_is_none_is_refused(monkeypatch: pytest.MonkeyPatch, given: str, words: str) -> None:
    monkeypatch.setenv("AUTOSYNC_SSH", given)
    with pytest.raises(InputError, match=words):
        SshLauncher().plan(PLANNED, ("x",), Path())


def test_an_ssh_that_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("AUTOSYNC_SSH", "no-such-ssh -v")
    launcher = SshLauncher()
    with pytest.raises(OperationError, match="no-such-ssh is not installed here"):
        launcher.start(launcher.plan(PLANNED, ("x",), tmp_path))


CLOSED = "kex_exchange_identification: Connection closed by remote host\nConnection closed by UNKNOWN port 65535"


@pytest.mark.parametrize(
    ("said", "meaning", "is_put_off"),
    [
        (CLOSED, "it takes no new connections for now", True),
        ("kex_exchange_identification: read: Connection reset by peer", "it takes no new connections for now", True),
        ("ssh_exchange_identification: Connection closed by remote host", "it takes no new connections for now", True),
        # What comes before is the reason.
        (f"channel 0: open failed: connect failed: Connection refused\n{CLOSED}", "no server answers there", False),
        (f"channel 0: open failed: connect failed: No route to host\n{CLOSED}", "the host cannot be reached", False),
        (
            f"channel 0: open failed: administratively prohibited: open failed\nstdio forwarding failed\n{CLOSED}",
            "the jump host does not lead there",
            False,
        ),
        ("Connection to 10.0.0.1 closed by remote host.", "the connection was lost", False),
        ("Permission denied (publickey).", "it does not accept a key", False),
    ],
)
def test_what_ssh_says_is_understood(said: str, meaning: str, is_put_off: bool) -> None:
    process = SshLauncher().plan(PLANNED, ("x",), Path()).processes[0]
    assert _explain(process, said).startswith(meaning)
    assert _is_put_off(said) == is_put_off
    assert ("raise MaxStartups" in _explain(process, said)) == is_put_off


def test_the_ssh_launcher_is_known_by_name() -> None:
    assert LAUNCHERS.get("ssh") is SshLauncher


def test_the_python_of_the_nodes_stands_in_the_cluster_file(tmp_path: Path) -> None:
    save_cluster(tmp_path / "c.yaml", PLANNED)
    assert load_cluster(tmp_path / "c.yaml") == PLANNED


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory, helper: Callable[[str], Any]) -> Iterator[Any]:
    """Two workers' hosts with three ranks, and one that serves."""
    ssh_hosts = helper("ssh_hosts")
    if why := ssh_hosts.missing():
        pytest.skip(why)
    nodes = (
        _node(name="n0", host="n0", devices=2),
        _node(name="n1", host="n1"),
        _node(name="s0", host="s0", role="server", devices=0),
    )
    with ssh_hosts.ssh_hosts(tmp_path_factory.mktemp("ssh"), nodes) as found:
        yield found


@pytest.mark.slow
def test_a_script_trains_as_it_does_here(
    hosts: Any,
    make_bundle: Callable[..., Path],
    run: Callable[..., tuple[int, str, str]],
    check_losses: Callable[[ClusterSpec], None],
    await_free: Callable[..., None],
) -> None:
    check_losses(hosts.cluster)
    served = make_bundle(hosts.cluster, "ps_load_balanced", "served.yaml")
    code, out, err = run("launch", served, "--", TRAIN, "--steps", "2")
    assert code == 0, err
    assert "s0 rank 3 | training has ended after 2 steps" in out
    await_free()


def test_exit_codes_come_back_with_node_and_rank(bundle: Path, run: Callable[..., tuple[int, str, str]]) -> None:
    code, _, err = run("launch", bundle, "--", TRAIN, "--wait", "--rank", "2", "--exit", "7")
    assert (code, "error: rank 2 on n1: exit code 7" in err) == (7, True), err


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_nothing_is_left_when_the_launch_is_ended_or_killed(check_ended: Callable[[int], None], number: int) -> None:
    check_ended(number)


@pytest.mark.slow
def test_ctrl_c_at_any_moment_leaves_nothing(check_ctrl_c: Callable[..., None]) -> None:
    check_ctrl_c(0.2, 1.0, 2.0, 4.0)


@pytest.mark.slow
def test_a_host_that_vanishes_is_named_and_its_ranks_end(check_vanished: Callable[..., None]) -> None:
    check_vanished("n0", "head", said="no sign of life for 15 s")


@pytest.mark.slow
def test_a_full_disk_of_one_node_is_named(check_full_disk: Callable[[], None]) -> None:
    check_full_disk()


@pytest.mark.slow
def test_what_cannot_be_reached_is_named(
    hosts: Any,
    bundle: Path,
    tmp_path: Path,
    run: Callable[..., tuple[int, str, str]],
    await_free: Callable[..., None],
) -> None:
    def attempt(cluster: ClusterSpec) -> str:
        save_cluster(tmp_path / "c.yaml", cluster)
        code, out, err = run("launch", bundle, "--cluster", "c.yaml", "--", TRAIN)
        assert (code, out) == (1, ""), err
        return err

    def with_host(host: str) -> ClusterSpec:
        nodes = tuple(replace(node, host=host) if node.name == "n1" else node for node in hosts.cluster.nodes)
        return replace(hosts.cluster, nodes=nodes)

    address = hosts.bed.address("n1")
    no_python = attempt(replace(hosts.cluster, python="/no/such/python"))
    both = ", ".join(f"{node} ({hosts.bed.address(node)})" for node in ("n0", "n1"))
    assert f"error: {both}: no Python at /no/such/python: say `python: PATH`" in no_python
    assert "error: n1 (no-such-host.invalid): no such host" in attempt(with_host("no-such-host.invalid"))
    nobody = attempt(with_host(hosts.bed.address("head")))
    assert f"error: n1 ({hosts.bed.address('head')}): no server answers there: is sshd running?" in nobody
    known = hosts.known_hosts.read_text()
    hosts.known_hosts.write_text("".join(line for line in known.splitlines(keepends=True) if address not in line))
    assert f"error: n1 ({address}): its host key is not the known one" in attempt(hosts.cluster)
    other = (hosts.folder / "user.pub").read_text()
    hosts.known_hosts.write_text(hosts.known_hosts.read_text() + f"[{address}]:2222 {other}")
    assert f"error: n1 ({address}): its host key is not the known one" in attempt(hosts.cluster)
    hosts.known_hosts.write_text(known)
    authorized = (hosts.folder / "user.pub").read_text()
    (hosts.folder / "user.pub").write_text((hosts.folder / "n1.pub").read_text())
    refused = attempt(hosts.cluster)
    (hosts.folder / "user.pub").write_text(authorized)
    assert re.search(r"error: n\d \(\S+\): it does not accept a key of this user's", refused), refused
    await_free()


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_trials_run_and_their_token_is_on_no_command_line(hosts: Any, check_tuning: Callable[..., None]) -> None:
    tokens: set[str] = set()
    lines: set[str] = set()

    def watch(tuned: subprocess.Popen[str]) -> None:
        while tuned.poll() is None:
            for process in Path("/proc").glob("[0-9]*"):
                try:
                    lines.add((process / "cmdline").read_text())
                    environment = (process / "environ").read_text()
                except (OSError, UnicodeDecodeError):
                    continue
                tokens.update(re.findall(r"AUTOSYNC_CONTROL_TOKEN=(\w+)", environment))
            time.sleep(0.5)

    check_tuning(hosts.cluster, watch=watch)
    assert tokens
    assert not [line for line in lines if any(token in line for token in tokens)]


@pytest.mark.slow
def test_the_odd_node_is_named(
    hosts: Any,
    tmp_path: Path,
    run: Callable[..., tuple[int, str, str]],
    await_free: Callable[..., None],
    mount_disk: Callable[[int], Path],
) -> None:
    save_cluster(tmp_path / "c.yaml", hosts.cluster)
    other = tmp_path / "site" / "torch-2.0.0.dist-info"
    other.mkdir(parents=True)
    (other / "METADATA").write_text("Metadata-Version: 2.1\nName: torch\nVersion: 2.0.0\n")
    small = mount_disk(64)
    unreachable = ("ip", "route", "add", "unreachable", f"{hosts.bed.address('s0')}/32")
    subprocess.run((*hosts.bed.enter("n1"), *unreachable), check=True)
    try:
        hosts.restart("n1", PYTHONPATH=str(other.parent), TMPDIR=str(small))
        code, out, err = run("cluster", "check", "c.yaml")
        assert code == 1
        assert [line.split()[:5] for line in out.splitlines()[1:]] == [
            ["n0", *_versions("eth0")],
            ["n1", *_versions("eth0", torch="2.0.0")],
            ["s0", *_versions("eth0")],
        ]
        assert "error: n1 has torch 2.0.0, the others have" in err
        assert re.search(rf"error: n1 has no room on its disk: [\d.]+ kB free at {small}", err), err
        assert re.search(r"error: n1 cannot reach s0: .*(unreachable|No route)", err), err
        code, _, err = run("tune", f"{TRAIN}:task", "--cluster", "c.yaml", "--trials", "2", "--effort", "quick")
        assert code == 1
        assert "n1 has torch 2.0.0" in err
    finally:
        subprocess.run((*hosts.bed.enter("n1"), "ip", "route", "del", *unreachable[3:]), check=True)
        hosts.restart("n1")
    await_free()


def _versions(interface: str, *, torch: str = "") -> list[str]:
    python = ".".join(map(str, sys.version_info[:3]))
    return [python, torch or version("torch"), autosync.__version__, interface]


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_a_node_that_vanishes_ends_tuning_and_what_was_tried_is_kept(
    check_vanished_in_tuning: Callable[..., None],
) -> None:
    # 15 s without a sign, then three attempts to reach the node, 10 s each, with pauses between them.
    check_vanished_in_tuning("n0", "s0", "head", said="no sign of life for 15 s")


@pytest.mark.slow
def test_it_keeps_the_contract_of_launchers(
    hosts: Any, check_contract: Callable[..., None], await_free: Callable[..., None]
) -> None:
    check_contract(hosts.cluster, through=hosts.through, **hosts.environment)
    await_free()


@pytest.mark.slow
def test_an_interruption_while_a_host_is_being_reached(
    hosts: Any, bundle: Path, start: Callable[..., subprocess.Popen[str]], await_free: Callable[..., None]
) -> None:
    hosts.bed.set_link("n1", up=False)
    try:
        launched = start("launch", bundle, "--", TRAIN, "--wait")
        deadline = time.monotonic() + 30
        while not any(hosts.bed.address("n1") in one for one in hosts.left("head")):
            assert time.monotonic() < deadline, hosts.left("head")
            time.sleep(0.05)
        launched.send_signal(signal.SIGINT)
        out, err = launched.communicate(timeout=20)
        assert (launched.returncode, out, err) == (130, "", "interrupted\n")
        await_free("n0", "head")
    finally:
        hosts.bed.set_link("n1", up=True)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_of_tuning_that_is_interrupted_or_killed_the_trials_are_kept(
    check_tuning_ended: Callable[[int], None], number: int
) -> None:
    check_tuning_ended(number)


@pytest.mark.slow
def test_the_cluster_can_be_probed(hosts: Any, tmp_path: Path, run: Callable[..., tuple[int, str, str]]) -> None:
    save_cluster(tmp_path / "c.yaml", hosts.cluster)
    code, out, err = run("cluster", "probe", "c.yaml", "--json")
    assert code == 0, err
    assert {node["name"] for node in json.loads(out)["cluster"]["calibration"]["nodes"]} == {"n0", "n1", "s0"}


@pytest.mark.slow
def test_many_hosts_behind_a_jump_host_that_drops_connections_are_reached(
    hosts: Any, bundle: Path, run: Callable[..., tuple[int, str, str]], await_free: Callable[..., None]
) -> None:
    n0, *others = (hosts.bed.address(node.name) for node in hosts.cluster.nodes)
    plain = hosts.config.read_text()
    hosts.config.write_text(f"Match host {','.join(others)}\n  ProxyJump {n0}\n{plain}")
    try:
        # No more than one connection at a time may be about to log in.
        hosts.restart("n0", options=("MaxStartups=1:100:1",))
        for _ in range(3):
            code, _, err = run("launch", bundle, "--", "true")
            assert code == 0, err
        assert "MaxStartups" in (hosts.folder / "n0.sshd").read_text()
    finally:
        hosts.config.write_text(plain)
        hosts.restart("n0")
    await_free()


SLOW_TASK = """
import os
import time

import torch
from torch import nn

from autosync import Task

# The launcher numbers nodes as the cluster does; each has one rank or two.
SECONDS = {"0": 0.02, "1": 0.02, "2": 0.06}[os.environ["RANK"]] if "RANK" in os.environ else 0.0


class Slow(nn.Linear):
    def forward(self, values):
        time.sleep(SECONDS)
        return super().forward(values)


def task():
    return Task(
        name="slow",
        model=lambda: Slow(4, 4),
        batch=lambda generator: torch.randn(2, 4, generator=generator),
        loss=lambda model, values: model(values).sum(),
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1),
    )
"""


@pytest.mark.slow
def test_a_probe_tells_how_fast_nodes_compute_a_model(
    hosts: Any, tmp_path: Path, run: Callable[..., tuple[int, str, str]]
) -> None:
    save_cluster(tmp_path / "c.yaml", hosts.cluster)
    (tmp_path / "slow.py").write_text(SLOW_TASK, encoding="utf-8")
    code, out, err = run("cluster", "probe", "c.yaml", "--model", "slow.py", "--json")
    assert code == 0, err
    nodes = {node["name"]: node for node in json.loads(out)["cluster"]["nodes"]}
    assert "compute" not in nodes["n0"]
    assert 0.3 < nodes["n1"]["compute"] < 0.45
    assert "compute" not in nodes["s0"]
