"""Measures how long the first prediction on a machine takes, on which nothing is compiled yet.

    python benchmarks/speed/first_prediction.py > out.json

Each case runs `autosync simulate` with an empty folder for numba's cache, waits until all functions are compiled, and
runs it again. Prints one JSON document: for each case the seconds of the first and of the later command (both with
their imports), the seconds until all is compiled, and what the first command told. Ends with 0 if no first command
took longer than `MAX_SECONDS`, and none predicted otherwise than the later one. 5 minutes on an idle machine.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parents[2]))
from autosync.specs.cluster_file import save_cluster
from benchmarks.shared import parser_of, report, run, tell
from benchmarks.speed.lowering_speed import hosts

MAX_SECONDS = 10.0
COMMAND = (sys.executable, "-c", "from autosync.cli.main import main; main()", "simulate", "--json")


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A strategy of a model on some hosts."""

    strategy: str
    model: str
    num_hosts: int


CASES = (
    Case(strategy="ddp", model="resnet50", num_hosts=8),
    Case(strategy="ps", model="resnet50", num_hosts=8),
    Case(strategy="ps_partitioned", model="resnet50", num_hosts=8),
    Case(strategy="ddp", model="resnet50", num_hosts=128),
    Case(strategy="ddp", model="bert_large", num_hosts=1024),
)


def measure(case: Case) -> dict[str, Any]:
    """Return the measurements of a case."""
    with tempfile.TemporaryDirectory() as folder:
        cluster, cache = Path(folder) / "cluster.yaml", Path(folder) / "cache"
        save_cluster(cluster, hosts(case.num_hosts))
        began = time.perf_counter()
        first, first_seconds, told = _simulate(case, cluster, cache)
        while not list(cache.rglob("compiled-????????????????")):
            time.sleep(0.1)
        compiled_seconds = time.perf_counter() - began
        later, later_seconds, _ = _simulate(case, cluster, cache)
    return {
        "strategy": case.strategy,
        "model": case.model,
        "num_hosts": case.num_hosts,
        "first_seconds": round(first_seconds, 1),
        "compiled_seconds": round(compiled_seconds, 1),
        "later_seconds": round(later_seconds, 1),
        "told": told,
        "is_same": first == later,
    }


def _simulate(case: Case, cluster: Path, cache: Path) -> tuple[Any, float, list[str]]:
    """Return what the command printed, its seconds, and its lines for the user."""
    command = (*COMMAND, case.strategy, "--model", case.model, "--cluster", str(cluster))
    began = time.perf_counter()
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(cache)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return json.loads(done.stdout), time.perf_counter() - began, done.stderr.splitlines()


def main() -> int:
    """Run from the command line."""
    parser_of(__doc__).parse_args()
    found = []
    for case in CASES:
        found.append(measure(case))
        tell(found[-1])
    holds = all(one["is_same"] and one["first_seconds"] <= MAX_SECONDS for one in found)
    return report({"max_seconds": MAX_SECONDS, "cases": found}, holds=holds)


if __name__ == "__main__":
    run(main)
