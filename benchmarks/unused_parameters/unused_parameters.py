"""Measures a mixture of experts in which a step uses few: `python benchmarks/unused_parameters/unused_parameters.py`.

Four emulated hosts train the example's sixteen experts, of which a step uses four over all ranks. Stock DDP with
`find_unused_parameters` and our engine take turns, block by block. The document has the times of their steps, the bytes
that each host sent in a step, and the distance between the parameters of both after equally many steps. It fails unless
our engine is twice as fast, over the whole interval, and trains to the same weights.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

from autosync.datasets.schema import seconds_of_steps
from autosync.plan.bundling import bundled
from autosync.specs.model import ModelSpec
from autosync.specs.profile.run import profile
from autosync.strategy.emit.settings import DdpSettings
from autosync.strategy.presets import build_preset
from autosync.trials.contestant import Contestant
from autosync.trials.service import StepSamples, TrialService
from autosync.trials.statistics import min_rounds, round_ratio

sys.path.append(str(Path(__file__).parents[2]))
from benchmarks.clusters import emulated
from benchmarks.shared import parser_of, report, run, tell
from benchmarks.unused_parameters.model import NUM_TOPICS, task

TASK = str(Path(__file__).with_name("model.py"))
NUM_HOSTS = 4
TIMES = 2.0
MOST_DISTANCE = 1e-4
"""What rounding explains, as a share of the way that training has gone: sums in another order end 2e-5 away, whether
everything travels or not, and DDP with buckets of 1 MiB ends 2e-3 away from DDP as it ships."""
FINDS = DdpSettings(find_unused_parameters=True)


def main() -> int:
    parser = parser_of(__doc__)
    parser.add_argument("--megabits", type=float, default=500.0, help="the rate of each host's link (500)")
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--steps", type=int, default=8, help="steps in a block, a multiple of the number of topics (8)")
    parser.add_argument("--preset", default="ddp", help="the strategy of our engine (ddp)")
    options = parser.parse_args()
    if options.rounds < min_rounds():
        parser.error(f"--rounds {options.rounds}: with fewer than {min_rounds()} nothing is certain")
    if options.steps % NUM_TOPICS:
        parser.error(f"--steps {options.steps}: each block should have all {NUM_TOPICS} topics equally often")
    model, cluster = profile(task(), steps=NUM_TOPICS), emulated(*(options.megabits,) * NUM_HOSTS)
    bundle = bundled(build_preset(options.preset, model, cluster), model, cluster)
    contestants = [
        Contestant(name="DDP", ddp=FINDS),
        Contestant(name="autosync", bundle=bundle, ddp=FINDS),
    ]
    with (
        tempfile.TemporaryDirectory() as folder,
        TrialService(target=TASK, model=model, cluster=cluster, folder=Path(folder) / "ranks") as service,
    ):
        runs, distance = in_turn(service, contestants, options.rounds, options.steps)
    document = {"megabits": options.megabits, "preset": options.preset, **judged(runs, distance, model, options.steps)}
    return report(document, holds=document["holds"])


def in_turn(
    service: TrialService, contestants: list[Contestant], num_rounds: int, num_steps: int
) -> tuple[dict[str, list[StepSamples]], float]:
    """Run the contestants in turn; return their samples, and how far apart their parameters are at the end."""
    runs: dict[str, list[StepSamples]] = {one.name: [] for one in contestants}
    for one in contestants:
        service.prepare(one)
        service.run(one.name, num_steps, settle=True)
    for number in range(num_rounds):
        for one in contestants[:: 1 if number % 2 else -1]:
            runs[one.name].append(service.run(one.name, num_steps, settle=True))
        tell(f"round {number + 1} of {num_rounds}")
    distance = service.difference(*(one.name for one in contestants))
    for one in contestants:
        service.release(one.name)
    return runs, distance


def judged(runs: dict[str, list[StepSamples]], distance: float, model: ModelSpec, num_steps: int) -> dict[str, Any]:
    """Return the times, the bytes and their ratios."""
    seconds = {name: [list(seconds_of_steps(one.step_seconds)) for one in samples] for name, samples in runs.items()}
    ratio = round_ratio(seconds["DDP"], seconds["autosync"])
    return {
        "gradient_bytes": model.num_bytes,
        "median_step_seconds": {
            name: statistics.median(one for block in blocks for one in block) for name, blocks in seconds.items()
        },
        "times_as_fast": ratio.value,
        "interval": [ratio.low, ratio.high],
        "sent_bytes_per_step": {name: sent_bytes(samples, num_steps) for name, samples in runs.items()},
        "cpu_share": {name: max(one.cpu_share for one in samples) for name, samples in runs.items()},
        "num_steps": num_steps * (len(runs["DDP"]) + 1),
        "distance_of_parameters": distance,
        "step_seconds": seconds,
        "holds": ratio.low >= TIMES and distance <= MOST_DISTANCE,
    }


def sent_bytes(samples: list[StepSamples], num_steps: int) -> list[int] | None:
    """Return the bytes that each host sent in a step."""
    counts = [one.bytes_sent for one in samples if one.bytes_sent is not None]
    if len(counts) < len(samples):
        return None
    return [round(sum(of_host) / (num_steps * len(counts))) for of_host in zip(*counts, strict=True)]


if __name__ == "__main__":
    run(main)
