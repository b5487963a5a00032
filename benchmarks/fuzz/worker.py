"""The process that gives hostile inputs to readers, under limits: `fuzz_files.py` starts it and reads its answers.

It takes inputs of one kind in succession, and answers each with a line of JSON. An input fails if its reader raises
anything but an error of autosync, needs more than 5 s of processor time, does nothing for 15 s, makes the process grow
by more than 300 MB at any moment, runs code, starts a program, opens a connection, or writes outside the input's own
folder.
"""

from __future__ import annotations

import argparse
import contextlib
import faulthandler
import gc
import json
import logging
import os
import random
import re
import resource
import shutil
import signal
import socket
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

from autosync.errors import AutosyncError

sys.path.append(str(Path(__file__).parents[2]))
from benchmarks.fuzz.kinds import KINDS, Attempt, Failure

MAX_BYTES = 300 * 10**6
MAX_SECONDS = 5.0
"""The limit of processor time, so that other work on the machine does not count."""
LOOK_SECONDS = 5
"""The seconds between checks whether a reader still works; a reader that hangs does nothing between checks."""
NUM_LOOKS = 3
_ROOM_BYTES = 2 * 2**30
"""The address space that a reader may add; one that needs more fails alone, before the machine does."""

CANARY = "AUTOSYNC_FUZZ_CANARY"
"""The name of the environment variable with the path of a file that code in an input would create."""


class HangError(BaseException):
    """An input took too long. It is a BaseException, so that no reader catches it."""


class Guard:
    """Observes the process while it is watched: code, programs, connections, and files outside of a folder."""

    def __init__(self) -> None:
        self._folder: Path | None = None
        self._may_start = self._may_run = False
        self.seen: list[str] = []
        sys.addaudithook(self._hear)

    @contextmanager
    def watching(self, folder: Path, *, may_start: bool, may_run: bool) -> Iterator[None]:
        self._may_start, self._may_run = may_start, may_run
        self.seen = []
        self._folder = folder
        try:
            yield
        finally:
            self._folder = None

    def _hear(self, event: str, arguments: tuple[Any, ...]) -> None:
        if self._folder is None or event not in _WATCHED:
            return
        what = self._what(event, arguments, str(self._folder))
        if what:
            self.seen.append(what)

    def _what(self, event: str, arguments: tuple[Any, ...], folder: str) -> str:
        match event:
            case "exec":
                file = getattr(arguments[0], "co_filename", "")
                return f"code of {file} was run" if file.startswith(folder) and not self._may_run else ""
            case "open":
                name, mode, flags = arguments
                writes = isinstance(flags, int) and flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC)
                return self._outside(name, "was opened to write") if writes or set(mode or "") & set("wax+") else ""
            case "pickle.find_class":
                return f"pickle asked for {arguments[0]}.{arguments[1]}"
            case "sqlite3.connect":
                return self._outside(arguments[0], "was opened as a database")
            case "socket.connect" | "socket.getaddrinfo":
                place = arguments[1] if event == "socket.connect" else arguments[0]
                is_here = isinstance(place, str | bytes) or (isinstance(place, tuple) and place[0] == "127.0.0.1")
                return "" if is_here and event == "socket.connect" else f"{event} {place!r}"
            case "os.remove" | "os.rename" | "os.rmdir" | "os.mkdir" | "os.truncate" | "os.chmod" | "os.link":
                return self._outside(arguments[0], f"{event} was called")
        return "" if self._may_start else f"a program was started: {event} {arguments!r}"[:300]

    def _outside(self, name: object, what: str) -> str:
        assert self._folder is not None, "it is watched"
        if not isinstance(name, str | bytes | os.PathLike):
            return ""
        path = os.path.realpath(os.fsdecode(name))
        if path == str(self._folder) or path.startswith(
            (f"{self._folder}/", "/dev/null", "/proc/self/fd", f"/proc/{os.getpid()}/")
        ):
            return ""
        return f"{path} {what}"


