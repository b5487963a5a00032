"""Readers that misbehave, each in another way. `test_fuzz_files.py` runs them instead of the fuzzer's worker."""

from __future__ import annotations

import os
import pickle
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

from autosync.errors import InputError, OperationError

sys.path.append(str(Path(__file__).parents[2]))
from benchmarks.fuzz import kinds, worker


def raises(_box: Path) -> str:
    return str({}["nothing"])


def refuses(_box: Path) -> str:
    raise InputError("wrong", rule="right")


def cannot(_box: Path) -> str:
    raise OperationError("it cannot be done")


def exits(_box: Path) -> str:
    sys.exit(2)


def runs_code(box: Path) -> str:
    (box / "task.py").write_text("x = 1\n", encoding="utf-8")
    exec(compile("x = 1\n", str(box / "task.py"), "exec"), {})
    return "taken"


def makes_the_canary(_box: Path) -> str:
    Path(os.environ[worker.CANARY]).touch()
    return "taken"


def unpickles(_box: Path) -> str:
    pickle.loads(pickle.dumps(os.getcwd))
    return "taken"


def starts_a_program(_box: Path) -> str:
    subprocess.run(["true"], check=True)
    return "taken"


def changes_another_file(box: Path) -> str:
    (box.parent / "victim").write_text("mine", encoding="utf-8")
    return "taken"


def changes_it_through_a_link(box: Path) -> str:
    (box / "link").symlink_to(box.parent / "victim")
    with (box / "link").open("a", encoding="utf-8"):
        return "taken"


def takes_memory(_box: Path) -> str:
    return str(len(b"x" * 400_000_000))


def takes_time(_box: Path) -> str:
    end = time.process_time() + 0.6
    while time.process_time() < end:
        pass
    return "taken"


def hangs(box: Path) -> str:
    os.mkfifo(box / "pipe")
    # The worker looks every few seconds: here it looks sooner.
    signal.setitimer(signal.ITIMER_REAL, 0.2, 0.2)
    try:
        return (box / "pipe").read_text(encoding="utf-8")
    except OSError:
        return "refused"


def has_a_thread_that_dies(_box: Path) -> str:
    def die() -> None:
        raise LookupError("dead")

    thread = threading.Thread(target=die)
    thread.start()
    thread.join()
    return "taken"


def ends_the_process(_box: Path) -> str:
    os.abort()


def takes(_box: Path) -> str:
    return "taken"


READERS: tuple[Callable[[Path], str], ...] = (
    raises,
    refuses,
    cannot,
    exits,
    runs_code,
    makes_the_canary,
    unpickles,
    starts_a_program,
    changes_another_file,
    changes_it_through_a_link,
    takes_memory,
    takes_time,
    hangs,
    has_a_thread_that_dies,
    ends_the_process,
    takes,
)


def maker(_kind: str, _originals: Path) -> kinds.Maker:
    def make(_rng: random.Random, box: Path) -> kinds.Attempt:
        return lambda: READERS[int(box.name.removeprefix("box-"))](box)

    return make


if __name__ == "__main__":
    kinds.KINDS["bad"] = kinds.Kind(name="bad", place="__main__:maker", weight=1, warm_up=0)
    worker.MAX_SECONDS = 0.3
    sys.exit(worker.main())
