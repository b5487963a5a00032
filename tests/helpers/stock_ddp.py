"""Trains a script under stock DDP on two ranks of this machine, as torchrun would start it."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

LIMIT_SECONDS = 280.0


def train_under_stock_ddp(script: Path, *words: object) -> None:
    """Run a script with these words to its end on both ranks."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    common = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "GLOO_SOCKET_IFNAME": "lo"}
    started = [
        subprocess.Popen(
            (sys.executable, script, *map(str, words)),
            env={**os.environ, **common, "RANK": str(rank), "OMP_NUM_THREADS": "1"},
            stdout=subprocess.DEVNULL,
        )
        for rank in range(2)
    ]
    try:
        codes = [one.wait(timeout=LIMIT_SECONDS) for one in started]
    finally:
        for one in started:
            one.kill()
            one.wait()
    assert codes == [0, 0]
