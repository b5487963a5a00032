"""Measures a pipeline against torch's own 1F1B: `python benchmarks/pipelines/against_torch.py > pipelines.json`.

Both have the same cuts and microbatches, and train in turn in the same processes. README.md says what must hold.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

from autosync.launchers.request import TrainingScript
from autosync.launchers.script_run import ScriptRun
from autosync.plan.bundling import bundled
from autosync.specs.cluster import ClusterSpec
from autosync.specs.profile.run import profile
from autosync.strategy import legality
from autosync.strategy.bundle import save_bundle
from autosync.strategy.dividing.divided import divided_strategy
from autosync.strategy.dividing.model_problem import USUAL_SLACK
from autosync.strategy.dividing.timed import timed
from autosync.strategy.stages import ModelStage
from autosync.trials.statistics import min_rounds, round_ratio

sys.path.append(str(Path(__file__).parents[2]))
from benchmarks.clusters import emulated, on_this_machine
from benchmarks.pipelines.pipeline_task import MODULES_PER_BLOCK, NUM_BLOCKS, task
from benchmarks.shared import parser_of, report, run, tell

RANKS = Path(__file__).parent / "pipeline_ranks.py"
BOUNDS = {"slow links": 1.3, "loopback": 1 / 1.02}
"""How many times as long torch's step must take at least."""


def write_bundle(path: Path, cluster: ClusterSpec, num_microbatches: int) -> None:
    """Write the strategy with equal stages, one for each rank."""
    model = profile(task(), times="computed", cuts=True)
    size = cluster.num_workers
    places = [MODULES_PER_BLOCK * NUM_BLOCKS * rank // size for rank in range(size)]
    stages = [ModelStage(before=before, ranks=(rank,)) for rank, before in enumerate(places)]
    strategy = divided_strategy(model, stages, num_microbatches, "1f1b", USUAL_SLACK)
    legality.check(strategy, model, cluster)
    save_bundle(path, bundled(timed(strategy, model, cluster), model, cluster))


def measured(name: str, cluster: ClusterSpec, *, microbatches: int, rounds: int, steps: int) -> dict[str, Any]:
    """Return the step times of both ways on a cluster, and their ratio."""
    tell(f"{name}: {rounds} rounds")
    with tempfile.TemporaryDirectory() as folder:
        bundle, out = Path(folder) / "bundle.yaml", Path(folder) / "out.json"
        write_bundle(bundle, cluster, microbatches)
        command = (sys.executable, "-P", str(RANKS), str(bundle), str(out), str(rounds), str(steps))
        environment = {"OMP_NUM_THREADS": "1", "PYTHONSAFEPATH": "1"}
        script = TrainingScript(command=command, server_command=None, environment=environment, files={}, port=None)
        ended = ScriptRun(cluster, script, Path(folder), show=tell).run(started=lambda _: None)
        if ended.code:
            sys.exit(f"{name}: {'; '.join(ended.words)}")
        answers = [json.loads(out.with_suffix(f".{rank}").read_text()) for rank in range(cluster.num_workers)]
    blocks = answers[0]["blocks"]
    ratio = round_ratio(blocks["torch"], blocks["autosync"])
    return {
        "links": name,
        "median_seconds": {way: round(median(map(median, own)), 5) for way, own in blocks.items()},
        "times_as_long": {"value": ratio.value, "low": ratio.low, "high": ratio.high},
        "least": BOUNDS[name],
        "same_weights": all(answer["is_same"] for answer in answers),
    }


def main() -> int:
    parser = parser_of(__doc__)
    parser.add_argument("--hosts", type=int, choices=(2, 4, 8), default=2, help="the stages, each on a host of its own")
    parser.add_argument("--microbatches", type=int, default=16)
    parser.add_argument("--megabits", type=float, default=50.0, help="the rate of slow links")
    parser.add_argument("--rounds", type=int, default=max(10, min_rounds()))
    parser.add_argument("--steps", type=int, default=5, help="the steps of a block")
    options = parser.parse_args()
    how = {"microbatches": options.microbatches, "rounds": options.rounds, "steps": options.steps}
    rows = [
        measured("slow links", emulated(*[options.megabits] * options.hosts), **how),
        measured("loopback", on_this_machine(options.hosts), **how),
    ]
    holds = all(row["same_weights"] and row["times_as_long"]["value"] >= row["least"] for row in rows)
    return report({"hosts": options.hosts, **how, "megabits": options.megabits, "clusters": rows}, holds=holds)


if __name__ == "__main__":
    run(main)
