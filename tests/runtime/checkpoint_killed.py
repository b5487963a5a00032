"""A process that is killed while it saves: `python checkpoint_killed.py FOLDER` is killed at every line of saving.

What is in the folder afterwards is looked at each time; the answer is one JSON document: the steps that were found.
"""

import contextlib
import json
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import safetensors.torch
import torch

from autosync import jsonio
from autosync.runtime.checkpoints import folder
from autosync.runtime.checkpoints.collected import Collected, Sent
from autosync.runtime.checkpoints.folder import Saved
from autosync.runtime.checkpoints.rank_state import RankState, pack
from autosync.runtime.memory.kept_state import Held, Place

NUM_WORKERS = 2
_TRACED = {folder.__file__, jsonio.__file__}


@contextlib.contextmanager
def killed_at(line: int) -> Iterator[None]:
    """Kill this process when it is about to run the so-manieth line of saving."""
    left = [line]

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        if frame.f_code.co_filename not in _TRACED:
            return None
        if event == "line":
            if left[0] == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            left[0] -= 1
        return trace

    sys.settrace(trace)
    try:
        yield
    finally:
        sys.settrace(None)


def save(path: Path, step: int) -> None:
    """As the workers do it, with one number in all files."""
    version = folder.begin(path)
    files = []
    for rank in range(NUM_WORKERS):
        state = RankState(elements=[Held("residual", Place.whole("w", (3,)), torch.full((3,), float(step)))])
        files.append(folder.write_file(path, version, rank, pack(state)))
    folder.commit(path, saved(version, step, files))


def saved(version: str, step: int, files: list[folder.FileFacts]) -> Saved:
    return Saved(
        autosync="1",
        torch="2",
        model="m",
        model_fingerprint="f",
        strategy_id="s",
        plan_id="p",
        num_workers=len(files),
        step=step,
        optimizer="Adam",
        kept={"w": []},
        parameters={"w": "00"},
        folder=version,
        files=files,
    )


def found(path: Path) -> int:
    """The step of a checkpoint that is whole."""
    document = folder.read(path)
    sources = []
    for rank in range(NUM_WORKERS):
        folder.check_file(path, document, rank)
        sources.append(Sent(safetensors.torch.load_file(folder.path_of(path, document, rank))))
    collected = Collected(sources)
    for rank in range(NUM_WORKERS):
        assert collected.whole("residual", "w", torch.zeros(3), rank=rank).tolist() == [float(document.step)] * 3
    return document.step


def main(path: Path) -> None:
    save(path, 0)
    steps = []
    line, was_killed = 0, True
    while was_killed:
        child = os.fork()
        if not child:
            with killed_at(line):
                save(path, line + 1)
            os._exit(0)
        was_killed = os.WIFSIGNALED(os.waitpid(child, 0)[1])
        steps.append(found(path))
        line += 1
    left = sorted(entry.name for entry in path.iterdir())
    json.dump({"steps": steps, "left": left}, sys.stdout)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
