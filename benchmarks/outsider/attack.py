"""The outsider of `outsider.py`: a process of another user that tries everything a user of the same machine can try.

    python benchmarks/outsider/attack.py TARGETS.json SECONDS UID

It first takes the other user's id, so root has to start it. It reads from the file which ports and folders belong to
the trials, servers and stores. (A real outsider finds them in /proc/net/tcp; this one must not disturb others.) Until
the time is over it connects and sends nothing, invalid bytes, or a false greeting; it damages, copies and deletes
values in the store, and forges invitations; it locks, opens and connects to files. The last line that it prints is a
JSON object that counts its actions.
"""

from __future__ import annotations

import datetime as dt
import encodings.idna  # noqa: F401 - what Python would load as this user it could not
import fcntl
import json
import os
import random
import socket
import struct
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch.distributed as dist

from autosync.signatures import draw_number, sign_letter

NUM_KNOCKERS = 6
MAX_HELD = 400
PAUSE_SECONDS = 0.002
STORE_PAUSE_SECONDS = 0.5
"""The interval between connections to the store. New clients of the store, including this outsider's own, wait behind
all silent ones."""
JUNK = (b"GET / HTTP/1.1\r\n\r\n", b"\0" * 7, b"\xff" * 64, b"\0", struct.pack(">I", 2**31), b"\0\0\0\2{}", b"[" * 500)
"""Invalid bytes. None has eight zero bytes: gloo takes them for its first peer, which no program on top of it can
prevent."""


