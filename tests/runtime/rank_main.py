"""One rank of a test: `python rank_main.py FOLDER` runs the cases in FOLDER/cases.json and says what came of each.

A case is a function of `rank_cases.py` with its arguments. Its answer is what it returned, or what it raised.
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
import torch.distributed as dist


def load(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


def main(folder: Path) -> None:
    rank, num_ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    torch.set_num_threads(1)
    store = dist.FileStore(str(folder / "rendezvous"), num_ranks)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=num_ranks, timeout=dt.timedelta(seconds=60))
    cases = load(Path(__file__).with_name("rank_cases.py"))
    answers: list[Any] = []
    for name, arguments in json.loads((folder / "cases.json").read_text()):
        try:
            answer = getattr(cases, name)(**arguments)
        except Exception as error:  # noqa: BLE001 - whatever it is, the test must hear of it
            answer = f"{type(error).__name__}: {error}"
        left = [thread.name for thread in threading.enumerate() if thread.name == "autosync-engine"]
        answers.append(answer if not left else f"{answer}; threads left: {left}")
        (folder / f"answers-{rank}.json").write_text(json.dumps(answers))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
    sys.stdout.flush()
    os._exit(0)
