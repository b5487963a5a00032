"""Ranks in pods, on a small API server that implements the part of Kubernetes' HTTP and WebSockets that is used.

What Kubernetes itself does with the manifests cannot be tested here; `test_manifest_models` checks them against the
models of the client libraries.
"""

from __future__ import annotations

import importlib.util
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from autosync.errors import OperationError
from autosync.launchers.agent_link import MAX_SAID_BYTES
from autosync.launchers.kubernetes import KubernetesLauncher
from autosync.specs.cluster import ClusterSpec, Node
from autosync.specs.cluster_file import save_cluster
from autosync.specs.launch_options import KubernetesOptions
from autosync.specs.launchers import LAUNCHERS

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
def hosts(server: Any, cluster: ClusterSpec) -> Any:
    """The server, which has the machines here."""
    server.cluster = cluster
    return server


def test_without_its_client_it_is_said_what_to_install(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, cluster: ClusterSpec
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: None)
    launcher = KubernetesLauncher()
    with pytest.raises(OperationError, match=r"pip install 'autosync-torch\[kubernetes\]'"):
        launcher.start(launcher.plan(cluster, ("x",), tmp_path))


def test_the_kubernetes_launcher_is_known_by_name() -> None:
    assert LAUNCHERS.get("kubernetes") is KubernetesLauncher


@needs_client
@pytest.mark.services
def test_of_what_an_agent_says_in_a_pod_the_end_is_kept() -> None:
    from autosync.launchers import kubernetes_holder

    said = [b"x" * 3000] * 40 + [b"the end"]
    frames = [SimpleNamespace(data=bytes([kubernetes_holder.STDERR]) + data) for data in said]
    frames.append(SimpleNamespace(data=bytes([kubernetes_holder.STDOUT]) + b"output"))
    socket = SimpleNamespace(
        recv_data_frame=lambda **_: (kubernetes_holder.websocket.ABNF.OPCODE_BINARY, frames.pop(0))
    )
    stream = kubernetes_holder.PodStream(SimpleNamespace(sock=socket), lambda: "")
    assert stream.read() == b"output"
    assert stream.last_words() == "x" * (MAX_SAID_BYTES - 7) + "the end"


@pytest.mark.slow
@needs_client
@pytest.mark.parametrize("kind", ["job", "trainjob"])
def test_a_script_trains_as_it_does_here(
    server: Any,
    cluster: ClusterSpec,
    check_losses: Callable[[ClusterSpec], None],
    *,
    kind: Any,
) -> None:
    options = cluster.kubernetes
    assert options is not None
    if kind == "trainjob":
        container = {"env": options.container["env"]}
        cluster = replace(cluster, kubernetes=replace(options, kind=kind, container=container))
    check_losses(cluster)
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
    cluster: ClusterSpec,
    make_bundle: Callable[..., Path],
    run: Callable[..., tuple[int, str, str]],
    await_free: Callable[..., None],
) -> None:
    first, second = cluster.nodes
    served = replace(cluster, nodes=(replace(first, devices=2), replace(second, role="server", devices=0)))
    code, out, err = run("launch", make_bundle(served, "ps_load_balanced"), "--", TRAIN, "--steps", "2")
    assert code == 0, err
    assert "n1 rank 2 | training has ended after 2 steps" in out
    await_free()


@pytest.mark.slow
@needs_client
def test_exit_codes_come_back_with_node_and_rank(
    bundle: Path, run: Callable[..., tuple[int, str, str]], await_free: Callable[..., None]
) -> None:
    code, _, err = run("launch", bundle, "--", TRAIN, "--wait", "--rank", "1", "--exit", "7")
    assert (code, "error: rank 1 on n1: exit code 7" in err) == (7, True), err
    await_free()


@pytest.mark.slow
@needs_client
def test_trials_run_and_need_no_way_from_the_pods(hosts: Any, check_tuning: Callable[..., None]) -> None:
    check_tuning(hosts.cluster)
    # One set of pods for all of it.
    assert hosts.asked.count("POST /apis/batch/v1/namespaces/ml/jobs") == 1


@pytest.mark.slow
@needs_client
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_nothing_is_left_when_the_launch_is_ended_or_killed(check_ended: Callable[[int], None], number: int) -> None:
    check_ended(number)