class Outsider:
    """The outsider's knowledge, connections and actions."""

    def __init__(self, targets: Path, seconds: float) -> None:
        self._path = targets
        self._end = time.monotonic() + seconds
        self._counts: Counter[str] = Counter()
        self._held: list[socket.socket] = []
        self._overheard: list[bytes] = []

    @property
    def is_over(self) -> bool:
        return time.monotonic() >= self._end

    def targets(self) -> dict[str, Any]:
        try:
            found: dict[str, Any] = json.loads(self._path.read_text())
        except (OSError, ValueError):
            return {"ports": [], "store": None, "folder": ""}
        return found

    def run(self) -> Counter[str]:
        works: list[Callable[[], None]] = [self.knock] * NUM_KNOCKERS
        works += [self.knock_store, self.damage_store, self.forge_letters, self.try_files]
        threads = [threading.Thread(target=self._again, args=(work,), daemon=True) for work in works]
        for thread in threads:
            thread.start()
        for thread in threads:
            # A thread that waits in torch's store does not notice the end.
            thread.join(max(0.0, self._end - time.monotonic()) + 1.0)
        return self._counts

    def _again(self, work: Callable[[], None]) -> None:
        while not self.is_over:
            try:
                work()
            except (OSError, RuntimeError, ValueError) as error:
                self._counts[f"refused: {type(error).__name__}"] += 1
                time.sleep(0.05)

    # Ports: the control port, gloo's, the store's, and all others that listen.

    def knock(self) -> None:
        """Connect to each port except the store's once, each time in another manner."""
        targets = self.targets()
        for port in set(targets["ports"]) - {targets["store"]}:
            self._knock_at(port)
            time.sleep(PAUSE_SECONDS)
        time.sleep(PAUSE_SECONDS)

    def knock_store(self) -> None:
        """Connect to the store in the same way, but rarely."""
        time.sleep(STORE_PAUSE_SECONDS)
        port = self.targets()["store"]
        if port is not None:
            self._knock_at(port)
            self._counts["connections to the store"] += 1

    def _knock_at(self, port: int) -> None:
        connection = socket.create_connection(("127.0.0.1", port), 2.0)
        connection.settimeout(0.2)
        self._counts["connections"] += 1
        how = random.choice(("idle", "junk", "random", "greet", "leave"))
        if how == "junk":
            connection.sendall(random.choice(JUNK))
        elif how == "random":
            connection.sendall(os.urandom(64))
        elif how == "greet":
            self._greet(connection)
        if how == "leave":
            connection.close()
        else:
            self._held.append(connection)
        while len(self._held) > MAX_HELD:
            self._held.pop(0).close()

    def _greet(self, connection: socket.socket) -> None:
        """Send a rank's greeting with an invalid proof."""
        greeting = {"rank": 0, "nonce": draw_number(), "proof": draw_number() * 2}
        body = json.dumps(greeting).encode()
        connection.sendall(struct.pack(">I", len(body)) + body)
        self._counts["false greetings"] += 1

    # The store of a training.

    def _store(self) -> Any:
        port = self.targets()["store"]
        if port is None:
            raise ValueError("no store yet")
        patience = dt.timedelta(seconds=20)
        return dist.TCPStore("127.0.0.1", port, is_master=False, timeout=patience, wait_for_workers=False)  # type: ignore[attr-defined]

    def damage_store(self) -> None:
        """Damage, copy and delete the store's values for a while."""
        store = self._store()
        until = time.monotonic() + 5.0
        while time.monotonic() < until and not self.is_over:
            for key in store.list_keys():
                value = store.compare_set(key, "-", "-")
                if len(self._overheard) < 1000:
                    self._overheard.append(value)
                how = random.choice(("set", "replay", "delete"))
                if how == "set":
                    store.set(key, random.choice(JUNK))
                elif how == "replay":
                    store.set(key, random.choice(self._overheard))
                else:
                    store.delete_key(key)
                self._counts[f"keys: {how}"] += 1
            time.sleep(0.01)

    def forge_letters(self) -> None:
        """Call a server as a worker does but without the secret, as only an open server accepts."""
        store = dist.PrefixStore("autosync/servers/s0", self._store())  # type: ignore[attr-defined]
        store.set("1/invitation", json.dumps({"session": "x", "rank": 2, "checks": True, "trace": "/tmp/x"}))  # noqa: S108
        for _ in range(50):
            try:
                server = json.loads(json.loads(store.compare_set("free", "-", "-"))["content"])["server"]
            except (ValueError, LookupError, TypeError):
                time.sleep(0.05)
                continue
            number = draw_number()

            def say(key: str, content: dict[str, Any], *occasion: str) -> None:
                store.set(key, sign_letter(content, "", "server", "s0", key, *occasion))

            say(f"{server}/call", {"number": number})
            time.sleep(0.2)
            rank = random.choice((2, 2, 2, "2", 7))
            say(
                f"{server}/invitation",
                {"session": "autosync/0/0,1/0", "rank": rank, "checks": True, "trace": "/tmp/x", "number": number},  # noqa: S108
                number,
            )
            self._counts["forged invitations"] += 1
            time.sleep(0.1)

    # Files.

    def try_files(self) -> None:
        """Lock, read and change files where possible, and connect to sockets."""
        for folder, _, names in os.walk(self.targets()["folder"] or "/nowhere"):
            for name in names:
                path = Path(folder) / name
                try:
                    if path.is_socket():
                        client = socket.socket(socket.AF_UNIX)
                        client.connect(str(path))
                        self._held.append(client)
                        self._counts["connections to socket files"] += 1
                        continue
                    with path.open("rb") as file:
                        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                        self._counts["files locked"] += 1
                        time.sleep(0.05)
                    path.write_bytes(b"junk")
                    self._counts["files changed"] += 1
                except OSError:
                    self._counts["files refused"] += 1
        time.sleep(0.1)


def main(targets: str, seconds: str, uid: str) -> None:
    """Run the outsider as another user for this time."""
    os.setgroups([])
    os.setgid(int(uid))
    os.setuid(int(uid))
    os.environ["TORCH_CPP_LOG_LEVEL"] = "FATAL"
    counts = Outsider(Path(targets), float(seconds)).run()
    print(json.dumps({"uid": os.getuid(), **dict(sorted(counts.items()))}), flush=True)
    # Threads may wait in torch, which nothing interrupts.
    os._exit(0)


if __name__ == "__main__":
    main(*sys.argv[1:])
