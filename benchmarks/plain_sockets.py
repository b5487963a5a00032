"""What a socket takes, and what its bytes cost: `python benchmarks/plain_sockets.py > sockets.json`, 2 minutes, alone.

Hosts of a testbed, plain sockets, nothing of the engine.

- *room*: a sender of whole messages may go on before they have left its link, for the rest is in its sockets. How much
  that is: the bytes of a message less what the link's share carries until the sender goes on. Messages that fit do so
  at once and show only that there was room for them, so the largest are what counts. Windows grow first.
- *cost*: processor time of the whole machine for each byte, both ends together, of a stream to another host, and of one
  within a host, which never sees a link.

The timeline knows both: `bytes_ahead` and `processor.per_byte` of `simulators/costs.py`.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import secrets
import socket
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from autosync.specs.cluster import ClusterSpec, Node
from autosync.testbed import Testbed, up

sys.path.insert(0, str(Path(__file__).parent))
from queue_waits import PORT, TIMEOUT_SECONDS, connect

MESSAGE_BYTES = (1_000_000, 2_000_000, 4_000_000, 8_000_000, 16_000_000)
NUM_RECEIVERS = (1, 3)
NUM_WARMUP, NUM_MESSAGES = 4, 12
PAUSE_SECONDS = 0.1
CHUNK_BYTES = 2**19
STREAMS = {"to another host": ("n1", 1_500), "within a host": ("n0", 16_000)}
LENGTH_BYTES = 8


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabits", type=int, nargs="+", default=(200, 500, 1000))
    parser.add_argument("--part", nargs="+", metavar="WORD", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.part:
        play(*options.part)
        return 0
    rooms = []
    for megabits, num_receivers in itertools.product(options.megabits, NUM_RECEIVERS):
        rooms += room(num_receivers, megabits)
        print(json.dumps(rooms[-1]), file=sys.stderr, flush=True)
    costs = [cost(name, host, count) for name, (host, count) in STREAMS.items()]
    print(json.dumps({"room": rooms, "cost": costs}, indent=2))
    return 0


def room(num_receivers: int, megabits: int) -> list[dict[str, Any]]:
    """What sockets take of messages of each length, one to each receiver at the same time."""
    rate = megabits * 125_000
    with _bed(num_receivers + 1, rate) as bed:
        addresses = [bed.address(f"n{one}") for one in range(1, num_receivers + 1)]
        receivers = [_begin(bed, f"n{one + 1}", "receive", address) for one, address in enumerate(addresses)]
        try:
            sender = _begin(bed, "n0", "send", ",".join(addresses))
            spent = json.loads(sender.communicate(timeout=10 * TIMEOUT_SECONDS)[0])
        finally:
            _end(receivers)
    found = []
    for num_bytes, seconds in zip(MESSAGE_BYTES, spent, strict=True):
        rooms = [num_bytes - one * rate / num_receivers for one in seconds[NUM_WARMUP:]]
        low, *_, high = statistics.quantiles(rooms, n=10)
        found.append(
            {
                "megabits": megabits,
                "receivers": num_receivers,
                "message_bytes": num_bytes,
                "room_bytes": {
                    "median": round(statistics.median(rooms)),
                    "tenth": round(low),
                    "ninetieth": round(high),
                },
            }
        )
    return found


def cost(name: str, sending: str, num_chunks: int) -> dict[str, Any]:
    """Processor time of a stream to host 0, as fast as a link of 500 Mbit/s or the processors let it."""
    with _bed(2, 62_500_000) as bed:
        receiver = _begin(bed, "n0", "receive", bed.address("n0"))
        sender = _begin(bed, sending, "stream", bed.address("n0"), str(num_chunks))
        try:
            used = json.loads(sender.communicate(timeout=10 * TIMEOUT_SECONDS)[0])
        finally:
            _end([receiver])
    return {"stream": name, "processor_seconds_per_byte": used / (num_chunks * CHUNK_BYTES)}


@contextmanager
def _bed(num_hosts: int, rate: int) -> Iterator[Testbed]:
    nodes = tuple(Node(name=f"n{i}", host=f"n{i}", bandwidth_out=rate, bandwidth_in=rate) for i in range(num_hosts))
    with up(ClusterSpec(name=f"sockets-{secrets.token_hex(4)}", nodes=nodes, launcher="testbed")) as bed:
        yield bed


def _begin(bed: Testbed, host: str, *words: str) -> subprocess.Popen[str]:
    command = [*bed.enter(host), "chrt", "--batch", "0", sys.executable, __file__, "--part", *words]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def _end(processes: Sequence[subprocess.Popen[str]]) -> None:
    for process in processes:
        process.kill()
        process.wait()


def play(role: str, address: str, amount: str = "0") -> None:
    """One host's part."""
    if role == "receive":
        receive(address)
    elif role == "send":
        print(json.dumps(send([connect(one) for one in address.split(",")])))
    else:
        print(json.dumps(stream(connect(address), int(amount))))


def receive(address: str) -> None:
    """Take messages, each after its length, and answer each."""
    with socket.create_server((address, PORT)) as server:
        server.settimeout(TIMEOUT_SECONDS)
        connection, _ = server.accept()
        buffer = bytearray(CHUNK_BYTES)
        while len(length := connection.recv(LENGTH_BYTES, socket.MSG_WAITALL)) == LENGTH_BYTES:
            left = int.from_bytes(length, "little")
            while left > 0:
                left -= connection.recv_into(buffer, min(left, CHUNK_BYTES))
            connection.sendall(b"x")


def send(connections: Sequence[socket.socket]) -> list[list[float]]:
    """For each length of messages after how long the sender could go on, the median over connections, each time."""
    return [[_send_once(connections, bytes(num_bytes)) for _ in range(NUM_MESSAGES)] for num_bytes in MESSAGE_BYTES]


def _send_once(connections: Sequence[socket.socket], message: bytes) -> float:
    begun, seconds = time.monotonic(), []

    def one(connection: socket.socket) -> None:
        connection.sendall(len(message).to_bytes(LENGTH_BYTES, "little") + message)
        seconds.append(time.monotonic() - begun)

    threads = [threading.Thread(target=one, args=(connection,)) for connection in connections]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for connection in connections:
        connection.recv(1)
    time.sleep(PAUSE_SECONDS)
    return statistics.median(seconds)


def stream(connection: socket.socket, num_chunks: int) -> float:
    """Processor seconds of all the machine while so many chunks go as one message."""
    connection.sendall((num_chunks * CHUNK_BYTES).to_bytes(LENGTH_BYTES, "little"))
    before, chunk = _busy_seconds(), bytes(CHUNK_BYTES)
    for _ in range(num_chunks):
        connection.sendall(chunk)
    connection.recv(1)
    return _busy_seconds() - before


def _busy_seconds() -> float:
    """User, nice, system and interrupts: of everybody, for it is the kernel that carries packets."""
    first_line, _, _ = Path("/proc/stat").read_text(encoding="ascii").partition("\n")
    user, nice, system, _, _, interrupts, soft = [int(one) for one in first_line.split()[1:8]]
    return (user + nice + system + interrupts + soft) / os.sysconf("SC_CLK_TCK")


if __name__ == "__main__":
    sys.exit(main())
