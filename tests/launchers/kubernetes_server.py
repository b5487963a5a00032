"""A small API server with the few endpoints that the launcher uses, over real HTTP and WebSockets.

Its pods are processes on this machine: a container's command runs as written in the manifest, and programs executed in
a pod end with it. There is no scheduler, no image and no network of pods; only Kubernetes itself has these.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import os
import secrets
import signal
import subprocess
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlparse

INDEX = "batch.kubernetes.io/job-completion-index"
TOKEN = "the-users-token"
_MAGIC = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
_BINARY, _CLOSE = 2, 8


class Pod:
    """A pod, whose processes run here."""

    def __init__(self, name: str, labels: dict[str, str], container: dict[str, Any], waiting: str) -> None:
        self.name = name
        self.labels = labels
        self.settings = {one["name"]: one["value"] for one in container.get("env", ())}
        self.folder = container.get("workingDir", "/")
        self.waiting = waiting
        self.processes: list[subprocess.Popen[bytes]] = []
        self.is_cut_off = threading.Event()
        self.fault = ""
        if not waiting:
            try:
                self.run(container["command"])
            except OSError as error:
                self.fault = f"exec: {container['command'][0]!r}: {error.strerror}"

    def run(self, command: list[str], **pipes: Any) -> subprocess.Popen[bytes]:
        # A group of its own: a pod's end is the end of all that runs in it.
        environment = {**os.environ, **self.settings}
        process = subprocess.Popen(command, env=environment, cwd=self.folder, start_new_session=True, **pipes)
        self.processes.append(process)
        return process

    def end(self) -> None:
        for process in reversed(self.processes):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def fields(self) -> dict[str, Any]:
        state: dict[str, Any] = {"running": {"startedAt": "2026-01-01T00:00:00Z"}}
        phase = "Running"
        if self.waiting:
            phase, state = "Pending", {"waiting": {"reason": self.waiting, "message": "as the test says"}}
        elif self.fault:
            phase = "Failed"
            state = {"terminated": {"reason": "StartError", "exitCode": 128, "message": self.fault}}
        status = {"name": "node", "image": "i", "imageID": "", "ready": True, "restartCount": 0, "state": state}
        return {
            "metadata": {"name": self.name, "labels": self.labels},
            "spec": {"nodeName": f"machine-{self.labels[INDEX]}", "containers": [{"name": "node"}]},
            "status": {"phase": phase, "podIP": "127.0.0.1", "containerStatuses": [status]},
        }


class Server:
    """The objects, and what was asked for. `waiting` is why pods of an image do not start, by image."""

    through = ()

    def __init__(self, kubeconfig: Path) -> None:
        self.environment = {"KUBECONFIG": str(kubeconfig)}
        self.objects: dict[tuple[str, str, str], dict[str, Any]] = {}
        self.pods: dict[str, Pod] = {}
        self.asked: list[str] = []
        self.waiting: dict[str, str] = {}
        self.lock = threading.Lock()

    def create(self, kind: str, namespace: str, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        name = body["metadata"]["name"]
        with self.lock:
            if (kind, namespace, name) in self.objects:
                return 409, _status(409, f'{kind} "{name}" already exists')
            if namespace == "forbidden":
                return 403, _status(403, f"{kind} is forbidden: you may not")
            body["metadata"]["uid"] = secrets.token_hex(8)
            self.objects[kind, namespace, name] = body
            if kind == "jobs":
                template = body["spec"]["template"]
                self._make_pods(
                    name, template["metadata"], template["spec"]["containers"][0], body["spec"]["completions"]
                )
            elif kind == "trainjobs":
                (patch,) = body["spec"]["runtimePatches"]
                (jobs,) = patch["trainingRuntimeSpec"]["template"]["spec"]["replicatedJobs"]
                metadata = jobs["template"]["spec"]["template"]["metadata"]
                trainer = body["spec"]["trainer"]
                self._make_pods(f"{name}-{jobs['name']}-0", metadata, trainer, trainer["numNodes"])
            return 201, body

    def _make_pods(self, prefix: str, metadata: dict[str, Any], container: dict[str, Any], number: int) -> None:
        for index in range(number):
            name = f"{prefix}-{index}-{secrets.token_hex(2)}"
            labels = {**metadata["labels"], INDEX: str(index)}
            self.pods[name] = Pod(name, labels, container, self.waiting.get(container["image"], ""))

    def delete(self, kind: str, namespace: str, name: str) -> tuple[int, dict[str, Any]]:
        with self.lock:
            if self.objects.pop((kind, namespace, name), None) is None:
                return 404, _status(404, f'{kind} "{name}" not found')
            if kind != "services":
                for pod in [pod for pod in self.pods if pod.startswith(f"{name}-")]:
                    self.pods.pop(pod).end()
            return 200, _status(200, "deleted")

    def get(self, kind: str, namespace: str, name: str) -> tuple[int, dict[str, Any]]:
        if kind == "pods":
            found = self.pods[name].fields() if name in self.pods else None
        else:
            found = self.objects.get((kind, namespace, name))
        return (200, found) if found is not None else (404, _status(404, f'{kind} "{name}" not found'))

    def list_pods(self, selector: str) -> dict[str, Any]:
        wanted = dict(one.split("=") for one in selector.split(","))
        with self.lock:
            found = [pod.fields() for pod in self.pods.values() if wanted.items() <= pod.labels.items()]
        return {"kind": "PodList", "apiVersion": "v1", "metadata": {}, "items": found}

    def lose(self, index: int) -> None:
        """Delete a pod, as an eviction does."""
        name = next(name for name, pod in self.pods.items() if pod.labels[INDEX] == str(index))
        self.pods.pop(name).end()

    def left(self) -> list[str]:
        """The objects and pods that there are."""
        return [*map(str, self.objects), *self.pods]

    def end(self) -> None:
        for pod in self.pods.values():
            pod.end()


def _status(code: int, message: str) -> dict[str, Any]:
    status = "Success" if code < 300 else "Failure"
    return {"kind": "Status", "apiVersion": "v1", "status": status, "code": code, "message": message}


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    kubernetes: Server

    def log_message(self, *_: object) -> None:
        """Nothing: tests read what the launcher says."""

    def _act(self) -> None:
        url = urlparse(self.path)
        self.kubernetes.asked.append(f"{self.command} {url.path}")
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if self.headers.get("Authorization") != f"Bearer {TOKEN}":
            self._answer(401, _status(401, "Unauthorized"))
            return
        words = url.path.split("/")
        at = words.index("namespaces")
        namespace, kind, *name = words[at + 1 :]
        query = parse_qs(url.query)
        if name[1:] == ["exec"]:
            self._exec(name[0], query["command"])
        elif self.command == "POST":
            self._answer(*self.kubernetes.create(kind, namespace, json.loads(body)))
        elif self.command == "DELETE":
            self._answer(*self.kubernetes.delete(kind, namespace, name[0]))
        elif name:
            self._answer(*self.kubernetes.get(kind, namespace, name[0]))
        else:
            self._answer(200, self.kubernetes.list_pods(query["labelSelector"][0]))

    do_GET = do_POST = do_DELETE = _act  # noqa: N815 - the names that http.server looks for

    def _answer(self, code: int, fields: dict[str, Any]) -> None:
        data = json.dumps(fields).encode()
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def _exec(self, name: str, command: list[str]) -> None:
        pod = self.kubernetes.pods.get(name)
        if pod is None:
            self._answer(404, _status(404, f'pods "{name}" not found'))
            return
        key = self.headers["Sec-WebSocket-Key"] + _MAGIC
        self.send_response(101)
        self.send_header("Upgrade", "websocket")
        self.send_header("Connection", "Upgrade")
        self.send_header("Sec-WebSocket-Accept", base64.b64encode(hashlib.sha1(key.encode()).digest()).decode())
        self.send_header("Sec-WebSocket-Protocol", "v4.channel.k8s.io")
        self.end_headers()
        self.close_connection = True
        pipe = subprocess.PIPE
        process = pod.run(command, stdin=pipe, stdout=pipe, stderr=pipe, bufsize=0)
        sending = threading.Lock()
        pumps = [
            threading.Thread(target=self._pump, args=(pod, channel, source, sending), daemon=True)
            for channel, source in ((1, process.stdout), (2, process.stderr))
        ]
        for pump in pumps:
            pump.start()
        feed = threading.Thread(target=self._feed, args=(pod, process), daemon=True)
        feed.start()
        for pump in pumps:
            pump.join()
        code = process.wait()
        end = _status(200 if code == 0 else 500, "" if code == 0 else f"command terminated with exit code {code}")
        with contextlib.suppress(OSError), sending:
            self.wfile.write(_frame(_BINARY, b"\3" + json.dumps(end).encode()) + _frame(_CLOSE, b"\x03\xe8"))
        feed.join()
        for end_of_pipe in (process.stdout, process.stderr):
            assert end_of_pipe is not None
            end_of_pipe.close()

    def _pump(self, pod: Pod, channel: int, source: Any, sending: threading.Lock) -> None:
        with contextlib.suppress(OSError, ValueError):
            while data := source.read(1 << 15):
                if not pod.is_cut_off.is_set():
                    with sending:
                        self.wfile.write(_frame(_BINARY, bytes([channel]) + data))

    def _feed(self, pod: Pod, process: subprocess.Popen[bytes]) -> None:
        assert process.stdin is not None
        with contextlib.suppress(OSError, ValueError):
            while (frame := self._receive()) is not None:
                if frame[:1] == b"\0" and not pod.is_cut_off.is_set():
                    process.stdin.write(frame[1:])
        # As containerd does when whoever was attached is gone.
        with contextlib.suppress(OSError):
            process.stdin.close()

    def _receive(self) -> bytes | None:
        """A frame's payload; None at the end."""
        head = self.rfile.read(2)
        if len(head) < 2 or head[0] & 15 == _CLOSE:
            return None
        length = head[1] & 127
        if length > 125:
            length = int.from_bytes(self.rfile.read(2 if length == 126 else 8), "big")
        mask = self.rfile.read(4)
        data = self.rfile.read(length)
        return bytes(byte ^ mask[place % 4] for place, byte in enumerate(data))