@pytest.mark.slow
@needs_client
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_of_tuning_that_is_interrupted_or_killed_the_trials_are_kept(
    check_tuning_ended: Callable[[int], None], number: int
) -> None:
    check_tuning_ended(number)


@pytest.mark.slow
@needs_client
def test_an_interruption_while_pods_are_waited_for_leaves_nothing(
    server: Any, bundle: Path, start: Callable[..., subprocess.Popen[str]], await_free: Callable[..., None]
) -> None:
    server.waiting["here"] = "ContainerCreating"
    launched = start("launch", bundle, "--", TRAIN)
    deadline = time.monotonic() + 60
    while not any(one.startswith("GET") and one.endswith("/pods") for one in server.asked):
        assert time.monotonic() < deadline, server.asked
        time.sleep(0.05)
    launched.send_signal(signal.SIGINT)
    out, err = launched.communicate(timeout=40)
    assert (launched.returncode, out, err) == (130, "", "interrupted\n")
    await_free()


@pytest.mark.slow
@needs_client
@pytest.mark.parametrize("how", ["evicted", "silent"])
def test_a_pod_that_vanishes_is_named_and_the_others_end(
    server: Any,
    start_waiting: Callable[[], tuple[subprocess.Popen[str], list[int]]],
    await_free: Callable[..., None],
    await_gone: Callable[[Iterable[int]], None],
    how: str,
) -> None:
    launched, processes = start_waiting()
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
    await_free()
    await_gone(processes)


@pytest.mark.slow
@needs_client
def test_a_pod_that_is_evicted_ends_tuning_and_what_was_tried_is_kept(
    server: Any,
    hosts: Any,
    start_tuning: Callable[[], subprocess.Popen[str]],
    check_kept: Callable[[], None],
    await_free: Callable[..., None],
) -> None:
    tuned = start_tuning()
    server.lose(1)
    _, err = tuned.communicate(timeout=60)
    assert tuned.returncode == 1, err
    assert re.search(r"error: n1 \(127\.0\.0\.1\): .* \(the study is kept in \S*kept\)", err), err
    check_kept()
    await_free()


@pytest.mark.slow
@needs_client
def test_what_cannot_be_had_is_named(
    hosts: Any,
    bundle: Path,
    tmp_path: Path,
    run: Callable[..., tuple[int, str, str]],
    await_free: Callable[..., None],
) -> None:
    cluster = hosts.cluster

    def attempt(cluster: ClusterSpec, **options: Any) -> str:
        assert cluster.kubernetes is not None
        save_cluster(tmp_path / "c.yaml", replace(cluster, kubernetes=replace(cluster.kubernetes, **options)))
        code, out, err = run("launch", bundle, "--cluster", "c.yaml", "--", TRAIN)
        assert (code, out) == (1, ""), err
        await_free()
        return err

    hosts.waiting["absent"] = "ImagePullBackOff"
    image = attempt(cluster, image="absent")
    assert re.search(r"error: n0: its pod \S+ cannot start: ImagePullBackOff: as the test says", image), image
    python = attempt(replace(cluster, python="/no/python"))
    assert re.search(r"error: n0: its pod \S+ has ended: StartError \(128\): exec: '/no/python'", python), python
    forbidden = attempt(cluster, namespace="forbidden")
    assert "error: Job autosync-test-workers cannot be made in the namespace forbidden: jobs is forbidden" in forbidden
    assert "error: no way to Kubernetes is known here: " in attempt(cluster, context="nowhere")
    hosts.objects["jobs", "ml", "autosync-test-workers"] = {}
    save_cluster(tmp_path / "c.yaml", cluster)
    code, _, err = run("launch", bundle, "--cluster", "c.yaml", "--", TRAIN)
    assert code == 1
    assert "error: the namespace ml has a Job autosync-test-workers already" in err
    # What is another's stays.
    assert list(hosts.objects) == [("jobs", "ml", "autosync-test-workers")]


@pytest.mark.slow
@needs_client
def test_it_keeps_the_contract_of_launchers(
    hosts: Any, check_contract: Callable[..., None], await_free: Callable[..., None]
) -> None:
    check_contract(hosts.cluster, **hosts.environment)
    await_free()
