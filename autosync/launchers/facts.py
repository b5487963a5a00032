"""What a node is like, told by a program that runs there: `facts.py tell FILE ...`, then `facts.py reach PEERS`.

It is handed to the node's Python as text, for what it looks for is whether anything of autosync's is there; so it
imports the standard library alone. `tell` prints one line of JSON and then listens at a port for as long as it may, so
that the others can try to reach it; `reach` prints whom this node cannot connect to.
"""

from __future__ import annotations

import concurrent.futures
import hashlib
import importlib
import importlib.metadata
import json
import os
import shutil
import socket
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

LISTEN_SECONDS = 90.0
CONNECT_SECONDS = 5.0
_MAX_AT_ONCE = 16


def tell(files: list[str]) -> dict[str, Any]:
    """Versions, the interface that gradients will take, free memory and disk, and the content of the user's files."""
    folders = {str(Path.cwd()), tempfile.gettempdir()}
    return {
        "python": ".".join(map(str, sys.version_info[:3])),
        "torch": _version("torch"),
        "autosync": _autosync_version(),
        "interface": os.environ.get("GLOO_SOCKET_IFNAME", ""),
        "processors": os.cpu_count() or 0,
        "free_memory_bytes": _free_memory_bytes(),
        "free_disk_bytes": {folder: shutil.disk_usage(folder).free for folder in sorted(folders)},
        "files": {file: _content(file) for file in files},
    }


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""


def _autosync_version() -> str:
    try:
        return str(importlib.import_module("autosync").__version__)
    except ImportError:
        return ""


def _free_memory_bytes() -> int | None:
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    found = [int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")]
    return found[0] if found else None


def _content(file: str) -> str:
    try:
        return hashlib.sha256(Path(file).read_bytes()).hexdigest()
    except OSError:
        return ""


def listen() -> None:
    """Let others try to connect. The port is told first."""
    with _listener() as listener:
        sys.stdout.write(json.dumps({"port": listener.getsockname()[1]}) + "\n")
        sys.stdout.flush()
        deadline = time.monotonic() + LISTEN_SECONDS
        while (left := deadline - time.monotonic()) > 0:
            listener.settimeout(left)
            try:
                listener.accept()[0].close()
            except OSError:
                continue


def _listener() -> socket.socket:
    """At a port of this machine's, by IPv6 too where it has that."""
    if socket.has_dualstack_ipv6():
        try:
            return socket.create_server(("", 0), family=socket.AF_INET6, backlog=256, dualstack_ipv6=True)
        except OSError:
            # It may be compiled in and switched off.
            pass
    return socket.create_server(("", 0), backlog=256)


def reach(peers: dict[str, tuple[str, int]]) -> dict[str, str]:
    """Why each of those cannot be connected to that cannot."""

    def attempt(place: tuple[str, int]) -> str:
        try:
            socket.create_connection((place[0], place[1]), timeout=CONNECT_SECONDS).close()
        except OSError as error:
            return str(error)
        return ""

    with concurrent.futures.ThreadPoolExecutor(_MAX_AT_ONCE) as pool:
        found = dict(zip(peers, pool.map(attempt, peers.values()), strict=True))
    return {name: why for name, why in found.items() if why}


def main(arguments: list[str]) -> None:
    """Tell, or reach."""
    if arguments[0] == "tell":
        sys.stdout.write(json.dumps(tell(arguments[1:])) + "\n")
        listen()
    else:
        sys.stdout.write(json.dumps({"unreachable": reach(json.loads(arguments[1]))}) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
