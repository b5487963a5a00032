"""Ranks in pods, through a small API server that speaks what is used of Kubernetes' HTTP and WebSockets.

What Kubernetes itself does with the manifests cannot be had here; test_manifests holds those against the models of the
client libraries.
"""

from __future__ import annotations

import importlib.util
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

from autosync.errors import OperationError
from autosync.launchers import LAUNCHERS
from autosync.launchers.kubernetes import KubernetesLauncher
from autosync.specs.cluster import ClusterSpec, Node
from autosync.specs.cluster_file import save_cluster
from autosync.specs.launch_options import KubernetesOptions

TRAIN = Path(__file__).parent / "train.py"

_node = partial(Node, bandwidth_out=1e8, bandwidth_in=1e8)
needs_client = pytest.mark.skipif(
    importlib.util.find_spec("kubernetes") is None,
    reason="kubernetes is not installed (pip install 'autosync-torch[kubernetes]'): make test-launchers installs it",
)
_INDEX = "batch.kubernetes.io/job-completion-index"
pytestmark = pytest.mark.timeout(240)


@pytest.fixture
def server(tmp_path: Path, helper: Callable[[str], Any]) -> Iterator[Any]:
    with helper("kubernetes_server").kubernetes_server(tmp_path) as found:
        yield found


@pytest.fixture
def cluster(tmp_path: Path) -> ClusterSpec:
    """Two pods whose images are this machine's."""
    # A pod's files go with it; here they go with the test.
    settings = {"GLOO_SOCKET_IFNAME": "lo", "TMPDIR": str(tmp_path)}
    here = {"workingDir": str(tmp_path), "env": [{"name": name, "value": value} for name, value in settings.items()]}
    return ClusterSpec(
        name="test",
        nodes=(_node(name="n0", host="n0"), _node(name="n1", host="n1")),
        launcher="kubernetes",
        python=sys.executable,
        kubernetes=KubernetesOptions(image="here", namespace="ml", container=here),
    )


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    return {"KUBECONFIG": str(tmp_path / "kubeconfig")}


@pytest.fixture
def start(
    environment: dict[str, str], start_autosync: Callable[..., subprocess.Popen[str]]
) -> Callable[..., subprocess.Popen[str]]:
    """Starts a command line of autosync's that finds the server."""
    return partial(start_autosync, **environment)


def _await_free(server: Any, seconds: float = 30.0) -> None:
    """Until nothing is there and nothing runs."""
    deadline = time.monotonic() + seconds
    while server.objects or server.pods:
        assert time.monotonic() < deadline, (server.objects, server.pods)
        time.sleep(0.1)


def _waits(launched: subprocess.Popen[str]) -> list[int]:
    """The processes that the ranks say they are."""
    assert launched.stdout is not None
    lines = [launched.stdout.readline() for _ in range(2)]
    assert all("waits as process" in line for line in lines), lines
    return [int(line.split()[-1]) for line in lines]


def _await_gone(processes: list[int]) -> None:
    deadline = time.monotonic() + 20
    while left := [one for one in processes if Path(f"/proc/{one}").exists()]:
        assert time.monotonic() < deadline, left
        time.sleep(0.1)


def test_without_its_client_it_is_said_what_to_install(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, cluster: ClusterSpec
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: None)
    launcher = KubernetesLauncher()
    with pytest.raises(OperationError, match=r"pip install 'autosync-torch\[kubernetes\]'"):
        launcher.start(launcher.plan(cluster, ("x",), tmp_path))


def test_the_kubernetes_launcher_is_known_by_name() -> None:
    assert LAUNCHERS.get("kubernetes") is KubernetesLauncher


