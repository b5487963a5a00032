"""A program that runs on a node and reports its versions, memory, disk and reachable peers, for `node_check`.

`node_report.py tell FILE ...` prints a line of JSON, then listens at a port so that other nodes can connect.
`node_report.py reach PEERS` prints the peers that this node cannot connect to. The node's Python gets the program as
text, because the node may have no autosync. It needs only the standard library.
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
    """Return versions, the network interface for gradients, free memory and disk, and hashes of the user's files."""
    folders = {str(Path.cwd()), tempfile.gettempdir()}
    return {
        "python": ".".join(map(str, sys.version_info[:3])),
        "torch": _version("torch"),
        "autosync": _autosync_version(),
        "interface": os.environ.get("GLOO_SOCKET_IFNAME", ""),
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
    """Print the number of a free port, then accept connections of other nodes at it."""
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
    """Return a socket that listens at a free port, also over IPv6 if the machine has it."""
    if socket.has_dualstack_ipv6():
        try:
            return socket.create_server(("", 0), family=socket.AF_INET6, backlog=256, dualstack_ipv6=True)
        except OSError:
            # IPv6 may be compiled in and switched off.
            pass
    return socket.create_server(("", 0), backlog=256)


def reach(peers: dict[str, tuple[str, int]]) -> dict[str, str]:
    """Return the peers that this node cannot connect to, with the reasons."""

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
    """Run `tell` or `reach`."""
    if arguments[0] == "tell":
        sys.stdout.write(json.dumps(tell(arguments[1:])) + "\n")
        listen()
    else:
        sys.stdout.write(json.dumps({"unreachable": reach(json.loads(arguments[1]))}) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
