"""A server of a test: `python server_main.py FOLDER NODE` serves the bundles in FOLDER/served.json one after another.

What came of each goes to FOLDER/served-NODE.json: how many steps were done, or what was raised.
"""

import json
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from autosync.runtime.serving.serve import Server
from autosync.strategy.bundle import load_bundle


def main(folder: Path, node: str) -> None:
    torch.set_num_threads(1)
    store = dist.FileStore(str(folder / "rendezvous"), -1)
    answers: list[Any] = []
    for bundle in json.loads((folder / "served.json").read_text()):
        try:
            server = Server(load_bundle(bundle), node=node, timeout_seconds=20)
            server.train(store, server.await_workers(store))
            answers.append(server.num_steps)
        except Exception as error:  # noqa: BLE001 - whatever it is, the test must hear of it
            answers.append(f"{type(error).__name__}: {error}")
        (folder / f"served-{node}.json").write_text(json.dumps(answers))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
