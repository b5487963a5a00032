"""How well a testbed's links hold the rates of their file: `python benchmarks/testbed_shaping.py > shaping.json`.

Every host sends to the next one in a circle while it receives from the one before, so each link is full in both
directions. What arrives is counted in TCP payload, after the start, and divided by the file's rate. Senders take their
bytes from a file and receivers drop them in the kernel, so that the processor does not limit what is measured. Where
something else keeps the machine busy the error says so as well: the load before each measurement is printed with it,
and a measurement that is out of bounds is repeated, up to --attempts times; all are printed, the last one counts.
"""

from __future__ import annotations

import argparse
import json
import os
import secrets
import socket
import subprocess
import sys
import threading
import time
from typing import Any

from autosync.specs.cluster import ClusterSpec, Node
from autosync.testbed import Testbed, up

MEGABITS = (50, 100, 250, 500, 1000)
HOSTS = (2, 4, 8)
PORT = 5001
BOUND = 0.05
SETTLE_SECONDS = 0.5
CHUNK_BYTES = 2**20
TIMEOUT_SECONDS = 30.0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=4.0, help="how long each measurement lasts")
    parser.add_argument("--attempts", type=int, default=3)
    parser.add_argument("--megabits", type=int, nargs="+", default=MEGABITS)
    parser.add_argument("--hosts", type=int, nargs="+", default=HOSTS)
    parser.add_argument("--transfer", nargs=4, metavar=("MINE", "NEXT", "START", "SECONDS"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.transfer:
        mine, following, start, seconds = options.transfer
        print(json.dumps(transfer(mine, following, float(start), float(seconds))))
        return 0
    results = []
    for num_hosts in options.hosts:
        for megabits in options.megabits:
            results.append(measure(num_hosts, megabits, options.seconds, options.attempts))
            print(_describe(results[-1]), file=sys.stderr, flush=True)
    worst = max(result["worst_error"] for result in results)
    print(json.dumps({"bound": BOUND, "worst_error": worst, "results": results}, indent=2))
    return 0 if worst <= BOUND else 1


def measure(num_hosts: int, megabits: int, seconds: float, attempts: int) -> dict[str, Any]:
    """Both directions of every link at once; again where a rate is out of bounds."""
    rate = megabits * 125_000
    nodes = tuple(Node(name=f"n{i}", host=f"n{i}", bandwidth_out=rate, bandwidth_in=rate) for i in range(num_hosts))
    cluster = ClusterSpec(name=f"shaping-{secrets.token_hex(4)}", nodes=nodes, launcher="testbed")
    tried: list[dict[str, Any]] = []
    with up(cluster) as bed:
        while len(tried) < attempts and not (tried and tried[-1]["worst_error"] <= BOUND):
            load = os.getloadavg()[0]
            ratios = [received / rate for received in _circle(bed, seconds)]
            worst = max(abs(ratio - 1) for ratio in ratios)
            tried.append({"load": load, "lowest": min(ratios), "highest": max(ratios), "worst_error": worst})
    return {"hosts": num_hosts, "megabits": megabits, **tried[-1], "attempts": tried}


def _circle(bed: Testbed, seconds: float) -> list[float]:
    """Bytes per second that arrive at each host."""
    names = [host.node for host in bed.layout.hosts]
    start = time.time() + 0.3 + 0.1 * len(names)
    running = []
    for name, following in zip(names, [*names[1:], names[0]], strict=True):
        words = (bed.address(name), bed.address(following), str(start), str(seconds))
        command = [*bed.enter(name), "chrt", "--batch", "0", sys.executable, __file__, "--transfer", *words]
        running.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
    try:
        return [float(process.communicate(timeout=TIMEOUT_SECONDS + seconds)[0]) for process in running]
    finally:
        for process in running:
            process.kill()
            process.wait()


def transfer(mine: str, following: str, start: float, seconds: float) -> float:
    """Send to the next host until the end, and count what comes from the one before; bytes per second."""
    with socket.create_server((mine, PORT)) as server, _connect(following, start) as outgoing:
        server.settimeout(TIMEOUT_SECONDS)
        incoming, _ = server.accept()
        time.sleep(max(0.0, start - time.time()))
        end = time.monotonic() + SETTLE_SECONDS + seconds
        # Goes on a little so that no link idles while another host still measures.
        sender = threading.Thread(target=_send, args=(outgoing, end + SETTLE_SECONDS))
        sender.start()
        with incoming:
            rate = _count(incoming, end - seconds, end)
            while _receive(incoming, bytearray(CHUNK_BYTES)):
                pass
        sender.join()
    return rate


def _connect(address: str, start: float) -> socket.socket:
    while True:
        try:
            return socket.create_connection((address, PORT), timeout=TIMEOUT_SECONDS)
        except ConnectionRefusedError:
            if time.time() > start + TIMEOUT_SECONDS:
                raise
            time.sleep(0.01)


def _send(outgoing: socket.socket, end: float) -> None:
    file = os.memfd_create("payload")
    os.ftruncate(file, CHUNK_BYTES)
    outgoing.settimeout(None)
    while time.monotonic() < end:
        os.sendfile(outgoing.fileno(), file, 0, CHUNK_BYTES)
    outgoing.shutdown(socket.SHUT_WR)


def _count(incoming: socket.socket, begin: float, end: float) -> float:
    """The rate between the first bytes after `begin` and the last before `end`."""
    buffer = bytearray(CHUNK_BYTES)
    first = 0.0
    total = 0
    while True:
        received = _receive(incoming, buffer)
        now = time.monotonic()
        if now >= end or not received:
            return total / (now - first) if first else 0.0
        if first:
            total += received
        elif now >= begin:
            first = now


def _receive(incoming: socket.socket, buffer: bytearray) -> int:
    return incoming.recv_into(buffer, len(buffer), socket.MSG_TRUNC)


def _describe(result: dict[str, Any]) -> str:
    times = len(result["attempts"])
    return (
        f"{result['hosts']} hosts at {result['megabits']:5} Mbit/s: {result['lowest']:.4f} to {result['highest']:.4f} "
        f"of the rate (load {result['load']:.1f}, {times} {'attempt' if times == 1 else 'attempts'})"
    )


if __name__ == "__main__":
    sys.exit(main())
