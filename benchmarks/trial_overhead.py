"""What a trial costs beside its steps: `python benchmarks/trial_overhead.py --count 50 > overhead.json`.

Different strategies, each in a trial of its own on one service: stock DDP, the presets that apply and samples of the
space, as a study tries them. Each is prepared, runs some steps and is released; all the time that this takes is counted
but for the steps themselves. Starting the ranks is once a service and told apart. Ends with 1 where the median is half
a second or more.

The first step of a strategy takes longer than later ones, for connections are made and memory is touched. It is a step,
so it is not counted; how much longer it takes is told as `first_step`.
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from autosync.datasets.schema import seconds_of_steps
from autosync.errors import AutosyncError
from autosync.plan.bundling import bundled
from autosync.search.candidates import STOCK_DDP, Candidate, candidate, known_candidates
from autosync.search.domain import SpaceDomain
from autosync.specs.cluster import ClusterSpec
from autosync.specs.cluster_file import load_cluster
from autosync.specs.model import ModelSpec
from autosync.specs.model_file import model_of
from autosync.strategy.space import Space
from autosync.trials.service import Contestant, StepSamples, TrialFailed, TrialService
from autosync.trials.statistics import median_interval

BOUND_SECONDS = 0.5
NUM_STEPS = 4
PHASES = ("prepare", "run", "release", "total", "first_step")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="mobilenet_v2")
    parser.add_argument("--cluster", default="4-hosts")
    parser.add_argument("--count", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--limit-seconds", type=float, default=900.0, help="begin no trial after this time")
    options = parser.parse_args()
    model, cluster = model_of(options.model), load_cluster(options.cluster)
    began = time.monotonic()
    trials: list[dict[str, Any]] = []
    failures: list[str] = []
    with (
        tempfile.TemporaryDirectory() as folder,
        TrialService(target=options.model, model=model, cluster=cluster, folder=Path(folder)) as service,
    ):
        start_seconds = _try(service, Contestant(name="first"))["prepare"]
        for one in itertools.islice(_candidates(model, cluster, options.seed), options.count):
            if time.monotonic() - began > options.limit_seconds:
                break
            try:
                trial = _try(service, contestant_of(one, model, cluster))
            except TrialFailed as failure:
                failures.append(f"{one.name}: {failure.kind}: {failure.message}")
                print(failures[-1], file=sys.stderr, flush=True)
                # Ranks that were started anew are not the next strategy's cost.
                _try(service, Contestant(name="first"))
                continue
            num_messages = len(one.strategy.messages) if one.strategy else None
            trials.append({"strategy": one.name, "num_messages": num_messages, **trial})
            print(f"{len(trials)} of {options.count}: {_in_words(trials[-1])}", file=sys.stderr, flush=True)
    phases = {phase: summary([trial[phase] for trial in trials]) for phase in PHASES}
    document = {
        "bound_seconds": BOUND_SECONDS,
        "median_seconds": phases["total"]["median"],
        "model": model.name,
        "cluster": cluster.name,
        "num_strategies": len(trials),
        "start_seconds": start_seconds,
        "phases": phases,
        "failures": failures,
        "seconds": round(time.monotonic() - began, 1),
        "trials": trials,
    }
    print(json.dumps(document, indent=2))
    return 0 if phases["total"]["median"] < BOUND_SECONDS and not failures else 1


def _candidates(model: ModelSpec, cluster: ClusterSpec, seed: int) -> Iterator[Candidate]:
    """Stock DDP, the presets that apply, then samples of the space."""
    domain, rng = SpaceDomain(space=Space(model=model, cluster=cluster)), random.Random(seed)
    yield STOCK_DDP
    yield from known_candidates(model, cluster, domain.contains)
    while True:
        strategy = domain.sample(rng)
        if domain.contains(strategy):
            yield candidate("sampled", strategy, model, cluster)


def contestant_of(candidate: Candidate, model: ModelSpec, cluster: ClusterSpec) -> Contestant:
    """The candidate as a contestant; none of this is the service's time."""
    if candidate.strategy is None:
        return Contestant(name=candidate.strategy_id)
    return Contestant(name=candidate.strategy_id, bundle=bundled(candidate.strategy, model, cluster))


def _try(service: TrialService, contestant: Contestant) -> dict[str, float]:
    """One trial: the seconds of each phase beyond the steps."""
    prepare, _ = _timed(lambda: service.prepare(contestant))
    run, samples = _timed(lambda: service.run(contestant.name, NUM_STEPS))
    release, _ = _timed(lambda: service.release(contestant.name))
    assert isinstance(samples, StepSamples), "that is what a run answers"
    steps = seconds_of_steps(samples.step_seconds)
    # Ranks begin and end their steps together, so the one that takes longest in all sets the time.
    run -= max(sum(of_rank) for of_rank in samples.step_seconds)
    later = float(np.median(steps[1:]))
    total = prepare + run + release
    return {
        "prepare": prepare,
        "run": run,
        "release": release,
        "total": total,
        "first_step": steps[0] - later,
        "step": later,
    }


def _timed(action: Callable[[], object]) -> tuple[float, object]:
    start = time.perf_counter()
    result = action()
    return time.perf_counter() - start, result


def summary(seconds: Sequence[float]) -> dict[str, float]:
    """The median with its interval, the 95th percentile and the most."""
    median = median_interval(seconds)
    return {
        "median": median.value,
        "low": median.low,
        "high": median.high,
        "percentile_95": float(np.quantile(seconds, 0.95)),
        "most": max(seconds),
    }


def _in_words(trial: dict[str, Any]) -> str:
    told = ", ".join(f"{phase} {trial[phase]:.3f}" for phase in PHASES)
    return f"{trial['strategy']} ({trial['num_messages']} messages): {told} s"


if __name__ == "__main__":
    try:
        sys.exit(main())
    except AutosyncError as error:
        sys.exit(f"error: {error}")
