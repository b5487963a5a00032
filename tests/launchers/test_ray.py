"""Ranks in a placement group of a real Ray cluster: training, trials, failures of all kinds, and a clean end."""

from __future__ import annotations

import importlib.util
import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from autosync import documents
from autosync.errors import InputError, OperationError
from autosync.launchers.agent_link import BOOT
from autosync.launchers.ray import RayLauncher
from autosync.launchers.request import TrainingScript
from autosync.specs.cluster import ClusterSpec, Node
from autosync.specs.cluster_file import load_cluster, parse_cluster, save_cluster
from autosync.specs.launch_options import RayOptions
from autosync.specs.launchers import LAUNCHERS

TRAIN = Path(__file__).parent / "train.py"
# Ray's own services take most of a minute to start, and the first test waits for them.
pytestmark = pytest.mark.timeout(240)

_node = partial(Node, bandwidth_out=1e8, bandwidth_in=1e8)
PLANNED = ClusterSpec(
    name="lab",
    nodes=(
        _node(name="a", host="10.0.0.1", devices=2),
        _node(name="s", host="cpu-1", role="server", devices=0),
    ),
    launcher="ray",
    python="/opt/torch/bin/python",
    ray=RayOptions(address="10.0.0.9:6379", resources={"CPU": 8, "GPU": 2}),
)


def test_the_request_is_printed_to_the_letter() -> None:
    script = TrainingScript(
        command=("python", "train it.py"), server_command=("serve",), files={"AUTOSYNC_BUNDLE": Path("best.yaml")}
    )
    request = RayLauncher().plan_script(PLANNED, script, Path("logs"))
    actor = f"an-actor --bundle={{}} -- /opt/torch/bin/python -I -S -c '{BOOT}'"
    common = "OMP_NUM_THREADS=1 PYTHONUNBUFFERED=1"
    quiet = "TORCH_CPP_LOG_LEVEL=ERROR"
    worker = "WORLD_SIZE=2 LOCAL_WORLD_SIZE=2 GROUP_RANK=0 GROUP_WORLD_SIZE=1 MASTER_ADDR=10.0.0.1 MASTER_PORT=29500"
    server = "WORLD_SIZE=2 LOCAL_WORLD_SIZE=1 MASTER_ADDR=10.0.0.1 MASTER_PORT=29500"
    assert str(request).splitlines() == [
        "placement group on the Ray cluster at 10.0.0.9:6379: STRICT_SPREAD",
        'bundle 0 (a): {"CPU": 8, "GPU": 2, "node:10.0.0.1": 0.001}',
        'bundle 1 (s): {"CPU": 1, "node:cpu-1": 0.001}',
        f"10.0.0.1: reached by {actor.format(0)}",
        "10.0.0.1: AUTOSYNC_BUNDLE names a copy of best.yaml",
        *(
            f"10.0.0.1: RANK={rank} LOCAL_RANK={rank} {worker} AUTOSYNC_NODE=a {common} python 'train it.py'"
            f" > logs/rank-{rank}.log 2>&1"
            for rank in (0, 1)
        ),
        f"cpu-1: reached by {actor.format(1)}",
        "cpu-1: AUTOSYNC_BUNDLE names a copy of best.yaml",
        f"cpu-1: RANK=2 LOCAL_RANK=0 {server} AUTOSYNC_NODE=s {common} {quiet} serve > logs/rank-2.log 2>&1",
    ]


@pytest.mark.parametrize(
    ("backend", "bundle"), [("gloo", '{"CPU": 2, "node:10.0.0.1": 0.001}'), ("nccl", '{"CPU": 2, "GPU": 2, "node:')]
)
def test_a_bundle_has_what_the_devices_need_unless_the_file_says_more(backend: Any, bundle: str) -> None:
    cluster = replace(PLANNED, ray=None, backend=backend)
    assert f"bundle 0 (a): {bundle}" in str(RayLauncher().plan(cluster, ("x",), Path()))


def test_nodes_of_any_host_are_not_pinned() -> None:
    cluster = replace(PLANNED, ray=RayOptions(pinned=False, strategy="PACK"))
    assert 'bundle 1 (s): {"CPU": 1}\n' in str(RayLauncher().plan(cluster, ("x",), Path()))
    with pytest.raises(InputError, match="strategy PACK for 2 nodes, each of which has a host"):
        RayLauncher().plan(replace(PLANNED, ray=RayOptions(strategy="PACK")), ("x",), Path())


