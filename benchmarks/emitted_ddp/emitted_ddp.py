"""Checks that emitted arguments are as fast as promised: `python benchmarks/emitted_ddp/emitted_ddp.py > emitted.json`.

For each of several strategies, two programs take turns on a cluster, in random order: a plain torch script with the
file that `autosync emit` writes, and a trial of the same settings. The trial's time is the time that tuning promises.
The ratio of both times has a 95 % interval. The exit code is 1 unless each interval lies within the tolerance around 1.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from autosync.datasets.schema import seconds_of_steps
from autosync.search.target import DdpDomain
from autosync.specs.cluster import ClusterSpec
from autosync.specs.cluster_file import load_cluster
from autosync.specs.launchers import LAUNCHERS
from autosync.specs.model import ModelSpec
from autosync.specs.model_file import model_of
from autosync.strategy.emit.ddp import settings_for
from autosync.strategy.emit.script import emit_ddp
from autosync.strategy.presets import build_preset
from autosync.strategy.representation import Strategy
from autosync.trials.contestant import Contestant
from autosync.trials.service import TrialService
from autosync.trials.statistics import min_rounds, round_ratio

sys.path.append(str(Path(__file__).parents[2]))
from benchmarks.shared import parser_of, report, run, tell

HERE = Path(__file__).parent
TASK = str(HERE / "model.py")
SCRIPT = str(HERE / "ranks.py")
NUM_WARMUP_STEPS = 8
LIMIT_SECONDS = 120.0


def main() -> int:
    parser = parser_of(__doc__)
    parser.add_argument("--cluster", default="2-hosts")
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--tolerance", type=float, default=0.02)
    options = parser.parse_args()
    if options.rounds < min_rounds():
        parser.error(f"--rounds {options.rounds}: with fewer than {min_rounds()} nothing is certain")
    model, cluster = model_of(TASK), load_cluster(options.cluster)
    found = {
        name: _compared(name, strategy, model, cluster, options)
        for name, strategy in _strategies(model, cluster).items()
    }
    least, most = 1 / (1 + options.tolerance), 1 + options.tolerance
    broken = [name for name, one in found.items() if one["low"] > most or one["high"] < least]
    kept = [name for name, one in found.items() if least <= one["low"] and one["high"] <= most]
    document = {
        "model": model.name,
        "cluster": cluster.name,
        "strategies": found,
        "broken_promises": broken,
        "not_decided": [name for name in found if name not in broken and name not in kept],
    }
    return report(document, holds=len(kept) == len(found))


def _strategies(model: ModelSpec, cluster: ClusterSpec) -> dict[str, Strategy]:
    domain = DdpDomain(model=model, cluster=cluster)
    drawn = [domain.sample(random.Random(seed)) for seed in (1, 2)]
    return {
        "default": build_preset("ddp", model, cluster),
        "bucket_cap_mb=4": build_preset("ddp_cap", model, cluster, cap_bytes="4 MiB"),
        "drawn 1": drawn[0],
        "drawn 2": drawn[1],
    }


def _compared(
    name: str, strategy: Strategy, model: ModelSpec, cluster: ClusterSpec, options: argparse.Namespace
) -> dict[str, Any]:
    """Measure the plain script and the trial in turn, round after round."""
    lots = random.Random(name)
    promised: list[list[float]] = []
    plain: list[list[float]] = []
    settings = settings_for(strategy, model, cluster)
    with (
        tempfile.TemporaryDirectory() as text,
        TrialService(target=TASK, model=model, cluster=cluster, folder=Path(text) / "ranks") as service,
    ):
        folder = Path(text)
        (folder / "emitted.py").write_text(emit_ddp(strategy, model, cluster).python, encoding="utf-8")
        for number in range(options.rounds):
            for what in lots.sample(["trial", "script"], 2):
                if what == "trial":
                    promised.append(_trial(service, Contestant(name=name, ddp=settings), options.steps))
                else:
                    plain.append(_script(cluster, folder, number, options.steps))
            tell(f"{name}: round {number + 1} of {options.rounds}")
    ratio = round_ratio(plain, promised)
    return {
        "settings": str(settings),
        "promised_seconds": _median(promised),
        "plain_script_seconds": _median(plain),
        "script_over_promise": ratio.value,
        "low": ratio.low,
        "high": ratio.high,
    }


def _trial(service: TrialService, contestant: Contestant, num_steps: int) -> list[float]:
    service.prepare(contestant)
    try:
        service.run(contestant.name, NUM_WARMUP_STEPS)
        return list(seconds_of_steps(service.run(contestant.name, num_steps).step_seconds))
    finally:
        service.release(contestant.name)


def _script(cluster: ClusterSpec, folder: Path, number: int, num_steps: int) -> list[float]:
    launcher = LAUNCHERS.get(cluster.launcher)()
    logs, out = folder / f"script-{number}", folder / f"seconds-{number}.json"
    logs.mkdir()
    command = [sys.executable, SCRIPT, str(folder / "emitted.py"), str(logs / "meeting"), str(num_steps), str(out)]
    launch = launcher.start(launcher.plan(cluster, command, logs))
    try:
        end = time.monotonic() + LIMIT_SECONDS
        while None in launch.exit_codes() and time.monotonic() < end:
            time.sleep(0.2)
        codes = launch.exit_codes()
    finally:
        launch.stop()
    if any(code != 0 for code in codes):
        raise SystemExit(f"a rank failed: {[log.read_text() for log in sorted(logs.glob('*.log'))]}")
    seconds: list[float] = json.loads(out.read_text(encoding="utf-8"))
    return seconds


def _median(blocks: list[list[float]]) -> float:
    ordered = sorted(seconds for block in blocks for seconds in block)
    return ordered[len(ordered) // 2]


if __name__ == "__main__":
    run(main)