_WATCHED = frozenset(
    {
        "exec",
        "open",
        "pickle.find_class",
        "sqlite3.connect",
        "socket.connect",
        "socket.getaddrinfo",
        "os.remove",
        "os.rename",
        "os.rmdir",
        "os.mkdir",
        "os.truncate",
        "os.chmod",
        "os.link",
        "os.system",
        "os.exec",
        "os.posix_spawn",
        "os.spawn",
        "os.fork",
        "os.forkpty",
        "pty.spawn",
        "subprocess.Popen",
    }
)


@contextmanager
def limited_time() -> Iterator[None]:
    """Raise `HangError` in code that takes too much processor time, or does nothing for too long.

    The limit is in processor time, because on a busy machine a reader may wait long for its turn.
    """
    began = time.process_time()
    looks = [began] * NUM_LOOKS

    def look(_signal: int, _frame: object) -> None:
        now = time.process_time()
        if now - began > 2 * MAX_SECONDS:
            raise HangError(f"no end after {now - began:.1f} s of processor time")
        if now - looks[0] < 0.01:
            raise HangError(f"nothing was done for {LOOK_SECONDS * NUM_LOOKS} s")
        looks[:] = [*looks[1:], now]

    signal.signal(signal.SIGALRM, look)
    signal.setitimer(signal.ITIMER_REAL, LOOK_SECONDS, LOOK_SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


class Memory:
    """Measures by how much the process's peak memory exceeds its memory at the last `begin`."""

    def __init__(self) -> None:
        self._before = 0

    def begin(self) -> None:
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
        self._before = self._read("VmRSS")

    def grown(self) -> int:
        return max(0, self._read("VmHWM") - self._before)

    def _read(self, field: str) -> int:
        text = Path("/proc/self/status").read_text(encoding="ascii")
        return int(text.partition(f"{field}:")[2].split()[0]) * 1024


class Worker:
    """Tries inputs of one kind."""

    def __init__(self, kind: str, seed: str, root: Path, *, warm_up: int | None = None) -> None:
        self._kind = KINDS[kind]
        self._name = f"{seed} {kind}"
        self._root = root.resolve()
        self._guard, self._memory = Guard(), Memory()
        self._thread_errors: list[str] = []
        os.environ[CANARY] = str(self._root / "canary")
        originals = self._root / "originals"
        originals.mkdir()
        self._attempt = self._kind.open(originals)
        self._victim = self._root / "victim"
        self._warm_up(self._kind.warm_up if warm_up is None else warm_up)

    def _warm_up(self, count: int) -> None:
        """Try some inputs, so that imports and compilation, which happen once, count for no input."""
        for number in range(count):
            box = self._box(f"warm-{number}")
            attempt = self._attempt(random.Random(f"warm {number}"), box)
            # Their outcomes do not count here.
            with contextlib.suppress(Exception, SystemExit, HangError), limited_time():
                attempt()
            self._clear(box)

    def _box(self, name: str) -> Path:
        """Return a folder for one input, beside a file that the input must not touch."""
        self._victim.unlink(missing_ok=True)
        self._victim.write_text("not\nyours", encoding="utf-8")
        box = self._root / f"box-{name}"
        box.mkdir()
        os.chdir(box)
        return box

    def _clear(self, box: Path) -> None:
        os.chdir(self._root)
        shutil.rmtree(box, ignore_errors=True)

    def answer(self, number: int, *, keep: bool = False) -> dict[str, Any]:
        """Return the outcome of an input."""
        box = self._box(str(number))
        attempt = self._attempt(random.Random(f"{self._name} {number}"), box)
        gc.collect(0)
        self._thread_errors.clear()
        began = time.process_time()
        self._memory.begin()
        found: dict[str, Any] = {"number": number}
        try:
            kind = self._kind
            with self._guard.watching(box, may_start=kind.may_start, may_run=kind.may_run):
                found["outcome"] = self._read(attempt)
        except Failure as failure:
            found["why"] = str(failure)[:2000]
        seconds, grown = time.process_time() - began, self._memory.grown()
        found |= {"seconds": round(seconds, 3), "bytes": grown}
        why = self._why(seconds, grown)
        if why and "why" not in found:
            found["why"] = why
        if not keep:
            self._clear(box)
        return found

    def _read(self, attempt: Attempt) -> str:
        try:
            with limited_time():
                return attempt()
        except Failure:
            raise
        except AutosyncError:
            return "refused"
        except HangError as error:
            raise Failure(f"hang: {error}: {_last_line(error)}") from error
        except MemoryError as error:
            raise Failure(f"out of memory: {_last_line(error)}") from error
        except BaseException as error:
            raise Failure(f"raised {type(error).__name__}: {error}: {_last_line(error)}") from error

    def _why(self, seconds: float, grown: int) -> str:
        if Path(os.environ[CANARY]).exists():
            Path(os.environ[CANARY]).unlink()
            return "code that the input holds was run"
        if self._guard.seen:
            return "; ".join(dict.fromkeys(self._guard.seen))[:1000]
        if self._victim.read_text(encoding="utf-8") != "not\nyours":
            return "a file that is none of the input's business was changed"
        if self._thread_errors:
            return f"a thread died: {self._thread_errors[0]}"
        if grown > MAX_BYTES:
            return f"{grown / 1e6:.0f} MB of memory"
        if seconds > MAX_SECONDS:
            return f"{seconds:.1f} s of processor time"
        return ""

    def hear_of_thread(self, arguments: threading.ExceptHookArgs) -> None:
        """Record the error of a thread that died; Python calls this."""
        self._thread_errors.append(f"{arguments.exc_type.__name__}: {arguments.exc_value}")


def _last_line(error: BaseException) -> str:
    """Return the last places in our own code that an error passed."""
    frames = traceback.extract_tb(error.__traceback__)
    ours = [frame for frame in frames if re.search(r"/(autosync|cli|datasets|simulators)/", frame.filename)]
    if not ours:
        return ""
    return " < ".join(f"{Path(frame.filename).name}:{frame.lineno} {frame.name}" for frame in reversed(ours[-3:]))


def _limited() -> None:
    """Limit the address space to the current size plus some room."""
    used = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + _ROOM_BYTES, used + _ROOM_BYTES))


