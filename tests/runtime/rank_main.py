"""The ranks of a test: `python rank_main.py FOLDER NUM_RANKS` runs the cases in FOLDER/cases.json on each of them.

The ranks are forks of this process, which has imported torch and the cases: that takes seconds. What came of the cases
goes to FOLDER/answers-RANK.json. A case is a function of `rank_cases.py`, or `FILE:FUNCTION` for one of another file
here, with its arguments. Its answer is what it returned, or what it raised.
"""

import datetime as dt
import importlib.util
import json
import os
import sys
import threading
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
import torch._dynamo  # DDP and optimizers import it late, so that each rank would do so
import torch.distributed as dist


def load(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


def place_of(name: str) -> tuple[str, str]:
    """A case's file and function."""
    file, _, function = name.rpartition(":")
    return file or "rank_cases", function


def load_files(cases: list[Any]) -> None:
    # Cases import one another, and the helpers of all tests.
    sys.path.insert(0, str(Path(__file__).parent))
    sys.path.append(str(Path(__file__).parents[2]))
    for file in dict.fromkeys(["rank_cases", *(place_of(name)[0] for name, _ in cases)]):
        if file not in sys.modules:
            load(Path(__file__).with_name(f"{file}.py"))


def run_rank(folder: Path, rank: int, num_ranks: int, cases: list[Any]) -> None:
    store = dist.FileStore(str(folder / "rendezvous"), num_ranks)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=num_ranks, timeout=dt.timedelta(seconds=60))
    answers: list[Any] = []
    for name, arguments in cases:
        file, function = place_of(name)
        try:
            answer = getattr(sys.modules[file], function)(**arguments)
        except Exception as error:  # noqa: BLE001 - whatever it is, the test must hear of it
            answer = f"{type(error).__name__}: {error}"
        left = [thread.name for thread in threading.enumerate() if thread.name.startswith("autosync-")]
        answers.append(answer if not left else f"{answer}; threads left: {left}")
        (folder / f"answers-{rank}.json").write_text(json.dumps(answers))


def main(folder: Path, num_ranks: int) -> None:
    cases = json.loads((folder / "cases.json").read_text())
    load_files(cases)
    children = []
    for rank in range(num_ranks):
        child = os.fork()
        if not child:
            try:
                # Before the fork it would leave a pool of threads behind that is made anew by whoever comes first.
                torch.set_num_threads(1)
                run_rank(folder, rank, num_ranks, cases)
            finally:
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(0)
        children.append(child)
    for child in children:
        os.waitpid(child, 0)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
