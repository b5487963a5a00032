"""Runs scripts one after the other. Their ranks are forks of this process, because it has already imported torch.

Each input line is a run: `script`, `arguments`, `bundles` (none: the script runs as `python` runs it, under stock DDP),
`folder` and `key`. The output of a rank goes to `KEY-RANK.log` in the folder. The answer is a line of exit codes.
"""

import atexit
import json
import os
import signal
import socket
import sys
import time
import traceback
from pathlib import Path
from typing import Any

import torch
import torch._dynamo
import torch._functorch.aot_autograd

import autosync.script.door
from autosync import run as door_main
from autosync.launchers.environment import bundle_variable
from autosync.script.program import MainProgram

NUM_RANKS = 2
LIMIT_SECONDS = 40.0


def _train(run: dict[str, Any], rank: int, port: int, folder: Path) -> int:
    """In a process of its own."""
    log = os.open(folder / f"{run['key']}-{rank}.log", os.O_CREAT | os.O_WRONLY | os.O_TRUNC)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.environ.update({
        "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(NUM_RANKS), "LOCAL_WORLD_SIZE": str(NUM_RANKS),
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "GLOO_SOCKET_IFNAME": "lo",
    })  # fmt: skip
    for number, path in enumerate(run["bundles"]):
        os.environ[bundle_variable(number)] = path
    # What `python -P -m autosync.run` has.
    arguments = [run["script"], *run["arguments"]]
    try:
        if run["bundles"]:
            return door_main.main(arguments)
        MainProgram(arguments).run()
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:  # noqa: BLE001 - the test reads it
        traceback.print_exc()
        return 1
    return 0


def _forked(run: dict[str, Any], rank: int, port: int, folder: Path) -> int:
    pid = os.fork()
    if pid:
        return pid
    code = 70
    try:
        code = _train(run, rank, port, folder)
        atexit._run_exitfuncs()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def _ended(pid: int, limit: float) -> int:
    while time.monotonic() < limit:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.01)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return 124


def main() -> None:
    torch.set_num_threads(1)
    assert autosync.script.door.Door, "what is imported here need not be in each process"
    for line in sys.stdin:
        run = json.loads(line)
        port = _free_port()
        pids = [_forked(run, rank, port, Path(run["folder"])) for rank in range(NUM_RANKS)]
        limit = time.monotonic() + LIMIT_SECONDS
        sys.stdout.write(json.dumps([_ended(pid, limit) for pid in pids]) + "\n")
        sys.stdout.flush()


main()