@pytest.mark.slow
@needs_client
@pytest.mark.parametrize("kind", ["job", "trainjob"])
def test_a_script_trains_as_it_does_here(
    server: Any,
    cluster: ClusterSpec,
    make_bundle: Callable[..., Path],
    start: Callable[..., subprocess.Popen[str]],
    losses: Callable[[str], list[str]],
    *,
    kind: Any,
) -> None:
    options = cluster.kubernetes
    assert options is not None
    if kind == "trainjob":
        container = {"env": options.container["env"]}
        cluster = replace(cluster, kubernetes=replace(options, kind=kind, container=container))
    launched = start("launch", make_bundle(cluster), "--", TRAIN)
    out, err = launched.communicate(timeout=100)
    assert launched.returncode == 0, err
    nodes = tuple(replace(node, host="localhost") for node in cluster.nodes)
    here = make_bundle(replace(cluster, launcher="local", nodes=nodes), name="local.yaml")
    local_out, _ = start("launch", here, "--", TRAIN).communicate(timeout=100)
    assert len(losses(out)) == 4
    assert losses(out) == losses(local_out)
    assert not server.objects
    assert not server.pods
    made = [one for one in server.asked if one.startswith("POST")]
    expected = {
        "job": ["POST /apis/batch/v1/namespaces/ml/jobs", "POST /api/v1/namespaces/ml/services"],
        "trainjob": ["POST /apis/trainer.kubeflow.org/v1alpha1/namespaces/ml/trainjobs"],
    }
    assert made == expected[kind]


@pytest.mark.slow
@needs_client
def test_nodes_that_only_serve_are_pods_too(
    server: Any, cluster: ClusterSpec, make_bundle: Callable[..., Path], start: Callable[..., subprocess.Popen[str]]
) -> None:
    first, second = cluster.nodes
    served = replace(cluster, nodes=(replace(first, devices=2), replace(second, role="server", devices=0)))
    launched = start("launch", make_bundle(served, "ps_load_balanced"), "--", TRAIN, "--steps", "2")
    out, err = launched.communicate(timeout=100)
    assert launched.returncode == 0, err
    assert "n1 rank 2 | training has ended after 2 steps" in out
    _await_free(server)


@pytest.mark.slow
@needs_client
def test_exit_codes_come_back_with_node_and_rank(
    server: Any, cluster: ClusterSpec, make_bundle: Callable[..., Path], start: Callable[..., subprocess.Popen[str]]
) -> None:
    launched = start("launch", make_bundle(cluster), "--", TRAIN, "--wait", "--rank", "1", "--exit", "7")
    _, err = launched.communicate(timeout=100)
    assert (launched.returncode, "error: rank 1 on n1: exit code 7" in err) == (7, True), err
    _await_free(server)


@pytest.mark.slow
@needs_client
def test_trials_run_and_need_no_way_from_the_pods(
    server: Any, cluster: ClusterSpec, tmp_path: Path, start: Callable[..., subprocess.Popen[str]]
) -> None:
    save_cluster(tmp_path / "c.yaml", cluster)
    tuned = start("tune", f"{TRAIN}:task", "--cluster", "c.yaml", "--trials", "3", "--effort", "quick", "--json")
    out, err = tuned.communicate(timeout=115)
    assert tuned.returncode == 0, err
    assert json.loads(out)["schema"].startswith("autosync.")
    # One set of pods for all of it.
    assert server.asked.count("POST /apis/batch/v1/namespaces/ml/jobs") == 1
    _await_free(server)


@pytest.mark.slow
@needs_client
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_nothing_is_left_when_the_launch_is_ended_or_killed(
    server: Any,
    cluster: ClusterSpec,
    make_bundle: Callable[..., Path],
    start: Callable[..., subprocess.Popen[str]],
    number: int,
) -> None:
    launched = start("launch", make_bundle(cluster), "--", TRAIN, "--wait")
    processes = _waits(launched)
    launched.send_signal(number)
    launched.communicate(timeout=60)
    assert launched.returncode == (130 if number == signal.SIGINT else -9)
    _await_free(server)
    _await_gone(processes)