def test_what_ray_is_told_stands_in_the_cluster_file(tmp_path: Path) -> None:
    save_cluster(tmp_path / "c.yaml", PLANNED)
    assert load_cluster(tmp_path / "c.yaml") == PLANNED
    text = (tmp_path / "c.yaml").read_text().replace("GPU: 2", "GPU: two").replace("address:", "adress:")
    (tmp_path / "wrong.yaml").write_text(text)
    with pytest.raises(InputError, match=r"ray\.resources\.GPU") as error:
        load_cluster(tmp_path / "wrong.yaml")
    assert "ray.adress" in str(error.value)


def test_the_page_has_an_example_that_can_be_planned() -> None:
    page = (Path(__file__).parents[2] / "docs" / "launchers" / "ray.md").read_text("utf-8")
    (text,) = re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)
    cluster = parse_cluster(documents.parse_document(text, file="cluster.yaml"))
    assert 'bundle 0 (gpu-0): {"CPU": 8, "GPU": 4, ' in str(RayLauncher().plan(cluster, ("x",), Path()))


def test_without_ray_it_is_said_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: None)
    launcher = RayLauncher()
    with pytest.raises(OperationError, match=r"ray is not installed here: .* pip install 'autosync-torch\[ray\]'"):
        launcher.start(launcher.plan(PLANNED, ("x",), tmp_path))


def _alive(address: str, **resources: float) -> dict[str, Any]:
    names = {"NodeManagerAddress": address, "NodeManagerHostname": "host", "NodeName": address}
    return {**names, "Alive": True, "Resources": resources}


@pytest.mark.services
def test_of_several_nodes_with_a_name_one_is_taken_that_has_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    ray = pytest.importorskip("ray")
    from autosync.launchers import ray_holder

    nodes = [_alive("10.0.0.1", CPU=8), _alive("10.0.0.2", CPU=2, GPU=2)]
    monkeypatch.setattr(ray, "nodes", lambda: nodes)
    assert ray_holder._pin("a", "host", {"CPU": 2, "GPU": 1}) == {"node:10.0.0.2": ray_holder.PIN}
    # Each resource is on one of them, but all on none.
    with pytest.raises(ray_holder.AllocationError, match=r"a \(host\) has 0 GPU, and 1 would be reserved there"):
        ray_holder._pin("a", "host", {"CPU": 4, "GPU": 1})
    with pytest.raises(ray_holder.AllocationError, match="a: no node of the Ray cluster is called other"):
        ray_holder._pin("a", "other", {})


def test_the_ray_launcher_is_known_by_name() -> None:
    assert LAUNCHERS.get("ray") is RayLauncher


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory, helper: Callable[[str], Any]) -> Iterator[Any]:
    """Two nodes of a Ray cluster."""
    ray_hosts = helper("ray_hosts")
    if why := ray_hosts.missing():
        pytest.skip(why)
    with ray_hosts.ray_hosts((_node(name="n0", host="n0"), _node(name="n1", host="n1"))) as found:
        yield found


@pytest.mark.slow
def test_a_script_trains_as_it_does_here(hosts: Any, check_losses: Callable[[ClusterSpec], None]) -> None:
    check_losses(hosts.cluster)


@pytest.mark.slow
def test_nodes_that_only_serve_run_the_server(
    hosts: Any,
    make_bundle: Callable[..., Path],
    run: Callable[..., tuple[int, str, str]],
    await_free: Callable[..., None],
) -> None:
    first, second = hosts.cluster.nodes
    # Anywhere: which of Ray's nodes serves is Ray's affair.
    served = replace(
        hosts.cluster,
        nodes=(replace(first, devices=2), replace(second, role="server", devices=0)),
        ray=replace(hosts.cluster.ray, pinned=False),
    )
    code, out, err = run("launch", make_bundle(served, "ps_load_balanced"), "--", TRAIN, "--steps", "2")
    assert code == 0, err
    assert "n1 rank 2 | training has ended after 2 steps" in out
    await_free()


@pytest.mark.slow
def test_exit_codes_come_back_with_node_and_rank(
    bundle: Path, run: Callable[..., tuple[int, str, str]], await_free: Callable[..., None]
) -> None:
    code, _, err = run("launch", bundle, "--", TRAIN, "--wait", "--rank", "1", "--exit", "7")
    assert (code, "error: rank 1 on n1: exit code 7" in err) == (7, True), err
    await_free()


