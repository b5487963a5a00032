"""How long a short message waits for others' bytes: `python benchmarks/queue_waits.py > waits.json`, 2 minutes.

Hosts of a testbed, plain sockets, nothing of the engine. A pinger sends short messages on a connection of its own, and
says when it sent each; one clock is everybody's. Once it stands beside senders on one host: its messages wait in the
queue of that host's link. Once senders on several hosts send to one, and it has a host to itself: its messages wait in
the queue of the receiver's link. What they wait, times the rate, is what others have in the queue. The timeline knows
both: `queued_seconds` and `bytes_queued` of `simulators/costs.py`.
"""

from __future__ import annotations

import argparse
import json
import secrets
import socket
import statistics
import struct
import subprocess
import sys
import threading
import time
from typing import Any

from autosync.specs.cluster import ClusterSpec, Node
from autosync.testbed import Testbed, up

MEGABITS = (100, 200, 500, 1000)
SENDERS = {"own link": (1, 2, 4), "receiver's link": (2, 3, 5)}
PORT = 5002
CHUNK_BYTES = 500_000
PING_SECONDS = 2e-3
TIMEOUT_SECONDS = 30.0
CLOCK = struct.Struct("d")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=3.0, help="how long each measurement lasts")
    parser.add_argument("--megabits", type=int, nargs="+", default=MEGABITS)
    parser.add_argument("--part", nargs="+", metavar="WORD", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.part:
        play(*options.part)
        return 0
    results = []
    for megabits in options.megabits:
        for queue, num_senders in [(queue, count) for queue, counts in SENDERS.items() for count in counts]:
            found = measure(num_senders, megabits, options.seconds, is_own=queue == "own link")
            results.append({"queue": queue, "senders": num_senders, **found})
            print(json.dumps(results[-1]), file=sys.stderr, flush=True)
    print(json.dumps({"chunk_bytes": CHUNK_BYTES, "results": results}, indent=2))
    return 0


def measure(num_senders: int, megabits: int, seconds: float, *, is_own: bool) -> dict[str, Any]:
    """What messages wait. Host 0 receives, then come the senders; the last host pings."""
    rate = megabits * 125_000
    num_hosts = 2 if is_own else 2 + num_senders
    nodes = tuple(Node(name=f"n{i}", host=f"n{i}", bandwidth_out=rate, bandwidth_in=rate) for i in range(num_hosts))
    with up(ClusterSpec(name=f"waits-{secrets.token_hex(4)}", nodes=nodes, launcher="testbed")) as bed:
        address = bed.address("n0")
        receiver = _begin(bed, "n0", "receive", address, str(num_senders + 1))
        hosts = ["n1"] * num_senders if is_own else [f"n{i}" for i in range(1, num_senders + 1)]
        others = [_begin(bed, host, "send", address, str(seconds)) for host in hosts]
        others.append(_begin(bed, f"n{num_hosts - 1}", "ping", address, str(seconds)))
        try:
            waits = json.loads(receiver.communicate(timeout=TIMEOUT_SECONDS + seconds)[0])
        finally:
            for process in (receiver, *others):
                process.kill()
                process.wait()
    middle = waits[len(waits) // 10 :]
    low, *_, high = statistics.quantiles(middle, n=10)
    typical = statistics.median(middle)
    return {
        "megabits": megabits,
        "messages": len(middle),
        "wait_seconds": {"median": typical, "tenth": low, "ninetieth": high},
        "bytes_ahead_of_it": round(typical * rate),
    }


def _begin(bed: Testbed, host: str, *words: str) -> subprocess.Popen[str]:
    command = [*bed.enter(host), "chrt", "--batch", "0", sys.executable, __file__, "--part", *words]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def play(role: str, address: str, amount: str) -> None:
    """One host's part."""
    if role == "receive":
        print(json.dumps(receive(address, int(amount))))
        return
    with connect(address) as connection:
        connection.sendall(role[:1].encode())
        end = time.monotonic() + float(amount)
        while time.monotonic() < end:
            if role == "send":
                connection.sendall(bytes(CHUNK_BYTES))
            else:
                connection.sendall(CLOCK.pack(time.monotonic()))
                time.sleep(PING_SECONDS)


def receive(address: str, num_connections: int) -> list[float]:
    """What each short message waited, in the order in which they came."""
    waits: list[float] = []
    with socket.create_server((address, PORT)) as server:
        server.settimeout(TIMEOUT_SECONDS)
        threads = []
        for _ in range(num_connections):
            connection, _ = server.accept()
            threads.append(threading.Thread(target=_drain, args=(connection, waits)))
            threads[-1].start()
        for thread in threads:
            thread.join()
    return waits


def _drain(connection: socket.socket, waits: list[float]) -> None:
    with connection:
        connection.settimeout(TIMEOUT_SECONDS)
        if connection.recv(1) == b"p":
            while len(sent := connection.recv(CLOCK.size, socket.MSG_WAITALL)) == CLOCK.size:
                waits.append(time.monotonic() - CLOCK.unpack(sent)[0])
        else:
            while connection.recv(CHUNK_BYTES, socket.MSG_TRUNC):
                pass


def connect(address: str) -> socket.socket:
    until = time.monotonic() + TIMEOUT_SECONDS
    while True:
        try:
            connection = socket.create_connection((address, PORT), timeout=TIMEOUT_SECONDS)
        except ConnectionRefusedError:
            if time.monotonic() > until:
                raise
            time.sleep(0.01)
        else:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            return connection


if __name__ == "__main__":
    sys.exit(main())
