"""Runs Python scripts and modules in forks of this process, which has imported torch: `forks_main.py DESCRIPTOR`.

A message on the socket of that descriptor is a request: the command, the environment and the folder, with four more
descriptors. On the first, the answers are the process's id and, once it has ended, its status; the others become its
standard input, output and errors. See `tests/helpers/forks.py`.
"""

import atexit
import gc
import json
import os
import runpy
import signal
import socket
import sys
import threading
import traceback
from collections.abc import Sequence

import torch
import torch._dynamo  # DDP and optimizers import it late, so that each process would do so

import autosync.runtime.parallelize
import autosync.runtime.serving.serve
import autosync.trials.staged_training
import autosync.trials.training

MAX_REQUEST_BYTES = 1 << 20


def run(arguments: Sequence[str]) -> int:
    """Run what Python would run with these arguments; return its exit code."""
    first, *others = (one for one in arguments if one != "-P")
    try:
        if first == "-m":
            module, *others = others
            sys.argv = [module, *others]
            runpy.run_module(module, run_name="__main__", alter_sys=True)
        else:
            sys.argv = [first, *others]
            runpy.run_path(first, run_name="__main__")
    except SystemExit as end:
        if end.code is None or isinstance(end.code, int):
            return end.code or 0
        sys.stderr.write(f"{end.code}\n")
        return 1
    except BaseException:  # noqa: BLE001 - as the interpreter does it
        traceback.print_exc()
        return 1
    return 0


def be(request: dict[str, object], streams: Sequence[int]) -> None:
    """Become the process that was asked for; do not return."""
    code = 70
    try:
        if request["start_new_session"]:
            os.setsid()
        for target, descriptor in enumerate(streams):
            os.dup2(descriptor, target)
        os.closerange(3, max(streams) + 1)
        os.environ.clear()
        os.environ.update(request["environment"])  # type: ignore[call-overload]
        os.chdir(str(request["folder"]))
        code = run(request["arguments"])  # type: ignore[arg-type]
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def keep(request: dict[str, object], descriptors: Sequence[int]) -> None:
    """Start the process, and tell when it has ended and how. This is its parent; it does not return."""
    # It is in no group that is sent Ctrl-C or is ended.
    os.setsid()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    teller, *streams = descriptors
    process = os.fork()
    if not process:
        be(request, streams)
    for descriptor in streams:
        os.close(descriptor)
    with socket.socket(fileno=teller) as answers:
        answers.send(json.dumps(process).encode())
        _, status = os.waitpid(process, 0)
        answers.send(json.dumps(os.waitstatus_to_exitcode(status)).encode())
    os._exit(0)


def main(descriptor: int) -> None:
    assert torch.get_num_threads() == 1, "a fork of a process with threads may hang"
    gc.collect()
    gc.freeze()
    # Keepers that have ended are waited for by the system.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    with socket.socket(fileno=descriptor) as requests:
        while True:
            message, descriptors, _, _ = socket.recv_fds(requests, MAX_REQUEST_BYTES, 4)
            if not message:
                return
            if not os.fork():
                requests.close()
                keep(json.loads(message), descriptors)
            for one in descriptors:
                os.close(one)


if __name__ == "__main__":
    assert autosync
    main(int(sys.argv[1]))