def main() -> int:
    """Answer inputs; run by `fuzz_files.py`."""
    parser = argparse.ArgumentParser()
    parser.add_argument("kind")
    parser.add_argument("seed")
    parser.add_argument("numbers", type=json.loads, help="the numbers of the inputs")
    parser.add_argument("--keep", type=Path, help="leave the inputs in this folder")
    parser.add_argument("--warm-up", type=int, help="try so many inputs before those that count")
    options = parser.parse_args()
    # Answers go to a descriptor that tried code does not know.
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    faulthandler.enable()
    sys.dont_write_bytecode = True
    # A warning would appear on the user's stderr, so here it is a failure.
    warnings.simplefilter("error")
    logging.disable(logging.CRITICAL)
    socket.setdefaulttimeout(10)
    with TemporaryDirectory() as temporary:
        root = options.keep or Path(temporary)
        worker = Worker(options.kind, options.seed, root, warm_up=options.warm_up)
        threading.excepthook = worker.hear_of_thread
        _limited()
        for number in options.numbers:
            answers.write(json.dumps(worker.answer(number, keep=options.keep is not None)) + "\n")
            answers.flush()
        answers.close()
        # A reader may have left threads (such as torch's) running, for which this process must not wait.
        shutil.rmtree(temporary, ignore_errors=True)
        os._exit(0)


if __name__ == "__main__":
    sys.exit(main())
