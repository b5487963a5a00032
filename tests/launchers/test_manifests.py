"""The manifests of clusters, written out in full."""

from __future__ import annotations

import re
import subprocess
import sys
import textwrap
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from autosync import documents
from autosync.errors import InputError
from autosync.launchers import manifests
from autosync.launchers.agent_link import BOOT
from autosync.launchers.kubernetes import KubernetesLauncher, manifests_text
from autosync.launchers.request import TrainingScript
from autosync.specs.cluster import ClusterSpec
from autosync.specs.cluster_file import load_cluster, parse_cluster, save_cluster
from tests.helpers.kubernetes_clusters import ALIKE, CLUSTER, OPTIONS, check_manifest

IDLE = """\
      - name: node
        image: registry.example/train:1
        command:
        - python3
        - -I
        - -S
        - -c
        - |
          import os, signal, sys, time
          signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
          idle, limit = 0, 86400
          while idle < limit:
              time.sleep(5)
              others = [name for name in os.listdir("/proc") if name.isdigit() and int(name) not in (1, os.getpid())]
              idle, limit = (0, 300) if others else (idle + 5, limit)
"""
JOB = """\
---
apiVersion: batch/v1
kind: Job
metadata:
  name: autosync-my-lab-{role}s
  namespace: ml
  labels:
    app.kubernetes.io/name: autosync
    app.kubernetes.io/instance: autosync-my-lab
spec:
  completionMode: Indexed
  completions: {number}
  parallelism: {number}
  backoffLimit: 0
  ttlSecondsAfterFinished: 300
  template:
    metadata:
      labels:
        app.kubernetes.io/name: autosync
        app.kubernetes.io/instance: autosync-my-lab
        app.kubernetes.io/component: {role}
    spec:
      subdomain: autosync-my-lab
      restartPolicy: Never
      terminationGracePeriodSeconds: 10
      affinity:
        podAntiAffinity:
          requiredDuringSchedulingIgnoredDuringExecution:
          - labelSelector:
              matchLabels:
                app.kubernetes.io/instance: autosync-my-lab
            topologyKey: kubernetes.io/hostname
      volumes:
      - name: data
        persistentVolumeClaim:
          claimName: data
      containers:
{idle}\
        workingDir: /work
        resources:
          limits:
            cpu: '4'
            memory: 16Gi
{devices}\
        volumeMounts:
        - name: data
          mountPath: /data
"""
DEVICES = """\
            nvidia.com/gpu: '2'
"""
SERVICE = """\
---
apiVersion: v1
kind: Service
metadata:
  name: autosync-my-lab
  namespace: ml
  labels:
    app.kubernetes.io/name: autosync
    app.kubernetes.io/instance: autosync-my-lab
spec:
  clusterIP: None
  publishNotReadyAddresses: true
  selector:
    app.kubernetes.io/instance: autosync-my-lab
"""
TRAIN_JOB = """\
---
apiVersion: trainer.kubeflow.org/v1alpha1
kind: TrainJob
metadata:
  name: autosync-my-lab
  namespace: ml
  labels:
    app.kubernetes.io/name: autosync
    app.kubernetes.io/instance: autosync-my-lab
spec:
  runtimeRef:
    name: torch-distributed
  trainer:
    image: registry.example/train:1
    command:
    - python3
    - -I
    - -S
    - -c
    - |
      import os, signal, sys, time
      signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
      idle, limit = 0, 86400
      while idle < limit:
          time.sleep(5)
          others = [name for name in os.listdir("/proc") if name.isdigit() and int(name) not in (1, os.getpid())]
          idle, limit = (0, 300) if others else (idle + 5, limit)
    numNodes: 2
    resourcesPerNode:
      limits:
        cpu: '4'
        memory: 16Gi
        nvidia.com/gpu: '2'
  runtimePatches:
  - manager: autosync/launcher
    trainingRuntimeSpec:
      template:
        spec:
          replicatedJobs:
          - name: node
            template:
              spec:
                template:
                  metadata:
                    labels:
                      app.kubernetes.io/name: autosync
                      app.kubernetes.io/instance: autosync-my-lab
                      app.kubernetes.io/component: worker
                  spec:
                    terminationGracePeriodSeconds: 10
                    affinity:
                      podAntiAffinity:
                        requiredDuringSchedulingIgnoredDuringExecution:
                        - labelSelector:
                            matchLabels:
                              app.kubernetes.io/instance: autosync-my-lab
                          topologyKey: kubernetes.io/hostname
                      nodeAffinity:
                        requiredDuringSchedulingIgnoredDuringExecution:
                          nodeSelectorTerms:
                          - matchExpressions:
                            - key: kubernetes.io/hostname
                              operator: In
                              values:
                              - a
                              - b
                    volumes:
                    - name: data
                      persistentVolumeClaim:
                        claimName: data
                    containers:
                    - name: node
                      volumeMounts:
                      - name: data
                        mountPath: /data
"""


def _with(**fields: Any) -> ClusterSpec:
    return replace(CLUSTER, kubernetes=replace(OPTIONS, **fields))