def _frame(opcode: int, payload: bytes) -> bytes:
    length = len(payload)
    size = bytes([length]) if length < 126 else b"\x7e" + length.to_bytes(2, "big")
    return bytes([128 | opcode]) + size + payload


@contextlib.contextmanager
def kubernetes_server(folder: Path) -> Iterator[Server]:
    """A server, and a kubeconfig that leads to it in `folder`. Nothing of it is left afterwards."""
    server = Server(folder / "kubeconfig")
    handler = type("Handler", (_Handler,), {"kubernetes": server})
    listening = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    listening.daemon_threads = True
    thread = threading.Thread(target=listening.serve_forever, daemon=True)
    thread.start()
    address = f"http://127.0.0.1:{listening.server_address[1]}"
    (folder / "kubeconfig").write_text(
        json.dumps(
            {
                "apiVersion": "v1",
                "kind": "Config",
                "clusters": [{"name": "test", "cluster": {"server": address}}],
                "users": [{"name": "test", "user": {"token": TOKEN}}],
                "contexts": [{"name": "lab", "context": {"cluster": "test", "user": "test"}}],
                "current-context": "lab",
            }
        )
    )
    try:
        yield server
    finally:
        listening.shutdown()
        listening.server_close()
        server.end()
        thread.join(5)
