"""Compares the memory that ranks of pipelines take with what is predicted: `python benchmarks/pipelines/memory.py`.

README.md says how memory is measured and what must hold.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from autosync.launchers.request import TrainingScript
from autosync.launchers.script_run import ScriptRun
from autosync.plan.bundling import bundled
from autosync.plan.lowering import lower
from autosync.search.stage_memory import stage_rank_bytes
from autosync.specs.cluster import ClusterSpec
from autosync.specs.model import ModelSpec
from autosync.specs.profile.run import profile
from autosync.strategy import legality
from autosync.strategy.bundle import Bundle, save_bundle
from autosync.strategy.dividing.divided import divided_strategy
from autosync.strategy.dividing.timed import timed
from autosync.strategy.representation import Strategy
from autosync.strategy.stages import ModelStage, PipelineSchedule

sys.path.append(str(Path(__file__).parents[2]))
from benchmarks.clusters import on_this_machine
from benchmarks.pipelines.memory_task import MODULES_PER_BLOCK, NARROW, NUM_BLOCKS, WIDE, task_of
from benchmarks.shared import parser_of, report, run, tell

RANKS = Path(__file__).parent / "memory_ranks.py"
NUM_HOSTS = 4
MOST_OFF = 0.10
WAYS: dict[str, tuple[PipelineSchedule, int, bool]] = {
    "gpipe": ("gpipe", 1, False),
    "1f1b": ("1f1b", 1, False),
    "1f1b, activations computed again": ("1f1b", 1, True),
    "interleaved": ("interleaved", 2, False),
    "zero_bubble": ("zero_bubble", 1, False),
    "2bw": ("2bw", 1, False),
    "stashing": ("stashing", 1, False),
}
"""By name: the schedule, the stages of a rank, and whether backward passes compute activations again."""

# Large blocks go back to the system at once, so that the resident memory is what the program has.
MALLOC = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536", "MALLOC_ARENA_MAX": "1"}


def strategy_of(name: str, model: ModelSpec, cluster: ClusterSpec, num_microbatches: int) -> Strategy:
    schedule, each, recompute = WAYS[name]
    count = each * NUM_HOSTS
    places = [MODULES_PER_BLOCK * NUM_BLOCKS * number // count for number in range(count)]
    stages = [ModelStage(before=before, ranks=(number % NUM_HOSTS,)) for number, before in enumerate(places)]
    strategy = divided_strategy(model, stages, num_microbatches, schedule, recompute=recompute)
    legality.check(strategy, model, cluster)
    return timed(strategy, model, cluster)


def measured(bundles: Sequence[Bundle], cluster: ClusterSpec, num_steps: int) -> list[int]:
    """Return the most bytes that each rank took while it trained the last model."""
    with tempfile.TemporaryDirectory() as folder:
        paths, out = [], Path(folder) / "out.json"
        for number, bundle in enumerate(bundles):
            paths.append(str(Path(folder) / f"bundle-{number}.yaml"))
            save_bundle(paths[-1], bundle)
        command = (sys.executable, "-P", str(RANKS), *paths, str(out), str(num_steps))
        environment = {"OMP_NUM_THREADS": "1", "PYTHONSAFEPATH": "1", **MALLOC}
        script = TrainingScript(command=command, server_command=None, environment=environment, files={}, port=None)
        ended = ScriptRun(cluster, script, Path(folder), show=tell).run(started=lambda _: None)
        if ended.code:
            sys.exit("; ".join(ended.words))
        return [json.loads(out.with_suffix(f".{rank}").read_text()) for rank in range(cluster.num_workers)]


def main() -> int:
    parser = parser_of(__doc__)
    parser.add_argument("--microbatches", type=int, default=8)
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--only", choices=WAYS, action="append", help="measure these alone")
    options = parser.parse_args()
    cluster = on_this_machine(NUM_HOSTS)
    models = [profile(task_of(width), times="computed", cuts=True) for width in (NARROW, WIDE)]
    rows: list[dict[str, Any]] = []
    for name in options.only or WAYS:
        given = [strategy_of(name, model, cluster, options.microbatches) for model in models]
        predicted = stage_rank_bytes(lower(given[-1], models[-1], cluster), models[-1])
        bundles = [bundled(strategy, model, cluster) for strategy, model in zip(given, models, strict=True)]
        taken = measured(bundles, cluster, options.steps)
        off = [said / is_so - 1 for said, is_so in zip(predicted, taken, strict=True)]
        rows.append({"strategy": name, "predicted_bytes": predicted, "measured_bytes": taken, "off": off})
        tell(f"{name}: {', '.join(f'{one:+.1%}' for one in off)}")
    holds = all(abs(one) <= MOST_OFF for row in rows for one in row["off"])
    return report({"microbatches": options.microbatches, "strategies": rows}, holds=holds)


if __name__ == "__main__":
    run(main)