def _jobs() -> str:
    kinds = (("worker", 2, DEVICES), ("server", 1, ""))
    return "".join(JOB.format(role=role, number=number, devices=devices, idle=IDLE) for role, number, devices in kinds)


def test_the_request_is_printed_to_the_letter() -> None:
    script = TrainingScript(
        command=("python3", "train it.py"), server_command=("serve",), files={"AUTOSYNC_BUNDLE": Path("best.yaml")}
    )
    text = str(KubernetesLauncher().plan_script(CLUSTER, script, Path("logs")))
    step = "kubectl exec --stdin --namespace=ml {} --container=node -- python3 -I -S -c '" + BOOT + "'"
    first, second, third = (f"autosync-my-lab-{pod}" for pod in ("workers-0", "workers-1", "servers-0"))
    meet = f"MASTER_ADDR={first}.autosync-my-lab MASTER_PORT=29500"
    common = "OMP_NUM_THREADS=1 PYTHONUNBUFFERED=1"
    worker = "WORLD_SIZE=4 LOCAL_WORLD_SIZE=2"

    def lines(pod: str, node: str, group: int, ranks: tuple[int, int]) -> list[str]:
        groups = f"GROUP_RANK={group} GROUP_WORLD_SIZE=2"
        return [
            f"# {pod}: reached by {step.format(pod)}",
            f"# {pod}: AUTOSYNC_BUNDLE names a copy of best.yaml",
            *(
                f"# {pod}: RANK={rank} LOCAL_RANK={local} {worker} {groups} {meet} AUTOSYNC_NODE={node} {common}"
                f" python3 'train it.py' > logs/rank-{rank}.log 2>&1"
                for local, rank in enumerate(ranks)
            ),
        ]

    serving = f"RANK=4 LOCAL_RANK=0 WORLD_SIZE=4 LOCAL_WORLD_SIZE=1 {meet} AUTOSYNC_NODE=s {common}"
    expected = [
        *lines(first, "a", 0, (0, 1)),
        *lines(second, "b", 1, (2, 3)),
        f"# {third}: reached by {step.format(third)}",
        f"# {third}: AUTOSYNC_BUNDLE names a copy of best.yaml",
        f"# {third}: {serving} TORCH_CPP_LOG_LEVEL=ERROR serve > logs/rank-4.log 2>&1",
    ]
    assert text == _jobs() + SERVICE + "\n".join(expected)
    # As it stands it can be handed to Kubernetes.
    assert [one["kind"] for one in yaml.safe_load_all(text)] == ["Job", "Job", "Service"]


RUN = """\
---
apiVersion: batch/v1
kind: Job
metadata:
  name: autosync-my-lab-run
  namespace: ml
  labels:
    app.kubernetes.io/name: autosync
spec:
  backoffLimit: 0
  template:
    metadata:
      labels:
        app.kubernetes.io/name: autosync
    spec:
      restartPolicy: Never
      volumes:
      - name: data
        persistentVolumeClaim:
          claimName: data
      containers:
      - name: run
        image: registry.example/train:1
        command:
        - python3
        - -P
        - -m
        - autosync.cli
        - launch
        - a b.yaml
        - --
        - train.py
        - --json
        workingDir: /work
        resources:
          limits:
            cpu: '4'
            memory: 16Gi
        volumeMounts:
        - name: data
          mountPath: /data
"""


def test_the_job_that_does_the_same_by_itself_is_written_to_the_letter(monkeypatch: pytest.MonkeyPatch) -> None:
    own = ["launch", "--dry-run", "a b.yaml", "--json", "--", "train.py", "--json"]
    monkeypatch.setattr(sys, "argv", ["/bin/autosync", *own])
    request = KubernetesLauncher().plan(CLUSTER, ("x",), Path("logs"))
    assert request.batch_script == RUN
    models = pytest.importorskip("kubernetes.client", reason="the Kubernetes client is not installed")
    check_manifest(yaml.safe_load(RUN), models.V1Job, "Job")


def test_a_train_job_is_printed_to_the_letter() -> None:
    text = str(KubernetesLauncher().plan(ALIKE, ("python3", "x.py"), Path("logs")))
    printed, _, processes = text.partition("# ")
    assert printed == TRAIN_JOB
    assert processes.startswith("autosync-my-lab-node-0-0: reached by kubectl exec")


def test_an_affinity_of_the_cluster_file_holds_besides() -> None:
    required = "requiredDuringSchedulingIgnoredDuringExecution"
    theirs = {"labelSelector": {"matchLabels": {"app": "web"}}, "topologyKey": "kubernetes.io/hostname"}
    given = {"nodeAffinity": {"x": 1}, "podAntiAffinity": {required: [theirs]}}
    for job in manifests.manifests(_with(pinned=False, pod={"affinity": given}))[:-1]:
        affinity = job["spec"]["template"]["spec"]["affinity"]
        assert affinity["nodeAffinity"] == {"x": 1}
        ours, other = affinity["podAntiAffinity"][required]
        assert ours["labelSelector"]["matchLabels"] == {"app.kubernetes.io/instance": "autosync-my-lab"}
        assert other == theirs


