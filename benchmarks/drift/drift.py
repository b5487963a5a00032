"""Cuts links of scripts that train: `python benchmarks/drift/drift.py > drift.json`.

Each case is a training of its own on four emulated hosts; README.md says what must hold.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Self

from autosync.specs.cluster import ClusterSpec
from autosync.specs.cluster_file import save_cluster
from autosync.testbed.live import Testbed, up

sys.path.append(str(Path(__file__).parents[2]))
from benchmarks.clusters import emulated
from benchmarks.shared import parser_of, report, run, tell

SCRIPT = Path(__file__).parent / "train.py"
MEGABITS = 400.0
NUM_HOSTS = 4
NUM_WATCHED = 500
MOST_STEPS = 50
MOST_SHARE = 0.03
LIMIT_SECONDS = 900.0
STUDY = "s"
_DRIFT = re.compile(r"^step (\d+): steps have become slower", re.MULTILINE)


class Tuning:
    """A tuning whose script goes on, and what it has written."""

    def __init__(self, folder: Path, cluster: ClusterSpec, *, num_steps: int, option: str) -> None:
        self.folder = folder
        save_cluster(folder / "cluster.yaml", cluster)
        self._output = (folder / "output").open("wb")
        words = (sys.executable, "-m", "autosync.cli", "tune", "--cluster", "cluster.yaml", "--study", STUDY, option)
        self.process = subprocess.Popen(
            [*words, "--", str(SCRIPT), "step", str(num_steps)],
            cwd=folder,
            stdout=self._output,
            stderr=subprocess.STDOUT,
            env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"},
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.terminate()
        self.process.wait()
        self._output.close()

    @property
    def text(self) -> str:
        return (self.folder / "output").read_text()

    @property
    def step(self) -> int:
        """The number of steps that the script has made."""
        return int((self.folder / "step").read_text() or 0)

    def wait_for(self, words: str, count: int = 1) -> None:
        """Wait until some words were written so many times."""
        deadline = time.monotonic() + LIMIT_SECONDS
        while self.text.count(words) < count:
            if self.process.poll() is not None or time.monotonic() > deadline:
                sys.exit(f"no {words!r} in\n{self.text}")
            time.sleep(0.1)

    def wait_for_step(self, step: int) -> None:
        """Wait until the script has made so many steps."""
        while self.step < step and self.process.poll() is None:
            time.sleep(0.05)

    def seconds_of(self, num_steps: int) -> float:
        """Wait for so many steps; return the seconds that each of them took."""
        first, begin = self.step, time.monotonic()
        self.wait_for_step(first + num_steps)
        return (time.monotonic() - begin) / (self.step - first)


@contextmanager
def tuned(cluster: ClusterSpec, option: str, *, num_steps: int = 100_000) -> Iterator[tuple[Tuning, Testbed]]:
    """Tune the script on the cluster's testbed; the block begins when the script goes on."""
    with (
        tempfile.TemporaryDirectory() as folder,
        up(cluster) as testbed,
        Tuning(Path(folder), cluster, num_steps=num_steps, option=option) as tuning,
    ):
        tuning.wait_for("tuning took")
        yield tuning, testbed


def undisturbed(cluster: ClusterSpec) -> dict[str, Any]:
    """Nothing happens to the links: return the drifts that were reported all the same, and the exit code, if any."""
    with tuned(cluster, "--keep-training") as (tuning, _):
        tuning.wait_for_step(tuning.step + NUM_WATCHED)
        return {
            "case": "undisturbed",
            "reported": _DRIFT.findall(tuning.text),
            "exit_code": tuning.process.poll(),
        }


