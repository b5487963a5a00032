"""The allocation holder of the Kubernetes launcher: it makes pods, waits for them, starts agents, and deletes the pods.

It is a separate process; see `allocation_holder`. If it is cut off and cannot delete its objects, they disappear by
themselves: idle pods end, Kubernetes deletes finished Jobs, and with the first Job the service.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import urllib3
import websocket
from kubernetes import client, config, stream
from kubernetes.client.exceptions import ApiException

from autosync.launchers import allocation_holder
from autosync.launchers.agent_link import MAX_SAID_BYTES
from autosync.launchers.allocation_holder import AllocationError

POLL_SECONDS = 1.0
NOTE_SECONDS = 15.0
"""The time before the user is told which pods are not ready."""
GONE_SECONDS = 12.0
CALL_SECONDS = 15.0
CHUNK_BYTES = 1 << 14
STDIN, STDOUT, STDERR, ERROR = 0, 1, 2, 3
_INDEX = "batch.kubernetes.io/job-completion-index"
_HOPELESS = (
    "CreateContainerConfigError",
    "CreateContainerError",
    "ErrImageNeverPull",
    "ImagePullBackOff",
    "InvalidImageName",
    "RunContainerError",
)
_TRAIN_JOBS = ("trainer.kubeflow.org", "v1alpha1")
_CUT_OFF = (OSError, urllib3.exceptions.HTTPError)


class PodStream:
    """The stdin and stdout of an agent in a pod, through the API server."""

    def __init__(self, connection: Any, why_gone: Callable[[], str]) -> None:
        self._socket = connection.sock
        self._why_gone = why_gone
        self._said = b""
        self._status = b""

    def read(self) -> bytes:
        while True:
            try:
                code, frame = self._socket.recv_data_frame(control_frame=True)
            except (OSError, ValueError, AttributeError, websocket.WebSocketException):
                # A connection that another thread has closed raises these errors too.
                return b""
            if code == websocket.ABNF.OPCODE_CLOSE:
                return b""
            if code not in (websocket.ABNF.OPCODE_BINARY, websocket.ABNF.OPCODE_TEXT) or not frame.data:
                continue
            channel, data = frame.data[0], bytes(frame.data[1:])
            if channel == STDOUT and data:
                return data
            if channel == STDERR:
                self._said = (self._said + data)[-MAX_SAID_BYTES:]
            elif channel == ERROR:
                self._status += data

    def write(self, data: bytes) -> None:
        with contextlib.suppress(OSError, websocket.WebSocketException):
            for start in range(0, len(data), CHUNK_BYTES):
                payload = bytes([STDIN]) + data[start : start + CHUNK_BYTES]
                self._socket.send(payload, opcode=websocket.ABNF.OPCODE_BINARY)

    def close(self) -> None:
        with contextlib.suppress(OSError, AttributeError):
            self._socket.abort()

    def last_words(self) -> str:
        said = self._said.decode("utf-8", "replace").strip()
        with contextlib.suppress(ValueError):
            status = json.loads(self._status or b"{}")
            if status.get("status") == "Failure" and not said:
                said = str(status.get("message", ""))
        return self._why_gone() or said


class Pods:
    """The pods of a launch, one for each node."""

    def __init__(self, request: Mapping[str, Any], found: Mapping[str, Any]) -> None:
        self._namespace = request["namespace"]
        self._nodes = request["nodes"]
        self._command = request["command"]
        self._pods = {node: pod.metadata.name for node, pod in found.items()}
        self._addresses = {node: pod.status.pod_ip for node, pod in found.items()}

    def addresses(self) -> Mapping[str, str]:
        return self._addresses

    def open(self, position: int) -> PodStream:
        pod = self._pods[self._nodes[position]]
        # A separate client, because `stream` changes the protocol of the client that it is given.
        api = client.CoreV1Api(client.ApiClient())
        try:
            connection = stream.stream(
                api.connect_get_namespaced_pod_exec,
                pod,
                self._namespace,
                command=self._command,
                container="node",
                stdin=True,
                stdout=True,
                stderr=True,
                tty=False,
                binary=True,
                _preload_content=False,
            )
        except ApiException as error:
            why = self._why_gone(pod)
            raise AllocationError(why or f"nothing can be started in its pod {pod}: {_reason(error)}") from error
        return PodStream(connection, lambda: self._why_gone(pod))

    def _why_gone(self, name: str) -> str:
        """Return why a pod is gone; empty if it is well."""
        try:
            pod = client.CoreV1Api().read_namespaced_pod(name, self._namespace, _request_timeout=CALL_SECONDS)
        except ApiException as error:
            return f"its pod {name} is gone" if error.status == 404 else ""
        except _CUT_OFF as error:
            return f"Kubernetes cannot be asked about its pod {name}: {error}"
        if pod.metadata.deletion_timestamp is not None:
            return f"its pod {name} is being deleted"
        return _fault(pod)


@contextlib.contextmanager
def hold(request: Mapping[str, Any], note: Callable[[str], None]) -> Iterator[Pods]:
    """Make all objects, wait until all pods run, and delete all objects at the end."""
    _connect(request["context"])
    made: list[Mapping[str, Any]] = []
    try:
        try:
            for manifest in request["manifests"]:
                _make(manifest, made)
            found = _await_pods(request, note)
        except ApiException as error:
            raise AllocationError(_reason(error)) from error
        except _CUT_OFF as error:
            raise AllocationError(f"Kubernetes cannot be reached: {error}") from error
        yield Pods(request, found)
    finally:
        _delete(made)


def _connect(context: str | None) -> None:
    try:
        try:
            config.load_kube_config(context=context)
        except config.ConfigException:
            # Inside a pod, a service account takes the place of the configuration.
            if "KUBERNETES_SERVICE_HOST" not in os.environ:
                raise
            config.load_incluster_config()
    except (config.ConfigException, OSError) as error:
        raise AllocationError(f"no way to Kubernetes is known here: {error}") from error


def _make(manifest: Mapping[str, Any], made: list[Mapping[str, Any]]) -> None:
    name, namespace = manifest["metadata"]["name"], manifest["metadata"]["namespace"]
    body = dict(manifest)
    if manifest["kind"] == "Service" and made:
        body["metadata"] = {**manifest["metadata"], "ownerReferences": [_owner(made[0])]}

    def create() -> None:
        answer = _creation(manifest["kind"], namespace)(body, _request_timeout=CALL_SECONDS)
        uid = answer["metadata"].get("uid", "") if isinstance(answer, dict) else answer.metadata.uid
        made.append({**manifest, "uid": uid})

    try:
        # In a thread: if this process is told to end now, it still learns whether there is an object to delete.
        with ThreadPoolExecutor(1) as pool:
            pool.submit(create).result()
    except ApiException as error:
        what = f"{manifest['kind']} {name} cannot be made in the namespace {namespace}: {_reason(error)}"
        if error.status == 409:
            what = (
                f"the namespace {namespace} has a {manifest['kind']} {name} already: another run on this cluster,"
                f" or one that was cut off; kubectl --namespace={namespace} delete {manifest['kind'].lower()} {name}"
            )
        raise AllocationError(what) from error


def _creation(kind: str, namespace: str) -> Callable[..., Any]:
    if kind == "Service":
        return lambda body, **how: client.CoreV1Api().create_namespaced_service(namespace, body, **how)
    if kind == "Job":
        return lambda body, **how: client.BatchV1Api().create_namespaced_job(namespace, body, **how)
    return lambda body, **how: client.CustomObjectsApi().create_namespaced_custom_object(
        *_TRAIN_JOBS, namespace, "trainjobs", body, **how
    )


def _owner(manifest: Mapping[str, Any]) -> dict[str, Any]:
    fields = {key: manifest[key] for key in ("apiVersion", "kind", "uid")}
    return {**fields, "name": manifest["metadata"]["name"]}


def _delete(made: Sequence[Mapping[str, Any]]) -> None:
    """Delete all objects, and wait until they are gone, for at most GONE_SECONDS."""
    left = [manifest for manifest in made if manifest["kind"] != "Service"]
    for manifest in [*left, *(one for one in made if one["kind"] == "Service")]:
        # ValueError: the server answers with the object or with a status, and the client can parse only one of them.
        with contextlib.suppress(ApiException, ValueError, *_CUT_OFF):
            _removal(manifest)(propagation_policy="Foreground", _request_timeout=CALL_SECONDS)
    deadline = time.monotonic() + GONE_SECONDS
    while left and time.monotonic() < deadline:
        left = [manifest for manifest in left if _is_there(manifest)]
        time.sleep(0.2 if left else 0.0)


def _removal(manifest: Mapping[str, Any]) -> Callable[..., Any]:
    name, namespace = manifest["metadata"]["name"], manifest["metadata"]["namespace"]
    if manifest["kind"] == "Service":
        return lambda **how: client.CoreV1Api().delete_namespaced_service(name, namespace, **how)
    if manifest["kind"] == "Job":
        return lambda **how: client.BatchV1Api().delete_namespaced_job(name, namespace, **how)
    return lambda **how: client.CustomObjectsApi().delete_namespaced_custom_object(
        *_TRAIN_JOBS, namespace, "trainjobs", name, **how
    )


def _is_there(manifest: Mapping[str, Any]) -> bool:
    name, namespace = manifest["metadata"]["name"], manifest["metadata"]["namespace"]
    try:
        if manifest["kind"] == "Job":
            client.BatchV1Api().read_namespaced_job(name, namespace, _request_timeout=CALL_SECONDS)
        else:
            client.CustomObjectsApi().get_namespaced_custom_object(
                *_TRAIN_JOBS, namespace, "trainjobs", name, _request_timeout=CALL_SECONDS
            )
    except (ApiException, *_CUT_OFF):
        return False
    return True


def _await_pods(request: Mapping[str, Any], note: Callable[[str], None]) -> dict[str, Any]:
    """Wait until all pods run, and return them by node. Scheduling and pulling images may take any time."""
    told_at = time.monotonic() + NOTE_SECONDS
    while True:
        found: dict[str, Any] = {}
        waiting: list[str] = []
        for group in request["groups"]:
            pods = client.CoreV1Api().list_namespaced_pod(
                request["namespace"], label_selector=group["selector"], _request_timeout=CALL_SECONDS
            )
            placed = _placed(group, pods.items)
            for node in group["nodes"]:
                pod = placed.get(node)
                if pod is not None and (fault := _fault(pod)):
                    raise AllocationError(f"{node}: {fault}")
                if pod is None or not _runs(pod):
                    waiting.append(f"{node} ({'no pod yet' if pod is None else _state(pod)})")
                else:
                    found[node] = pod
        if not waiting:
            return found
        if time.monotonic() >= told_at:
            told_at = float("inf")
            note(f"waiting for {len(waiting)} of {len(request['nodes'])} pods: {', '.join(waiting[:8])}")
        time.sleep(POLL_SECONDS)


def _placed(group: Mapping[str, Any], pods: Sequence[Any]) -> dict[str, Any]:
    """Return the pod of each node, found by its machine if nodes name hosts, else by its index."""
    placed = {}
    for pod in pods:
        if group["hosts"] is not None:
            if pod.spec.node_name in group["hosts"]:
                placed[group["nodes"][group["hosts"].index(pod.spec.node_name)]] = pod
            elif pod.spec.node_name is None:
                placed[group["nodes"][_index(pod)]] = pod
        else:
            placed[group["nodes"][_index(pod)]] = pod
    return placed


def _index(pod: Any) -> int:
    return int((pod.metadata.labels or {}).get(_INDEX) or (pod.metadata.annotations or {})[_INDEX])


def _runs(pod: Any) -> bool:
    statuses = pod.status.container_statuses or []
    return bool(pod.status.phase == "Running" and pod.status.pod_ip and any(one.state.running for one in statuses))


def _state(pod: Any) -> str:
    """Return the reason why a pod waits."""
    for status in pod.status.container_statuses or []:
        if status.state.waiting is not None:
            return str(status.state.waiting.reason)
    for condition in pod.status.conditions or []:
        if condition.type == "PodScheduled" and condition.status == "False":
            return f"{condition.reason}: {condition.message}"
    return str(pod.status.phase)


def _fault(pod: Any) -> str:
    """Return why a pod will never run or has ended; empty if it is well."""
    name = pod.metadata.name
    for status in pod.status.container_statuses or []:
        waiting, ended = status.state.waiting, status.state.terminated
        if waiting is not None and waiting.reason in _HOPELESS:
            return f"its pod {name} cannot start: {waiting.reason}: {waiting.message or ''}".rstrip(": ")
        if ended is not None:
            more = f": {' '.join(ended.message.split())}" if ended.message else ""
            return f"its pod {name} has ended: {ended.reason or 'exit code'} ({ended.exit_code}){more}"
    if pod.status.phase in ("Failed", "Succeeded"):
        return f"its pod {name} has ended: {pod.status.reason or pod.status.phase}: {pod.status.message or ''}".rstrip(
            ": "
        )
    return ""


def _reason(error: ApiException) -> str:
    """Return the error message of the API server."""
    with contextlib.suppress(ValueError, TypeError, AttributeError):
        return str(json.loads(error.body)["message"])
    return " ".join(str(error.reason).split())[:400]


if __name__ == "__main__":
    allocation_holder.run(hold)
