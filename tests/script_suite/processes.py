"""Runs a command with a time limit, and ends every process that it has started."""

import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from autosync.launchers.agent import end_descendants
from autosync.launchers.rank_process import SET_SUBREAPER, prctl

PARTING_SECONDS = 20.0
"""The time that a command over its limit has to end its own ranks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """How a command has ended. The code is None if it was over its limit; `printed` is its standard output alone."""

    code: int | None
    printed: str
    output: str
    seconds: float


def adopt_orphans() -> None:
    """Have processes whose parents end become children of this one, so that none can stay behind."""
    prctl(SET_SUBREAPER, 1)


def run(command: Sequence[str | Path], *, folder: Path, environment: Mapping[str, str], limit_seconds: float) -> Ended:
    """Run a command in a folder, where its output is kept as `stdout` and `stderr`, and end what it leaves."""
    folder.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    # Files, not pipes: a process that is left behind would hold a pipe open.
    with (folder / "stdout").open("wb") as out, (folder / "stderr").open("wb") as errors:
        process = subprocess.Popen(
            list(map(str, command)),
            cwd=folder,
            env={**os.environ, **environment},
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=errors,
            start_new_session=True,
        )
        code: int | None = None
        try:
            code = process.wait(limit_seconds)
        except subprocess.TimeoutExpired:
            _ask_to_end(process)
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
            end_descendants()
    printed = (folder / "stdout").read_text(encoding="utf-8", errors="replace")
    return Ended(
        code=code,
        printed=printed,
        output=printed + (folder / "stderr").read_text(encoding="utf-8", errors="replace"),
        seconds=time.monotonic() - began,
    )


def _ask_to_end(process: subprocess.Popen[bytes]) -> None:
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(PARTING_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