@pytest.mark.slow
def test_trials_run(hosts: Any, check_tuning: Callable[..., None]) -> None:
    check_tuning(hosts.cluster)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_nothing_is_left_when_the_launch_is_ended_or_killed(check_ended: Callable[[int], None], number: int) -> None:
    check_ended(number)


@pytest.mark.slow
def test_a_full_disk_of_one_node_is_named(check_full_disk: Callable[[], None]) -> None:
    check_full_disk()


@pytest.mark.slow
def test_what_cannot_be_had_is_named(
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

    first, second = hosts.cluster.nodes
    strange = replace(hosts.cluster, nodes=(first, replace(second, host="10.99.0.1")))
    assert "error: n1: no node of the Ray cluster is called 10.99.0.1 (there are 10." in attempt(strange)
    greedy = replace(hosts.cluster, ray=replace(hosts.cluster.ray, resources={"CPU": 64}))
    assert re.search(r"error: n0 \(10\.\S+\) has 2 CPU, and 64 would be reserved there", attempt(greedy))
    no_python = attempt(replace(hosts.cluster, python="/no/such/python"))
    # Both nodes are named where both have failed before the launch ends.
    one_or_both = r"error: n\d \(\S+\)(, n\d \(\S+\))?: no Python at /no/such/python: say `python: PATH`"
    assert re.search(one_or_both, no_python), no_python
    nobody = attempt(replace(hosts.cluster, ray=replace(hosts.cluster.ray, address="127.0.0.1:1")))
    assert "error: no Ray cluster can be had at 127.0.0.1:1: " in nobody
    await_free()


@pytest.mark.slow
def test_it_keeps_the_contract_of_launchers(
    hosts: Any, check_contract: Callable[..., None], await_free: Callable[..., None]
) -> None:
    check_contract(hosts.cluster, through=hosts.through, **hosts.environment)
    await_free()


@pytest.mark.slow
def test_an_actor_that_is_killed_is_named_and_leaves_nothing(
    hosts: Any,
    start_waiting: Callable[[], tuple[subprocess.Popen[str], list[int]]],
    await_free: Callable[..., None],
) -> None:
    launched, _ = start_waiting()
    (actor,) = [one for one in hosts.bed.processes()["n1"] if "ray::RayActor" in str(one)]
    began = time.monotonic()
    os.kill(actor.pid, signal.SIGKILL)
    _, err = launched.communicate(timeout=80)
    assert time.monotonic() - began < 30, err
    assert launched.returncode == 255
    assert re.search(rf"error: n1 \({hosts.bed.address('n1')}\): .*actor", err), err
    await_free()


@pytest.mark.slow
def test_waiting_for_room_is_said_and_can_be_interrupted(
    hosts: Any,
    make_bundle: Callable[..., Path],
    start: Callable[..., subprocess.Popen[str]],
    await_free: Callable[..., None],
) -> None:
    whole = make_bundle(replace(hosts.cluster, ray=replace(hosts.cluster.ray, resources={"CPU": 2})))
    first = start("launch", whole, "--", TRAIN, "--wait")
    assert first.stdout is not None
    assert "waits as process" in first.stdout.readline()
    second = start("launch", whole, "--", TRAIN)
    assert second.stderr is not None
    said = second.stderr.readline()
    assert "waiting for Ray to have room for 2 bundles (STRICT_SPREAD): [{'CPU': 2" in said
    second.send_signal(signal.SIGINT)
    out, err = second.communicate(timeout=40)
    assert (second.returncode, out, err) == (130, "", "interrupted\n")
    assert first.poll() is None
    first.send_signal(signal.SIGTERM)
    first.communicate(timeout=40)
    assert first.returncode == 143
    await_free()


@pytest.mark.slow
def test_a_node_that_vanishes_is_named_and_its_ranks_end(check_vanished: Callable[..., None]) -> None:
    check_vanished("n0", "head")


@pytest.mark.slow
def test_a_node_that_vanishes_ends_tuning_and_what_was_tried_is_kept(
    check_vanished_in_tuning: Callable[..., None],
) -> None:
    check_vanished_in_tuning("n0", "head")


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_of_tuning_that_is_interrupted_or_killed_the_trials_are_kept(
    check_tuning_ended: Callable[[int], None], number: int
) -> None:
    check_tuning_ended(number)