@pytest.mark.slow
@needs_client
def test_an_interruption_while_pods_are_waited_for_leaves_nothing(
    server: Any, cluster: ClusterSpec, make_bundle: Callable[..., Path], start: Callable[..., subprocess.Popen[str]]
) -> None:
    server.waiting["here"] = "ContainerCreating"
    launched = start("launch", make_bundle(cluster), "--", TRAIN)
    deadline = time.monotonic() + 60
    while not any(one.startswith("GET") and one.endswith("/pods") for one in server.asked):
        assert time.monotonic() < deadline, server.asked
        time.sleep(0.05)
    launched.send_signal(signal.SIGINT)
    out, err = launched.communicate(timeout=40)
    assert (launched.returncode, out, err) == (130, "", "interrupted\n")
    _await_free(server)


@pytest.mark.slow
@needs_client
@pytest.mark.parametrize("how", ["evicted", "silent"])
def test_a_pod_that_vanishes_is_named_and_the_others_end(
    server: Any,
    cluster: ClusterSpec,
    make_bundle: Callable[..., Path],
    start: Callable[..., subprocess.Popen[str]],
    how: str,
) -> None:
    launched = start("launch", make_bundle(cluster), "--", TRAIN, "--wait")
    processes = _waits(launched)
    began = time.monotonic()
    if how == "evicted":
        server.lose(1)
    else:
        next(pod for pod in server.pods.values() if pod.labels[_INDEX] == "1").is_cut_off.set()
    _, err = launched.communicate(timeout=60)
    assert time.monotonic() - began < 30, err
    assert launched.returncode == 255
    said = {"evicted": r"its pod autosync-test-workers-1-\w+ is gone", "silent": "no sign of life for 15 s"}[how]
    assert re.search(rf"error: n1 \(127\.0\.0\.1\): {said}", err), err
    _await_free(server)
    _await_gone(processes)


@pytest.mark.slow
@needs_client
def test_what_cannot_be_had_is_named(
    server: Any,
    cluster: ClusterSpec,
    make_bundle: Callable[..., Path],
    tmp_path: Path,
    start: Callable[..., subprocess.Popen[str]],
) -> None:
    bundle = make_bundle(cluster)

    def attempt(cluster: ClusterSpec, **options: Any) -> str:
        assert cluster.kubernetes is not None
        save_cluster(tmp_path / "c.yaml", replace(cluster, kubernetes=replace(cluster.kubernetes, **options)))
        launched = start("launch", bundle, "--cluster", "c.yaml", "--", TRAIN)
        out, err = launched.communicate(timeout=60)
        assert (launched.returncode, out) == (1, ""), err
        _await_free(server)
        return err

    server.waiting["absent"] = "ImagePullBackOff"
    image = attempt(cluster, image="absent")
    assert re.search(r"error: n0: its pod \S+ cannot start: ImagePullBackOff: as the test says", image), image
    python = attempt(replace(cluster, python="/no/python"))
    assert re.search(r"error: n0: its pod \S+ has ended: StartError \(128\): exec: '/no/python'", python), python
    forbidden = attempt(cluster, namespace="forbidden")
    assert "error: Job autosync-test-workers cannot be made in the namespace forbidden: jobs is forbidden" in forbidden
    assert "error: no way to Kubernetes is known here: " in attempt(cluster, context="nowhere")
    server.objects["jobs", "ml", "autosync-test-workers"] = {}
    save_cluster(tmp_path / "c.yaml", cluster)
    launched = start("launch", bundle, "--cluster", "c.yaml", "--", TRAIN)
    _, err = launched.communicate(timeout=60)
    assert launched.returncode == 1
    assert "error: the namespace ml has a Job autosync-test-workers already" in err
    # What is another's stays.
    assert list(server.objects) == [("jobs", "ml", "autosync-test-workers")]


@pytest.mark.slow
@needs_client
def test_it_keeps_the_contract_of_launchers(
    server: Any, cluster: ClusterSpec, environment: dict[str, str], check_contract: Callable[..., None]
) -> None:
    check_contract(cluster, **environment)
    _await_free(server)