def test_ranks_meet_at_the_names_that_pods_have() -> None:
    assert KubernetesLauncher().addresses(CLUSTER) == {
        "a": "autosync-my-lab-workers-0.autosync-my-lab",
        "b": "autosync-my-lab-workers-1.autosync-my-lab",
        "s": "autosync-my-lab-servers-0.autosync-my-lab",
    }
    assert KubernetesLauncher().addresses(ALIKE)["b"] == "autosync-my-lab-node-0-1.autosync-my-lab"


@pytest.mark.parametrize("name", ["x" * 90, "Ünïted", "1", "a_b.c", "-"])
def test_any_cluster_has_a_name_in_kubernetes(name: str) -> None:
    made = manifests.launch_name(replace(CLUSTER, name=name))
    assert re.fullmatch(r"[a-z]([-a-z0-9]{0,52}[a-z0-9])?", made), made


@pytest.mark.parametrize(
    ("cluster", "words"),
    [
        (replace(CLUSTER, kubernetes=None), "says nothing of Kubernetes"),
        (_with(container={"command": ["x"]}), r"kubernetes\.container\.command"),
        (_with(pod={"subdomain": "x"}), r"kubernetes\.pod\.subdomain"),
        (_with(pod={"affinity": ["x"]}), r"kubernetes\.pod\.affinity"),
        (_with(pinned=True, pod={"affinity": {"nodeAffinity": {}}}), r"affinity\.nodeAffinity: is given beside pinned"),
        (_with(kind="trainjob"), "nodes that only serve take kind: job"),
        (replace(ALIKE, kubernetes=replace(OPTIONS, kind="trainjob")), r"kubernetes\.container\.workingDir: is given"),
    ],
)
def test_what_cannot_be_asked_for_is_refused(cluster: ClusterSpec, words: str) -> None:
    with pytest.raises(InputError, match=words):
        KubernetesLauncher().plan(cluster, ("x",), Path())


def test_what_kubernetes_is_told_stands_in_the_cluster_file(tmp_path: Path) -> None:
    for cluster in (CLUSTER, ALIKE):
        save_cluster(tmp_path / "c.yaml", cluster)
        assert load_cluster(tmp_path / "c.yaml") == cluster


def _idle_program(processes: str, *, first_seconds: float) -> tuple[str, ...]:
    """The program of a pod with fewer seconds, and with the processes that a call of `processes` would find."""
    text = manifests.IDLE.replace("86400", str(first_seconds)).replace("300", "2").replace("sleep(5)", "sleep(0.5)")
    text = text.replace("os.listdir", "list_processes")
    head, loop = text.split("idle, limit", maxsplit=1)
    found = f"looked = []\ndef list_processes(_path):\n    looked.append(1)\n    return {processes}\n"
    return (sys.executable, "-I", "-S", "-c", f"{head}{found}idle, limit{loop}")


ALONE = "['1', str(os.getpid()), 'self']"


@pytest.mark.parametrize(
    ("processes", "first_seconds"),
    [(ALONE, 4), (f"['7'] if len(looked) == 2 else {ALONE}", 86400)],
    ids=["nothing has ever run", "nothing runs any more"],
)
def test_a_pod_in_which_nothing_runs_ends(processes: str, first_seconds: float) -> None:
    done = subprocess.run(_idle_program(processes, first_seconds=first_seconds), timeout=20, check=False)
    assert done.returncode == 0


@pytest.mark.parametrize(
    ("processes", "first_seconds"),
    [("['1', '2', str(os.getpid())]", 2), (ALONE, 86400)],
    ids=["something runs", "the other pods are pending"],
)
def test_a_pod_that_is_needed_stays(processes: str, first_seconds: float) -> None:
    process = subprocess.Popen(_idle_program(processes, first_seconds=first_seconds))
    try:
        # As the program counts 5 s for each look, a pod that counts idleness from its start ends after one look.
        time.sleep(1.5)
        assert process.poll() is None
        process.terminate()
        # Asked to end it does so at once, though it would be the first process of its pod.
        assert process.wait(10) == 0
    finally:
        process.kill()
        process.wait()


def test_the_page_shows_what_is_printed() -> None:
    page = (Path(__file__).parents[2] / "docs" / "launchers" / "kubernetes.md").read_text("utf-8")
    (text,) = re.findall(r"```yaml\n(schema: .*?)```", page, re.DOTALL)
    cluster = parse_cluster(documents.parse_document(text, file="lab.yaml"))
    workers, _, service = manifests.manifests(cluster)
    assert cluster.kubernetes is not None
    kubernetes = replace(
        cluster.kubernetes, kind="trainjob", container={"resources": cluster.kubernetes.container["resources"]}
    )
    alike = replace(cluster, nodes=cluster.nodes[:2], kubernetes=kubernetes)
    for manifest in (workers, service, *manifests.manifests(alike)):
        shown = textwrap.indent(manifests_text((manifest,)), "  ")
        assert shown in page, shown
