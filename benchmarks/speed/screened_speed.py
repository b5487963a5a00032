"""Measures how fast strategies are judged if the analytical simulator selects those that the timeline predicts.

    python benchmarks/speed/screened_speed.py [--draws 40] > out.json

Each draw has 256 samples of the space of ResNet50 on 8 hosts, without presets, because the same few of them would be
the best of every draw. The analytical simulator predicts all of them, and the timeline the most promising ones
(`--kept`). Then the timeline predicts the others too, to find out what the screen lost. All on one core. Prints one
JSON document:

- `per_second`: strategies a second through the screen, with the timeline's part included; the median of the draws;
- `within`: the share of draws whose best kept strategy is at most 0.5 % slower, by the timeline, than the best of all;
- `losses`: how much slower it is, in each draw, in percent.

Ends with 0 if 1,000 strategies a second are judged and 95 % of the draws lose at most 0.5 %.
"""

from __future__ import annotations

import os
import random
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

sys.path.append(str(Path(__file__).parents[2]))
from autosync.simulators.analytical.simulator import AnalyticalSimulator
from autosync.simulators.interface import Simulator
from autosync.simulators.shared.arrays import Floats
from autosync.simulators.timeline.simulator import TimelineSimulator
from autosync.specs.cluster import ClusterSpec
from autosync.specs.model import ModelSpec
from autosync.specs.model_file import load_model
from autosync.strategy.representation import Strategy
from autosync.strategy.space import Space
from autosync.trials.statistics import bootstrap_interval
from benchmarks.shared import parser_of, report, run, tell
from benchmarks.speed.lowering_speed import hosts

NUM_DRAWN = 256
MAX_LOSS = 0.005
LEAST_WITHIN = 0.95
LEAST_PER_SECOND = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Screened:
    """What the screen took and lost in one draw."""

    seconds: float
    loss: float


class Screen:
    """Two simulators of one model on one cluster: the fast one selects for the precise one."""

    def __init__(self, model: ModelSpec, cluster: ClusterSpec, kept: int) -> None:
        self._fast = AnalyticalSimulator(model, cluster)
        self._precise = TimelineSimulator(model, cluster)
        self._kept = kept

    def judge(self, strategies: list[Strategy]) -> Screened:
        """Judge strategies through the screen, timed, and then without it."""
        began = time.perf_counter()
        order = np.argsort(_seconds(self._fast, strategies), kind="stable")
        kept = [strategies[number] for number in order[: self._kept]]
        best_kept = _seconds(self._precise, kept).min()
        taken = time.perf_counter() - began
        others = [strategies[number] for number in order[self._kept :]]
        best = min(best_kept, _seconds(self._precise, others).min())
        return Screened(seconds=taken, loss=float(best_kept / best - 1))


def _seconds(simulator: Simulator, strategies: list[Strategy]) -> Floats:
    return np.array([one.seconds for one in simulator.predict(strategies)])


def main() -> int:
    parser = parser_of(__doc__)
    parser.add_argument("--draws", type=int, default=40)
    parser.add_argument("--kept", type=int, default=14, help="how many strategies of a draw the timeline predicts")
    parser.add_argument("--model", default="resnet50")
    parser.add_argument("--hosts", type=int, default=8)
    parser.add_argument("--seed", type=int, default=1000, help="the first draw's; each next draw has the next")
    options = parser.parse_args()
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    model, cluster = load_model(options.model), hosts(options.hosts)
    screen, space = Screen(model, cluster, options.kept), Space(model=model, cluster=cluster)
    found: list[Screened] = []
    # The first draw compiles, and does not count.
    for number in range(-1, options.draws):
        rng = random.Random(options.seed + number)
        screened = screen.judge([space.sample(rng) for _ in range(NUM_DRAWN)])
        if number < 0:
            continue
        found.append(screened)
        tell(f"draw {number + 1} of {options.draws}: {found[-1].seconds:.3f} s, {found[-1].loss:.2%} lost")
    rate = bootstrap_interval([NUM_DRAWN / one.seconds for one in found])
    within = float(np.mean([one.loss <= MAX_LOSS for one in found]))
    document: dict[str, Any] = {
        "model": model.name,
        "hosts": options.hosts,
        "drawn": NUM_DRAWN,
        "kept": options.kept,
        "per_second": {"value": round(rate.value), "low": round(rate.low), "high": round(rate.high)},
        "within": within,
        "losses": [round(100 * one.loss, 3) for one in found],
    }
    return report(document, holds=rate.value >= LEAST_PER_SECOND and within >= LEAST_WITHIN)


if __name__ == "__main__":
    run(main)
