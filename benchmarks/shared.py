"""The shared parts of benchmarks: a command line, progress on stderr, one JSON document on stdout, and ranks."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn, TypeAlias

from autosync.errors import AutosyncError

Process: TypeAlias = subprocess.Popen[bytes]


def parser_of(doc: str | None) -> argparse.ArgumentParser:
    """Return a parser whose help is the module's docstring."""
    return argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)


def tell(words: object) -> None:
    """Report progress to the user on stderr."""
    print(words, file=sys.stderr, flush=True)


def report(document: Mapping[str, Any], *, holds: object = True) -> int:
    """Print the result; return the exit code."""
    print(json.dumps(document, indent=2))
    return 0 if holds else 1


def run(main: Callable[[], int]) -> NoReturn:
    """Run a benchmark from the command line. SIGTERM ends it as Ctrl-C does, so that no rank or testbed is left."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        sys.exit(main())
    except AutosyncError as error:
        sys.exit(f"error: {error}")


def this_machine() -> dict[str, Any]:
    """Return what a document says of the machine: the cores that may be used, and how busy it was."""
    return {"num_cores": len(os.sched_getaffinity(0)), "load": os.getloadavg()}


def start_ranks(*command: object, environment: Mapping[str, str] | None = None, **options: Any) -> Process:
    """Start a script whose ranks are on this machine, in its own process group; `end_ranks` ends it."""
    settings = {"GLOO_SOCKET_IFNAME": "lo", **os.environ, "OMP_NUM_THREADS": "1", "PYTHONSAFEPATH": "1"}
    return subprocess.Popen(
        [sys.executable, *map(str, command)],
        env={**settings, **(environment or {})},
        stdin=subprocess.DEVNULL,
        stdout=sys.stderr,
        start_new_session=True,
        **options,
    )


def end_ranks(process: Process) -> None:
    """End a script and all its ranks."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def fork_ranks(bodies: Sequence[Callable[[], None]]) -> None:
    """Run each body in a fork and wait for all. Ranks that import torch themselves would take seconds to start."""
    children = []
    for body in bodies:
        child = os.fork()
        if not child:
            code = 1
            try:
                body()
                code = 0
            except BaseException:
                traceback.print_exc()
                raise
            finally:
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(code)
        children.append(child)
    for child in children:
        os.waitpid(child, 0)
