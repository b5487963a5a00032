"""The ranks of a test of connections: `python wire_main.py FOLDER NUM_RANKS CASE ...` runs the cases on each of them.

The ranks are forks of this process, for to import torch takes each of them seconds. A case is a function of
`links_cases.py`, `exchange_cases.py` or `collectives_cases.py` that is given the rank's connections; what it returned
or raised goes to FOLDER/answers-RANK.json.
"""

import json
import os
import sys
import traceback
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

sys.path.insert(0, str(Path(__file__).parent))
sys.path.append(str(Path(__file__).parents[2]))
import collectives_cases
import exchange_cases
import links_cases
from wire_rank import Here

CASES = {**vars(links_cases), **vars(exchange_cases), **vars(collectives_cases)}


def run_rank(folder: Path, rank: int, num_ranks: int, cases: list[str]) -> None:
    here = Here(dist.FileStore(str(folder / "rendezvous"), num_ranks), rank, num_ranks)
    answers: list[Any] = []
    for name in cases:
        try:
            answer = CASES[name](here)
        except Exception as error:  # noqa: BLE001 - whatever it is, the test must hear of it
            traceback.print_exc()
            answer = f"{type(error).__name__}: {error}"
        answers.append(answer)
        (folder / f"answers-{rank}.json").write_text(json.dumps(answers))


def main(folder: Path, num_ranks: int, cases: list[str]) -> None:
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
    main(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3:])
