"""Compiles the functions of all simulators into numba's cache, on several processors.

    python -P -m autosync.simulators.kernel_compiler

The command line starts it at the first prediction on a machine (`compile_notice`). At its end it leaves a mark beside
the cache: while there is none, functions may have to be compiled.
"""

from __future__ import annotations

import fcntl
import hashlib
import multiprocessing
import os
import platform
import sys
from collections.abc import Sequence
from multiprocessing.queues import SimpleQueue
from pathlib import Path

from autosync import first_calls
from autosync.compiled_cache import MARK, STAMP, digest_of
from autosync.errors import OperationError
from autosync.first_calls import FIRST_CALLS, CompiledFunction, Compiler
from autosync.plan.compiled import jit as plan_jit
from autosync.simulators import jit

# With -P, the package is found where it is installed, and not in the current folder.
COMMAND = (sys.executable, "-P", "-m", "autosync.simulators.kernel_compiler")
_SIMULATORS = Path(__file__).parent
_MOST_PROCESSES = 4
_BEHIND = "--behind-others"
_NICE = 5


def compiler_if_needed(*, meanwhile: bool) -> Compiler | None:
    """Start to compile all functions; None if they are in the cache, or if nothing may be kept.

    With `meanwhile`, this process goes on, and comes first where processors are scarce.
    """
    if not is_kept() or _mark().is_file():
        return None
    return first_calls.start_compiler((*COMMAND, _BEHIND) if meanwhile else COMMAND)


def is_kept() -> bool:
    """Whether compiled functions are kept."""
    return jit.KEPT.is_enabled and plan_jit.KEPT.is_enabled


def compile_all() -> None:
    """Compile all functions. If another process does so already, wait for it."""
    mark = _mark()
    mark.parent.mkdir(parents=True, exist_ok=True)
    with mark.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not mark.is_file():
            _compile(_recorded())
            mark.touch()


def _recorded() -> list[CompiledFunction]:
    """Return all functions that Python calls, the largest first: a rehearsal calls each of them."""
    from autosync.simulators.learned.rehearsal import rehearsed

    with FIRST_CALLS.recording() as functions:
        # Not its result of before, if there is one.
        rehearsed.__wrapped__()
    return sorted(functions, key=lambda one: -one.code_size)


def _compile(functions: Sequence[CompiledFunction]) -> None:
    """Compile functions in several processes; each takes the next one that is left."""
    # Processes that are forked know what was recorded.
    context = multiprocessing.get_context("fork")
    num_processes = min(_MOST_PROCESSES, len(os.sched_getaffinity(0)))
    left = context.SimpleQueue()
    for place in (*range(len(functions)), *[None] * num_processes):
        left.put(place)
    processes = [context.Process(target=_compile_next, args=(functions, left)) for _ in range(num_processes)]
    for one in processes:
        one.start()
    for one in processes:
        one.join()
        if one.exitcode:
            raise OperationError(f"a process that compiles simulators ended with {one.exitcode}")


def _compile_next(functions: Sequence[CompiledFunction], left: SimpleQueue[int | None]) -> None:
    while (place := left.get()) is not None:
        functions[place].compile()


def _mark() -> Path:
    """Return the file that says that all functions are compiled from these sources, by this numba, for this machine."""
    from numba import __version__
    from numba.core.registry import cpu_target

    folders = [_SIMULATORS, Path(str(plan_jit.__file__)).parent]
    # numba also compiles again after a change of a file's time, and after its cache was dropped (and stamped again).
    files = [file for one in folders for file in (*sorted(one.rglob("*.py")), *one.glob(f"__pycache__/{STAMP}"))]
    times = [(file.stat().st_mtime, file.stat().st_size) for file in files]
    machine = cpu_target.target_context.codegen().magic_tuple()
    told = repr(([digest_of(one) for one in folders], times, __version__, platform.python_version(), machine))
    folder = jit.KEPT.folder or _SIMULATORS / "__pycache__"
    return folder / f"{MARK}{hashlib.sha256(told.encode()).hexdigest()[:16]}"


if __name__ == "__main__":
    if _BEHIND in sys.argv:
        os.nice(_NICE)
    compile_all()