def cut(cluster: ClusterSpec, number: int) -> dict[str, Any]:
    """A link is cut to half: return after how many steps it was reported."""
    with tuned(cluster, "--keep-training") as (tuning, testbed):
        tuning.wait_for_step(tuning.step + 7 * number)
        before = tuning.seconds_of(MOST_STEPS)
        node = cluster.nodes[number % NUM_HOSTS]
        _halve(testbed, node.name, node.bandwidth_out)
        at = tuning.step
        after = tuning.seconds_of(MOST_STEPS)
        # A report that comes too late says more than none.
        tuning.wait_for_step(at + 2 * MOST_STEPS)
        steps = [int(one) - at for one in _DRIFT.findall(tuning.text)]
        return {
            "case": "cut",
            "step_seconds": {"before": round(before, 4), "after": round(after, 4)},
            "steps": next((one for one in steps if one > 0), None),
            "false": min(steps, default=0) < 0,
        }


def retuned(cluster: ClusterSpec) -> dict[str, Any]:
    """A link is cut to half, and the script tuned again: return how the winner compares with that of a fresh study."""
    node = cluster.nodes[0]
    half = node.bandwidth_out / 2
    with tuned(cluster, "--retune") as (tuning, testbed):
        tuning.wait_for_step(tuning.step + 60)
        _halve(testbed, node.name, node.bandwidth_out)
        tuning.wait_for("tuning took", count=2)
        again = (tuning.folder / "autosync-studies" / f"{STUDY}-again-1" / "best.yaml").read_text()
    slower = replace(node, bandwidth_out=half, bandwidth_in=half)
    after = replace(cluster, name=f"{cluster.name}-cut", nodes=(slower, *cluster.nodes[1:]))
    with tuned(after, "--keep-training") as (tuning, _):
        fresh = (tuning.folder / "autosync-studies" / STUDY / "best.yaml").read_text()
        model = (tuning.folder / "autosync-studies" / STUDY / "model.yaml").read_text()
    return {"case": "retuned", **_compared(after, model, again=again, fresh=fresh)}


def _compared(cluster: ClusterSpec, model: str, *, again: str, fresh: str) -> dict[str, Any]:
    """Measure two bundles in turn; return how many times as long the first one's step takes."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        save_cluster(folder / "cluster.yaml", cluster)
        for file, text in (("model.yaml", model), ("again.yaml", again), ("fresh.yaml", fresh)):
            (folder / file).write_text(text)
        words = ("compare", "model.yaml", "fresh.yaml", "again.yaml", "--cluster", "cluster.yaml", "--json")
        done = subprocess.run(
            (sys.executable, "-m", "autosync.cli", *words), cwd=folder, check=True, capture_output=True, text=True
        )
    (ratio,) = json.loads(done.stdout)["ratios"]
    return {"slower_share": 1 / ratio["speedup"]["value"] - 1, "speedup": ratio["speedup"]}


def _halve(testbed: Testbed, node: str, rate: float) -> None:
    testbed.set_rates(node, out=rate / 2, into=rate / 2)


def main() -> int:
    parser = parser_of(__doc__)
    parser.add_argument("--undisturbed", type=int, default=10)
    parser.add_argument("--cut", type=int, default=5)
    parser.add_argument("--retuned", type=int, default=2)
    options = parser.parse_args()
    cluster = emulated(*[MEGABITS] * NUM_HOSTS)
    runs: list[Callable[[], dict[str, Any]]] = [
        *[partial(undisturbed, cluster)] * options.undisturbed,
        *(partial(cut, cluster, number) for number in range(options.cut)),
        *[partial(retuned, cluster)] * options.retuned,
    ]
    cases = []
    for number, one in enumerate(runs, start=1):
        cases.append(one())
        tell(f"{number} of {len(runs)}: {json.dumps(cases[-1])}")
    return report({"cases": cases}, holds=bool(cases) and all(map(_holds, cases)))


def _holds(case: dict[str, Any]) -> bool:
    match case["case"]:
        case "undisturbed":
            # Training still runs, or has come to its end.
            return not case["reported"] and case["exit_code"] in {None, 0}
        case "cut":
            return case["steps"] is not None and case["steps"] <= MOST_STEPS and not case["false"]
        case _:
            return bool(case["slower_share"] <= MOST_SHARE)


if __name__ == "__main__":
    run(main)
