"""The races of `tune_suite.py`: proposers on one target, with several seeds, in turn."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import geometric_mean, median
from typing import Any

from autosync.datasets.schema import Record
from autosync.search.candidates import STOCK_DDP, Candidate
from autosync.search.proposers.catalogue import open_proposer
from autosync.search.proposers.interface import Ground
from autosync.testing.proposers import record_of
from benchmarks.shared import tell

NEAR = 1.02
"""The factor within which a proposer counts as having found the best known strategy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Race:
    """One target. `open_ground` gives each run its own ground, with a simulator that has learned nothing yet.

    `measure` returns a trial's result for a candidate (None if it fails), with its own random noise. `truth` returns
    the true time, which only the judge knows. `best_known_seconds` was known before, if at all, and `bound_seconds` is
    the time that no exact strategy can beat, if the true links are known.
    """

    name: str
    open_ground: Callable[[], Ground]
    measure: Callable[[Candidate, random.Random], float | None]
    truth: Callable[[Candidate], float | None]
    best_known_seconds: float | None = None
    bound_seconds: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """The result of one run: after each trial, the true time of the strategy that was measured fastest so far.

    `own_seconds` is processor time of the search.
    """

    seconds: tuple[float, ...]
    own_seconds: float
    first_pick_seconds: float | None


def run_races(
    races: Sequence[Race], *, proposers: Sequence[str], num_seeds: int, num_trials: int, limit_seconds: float
) -> dict[str, Any]:
    """Run all races; return the results by target and over all of them, and the runs for which there was no time."""
    began = time.monotonic()
    targets: dict[str, Any] = {}
    left_out: list[str] = []
    for race in races:
        runs: dict[str, list[Run]] = {name: [] for name in proposers}
        for seed in range(num_seeds):
            for name in proposers:
                if time.monotonic() - began > limit_seconds:
                    left_out.append(f"{race.name}: {name}, seed {seed}")
                    continue
                run = _run(race, name, seed, num_trials)
                runs[name].append(run)
                _tell(race.name, name, seed, run)
        if all(runs.values()):
            targets[race.name] = _judged(race, runs)
    return {"targets": targets, "left_out": left_out, "overall": _overall(targets, proposers)}


def _run(race: Race, name: str, seed: int, num_trials: int) -> Run:
    ground = race.open_ground()
    proposer = open_proposer(name, ground)
    noise = random.Random(f"{seed} noise")
    history: list[Record] = []
    best, shown = float("inf"), []
    own_seconds, first_pick = 0.0, None
    proposed: list[Candidate] = [STOCK_DDP]
    while len(history) < num_trials and proposed:
        for one in proposed:
            measured = race.measure(one, noise)
            history.append(record_of(len(history), one, ground, seconds=measured, memory_bytes=ground.model.num_bytes))
            if measured is not None and measured < best:
                best = measured
                true = race.truth(one)
                assert true is not None, "what was measured takes a time"
                reached = true
            if best < float("inf"):
                shown.append(reached)
        began = time.process_time()
        count = min(proposer.round_size, num_trials - len(history))
        proposed = proposer.propose(history, count, random.Random(f"{seed} {len(history)}")) if count else []
        own_seconds += time.process_time() - began
        if first_pick is None and proposed:
            first_pick = race.truth(proposed[0])
    shown += [shown[-1]] * (num_trials - len(shown)) if shown else []
    return Run(seconds=tuple(shown[:num_trials]), own_seconds=own_seconds, first_pick_seconds=first_pick)


def _tell(target: str, name: str, seed: int, run: Run) -> None:
    best = f"{run.seconds[-1] * 1e3:.1f} ms" if run.seconds else "nothing"
    tell(f"{target}: {name}, seed {seed}: {best}, {run.own_seconds:.1f} s of its own")


def _judged(race: Race, runs: Mapping[str, Sequence[Run]]) -> dict[str, Any]:
    """Return one target's figures. The best known is the best of all runs and of `best_known_seconds`."""
    found = [second for of_name in runs.values() for run in of_name for second in run.seconds]
    best = min([*found, *([race.best_known_seconds] if race.best_known_seconds else [])])
    return {
        "best_known_seconds": best,
        "bound_seconds": race.bound_seconds,
        "proposers": {name: _figures(of_name, best) for name, of_name in runs.items()},
    }


def _figures(runs: Sequence[Run], best: float) -> dict[str, Any]:
    near = [_trials_to(run.seconds, NEAR * best) for run in runs]
    columns = list(zip(*(run.seconds for run in runs), strict=False))
    picks = [run.first_pick_seconds / best for run in runs if run.first_pick_seconds is not None]
    return {
        "trials_to_near": near,
        "median_trials_to_near": _median_or_none(near),
        "final_over_best": [run.seconds[-1] / best for run in runs if run.seconds],
        "first_pick_over_best": picks,
        "own_seconds": [round(run.own_seconds, 2) for run in runs],
        "curve": {
            "median": [round(median(column) / best, 4) for column in columns],
            "low": [round(min(column) / best, 4) for column in columns],
            "high": [round(max(column) / best, 4) for column in columns],
        },
    }


def _trials_to(seconds: Sequence[float], limit: float) -> int | None:
    return next((number for number, one in enumerate(seconds, start=1) if one <= limit), None)


def _median_or_none(counts: Sequence[int | None]) -> float | None:
    """Return the median, where runs that never came near count as infinite; None if the median is infinite."""
    value = median(float("inf") if count is None else count for count in counts)
    return None if value == float("inf") else value


def _overall(targets: Mapping[str, Any], proposers: Sequence[str]) -> dict[str, Any]:
    """Return over all targets the median number of trials to come near, and the share of runs that did."""
    overall: dict[str, Any] = {}
    for name in proposers:
        figures = [target["proposers"][name] for target in targets.values()]
        near = [count for one in figures for count in one["trials_to_near"]]
        finals = [ratio for one in figures for ratio in one["final_over_best"]]
        if near:
            overall[name] = {
                "median_trials_to_near": _median_or_none(near),
                "share_that_came_near": sum(count is not None for count in near) / len(near),
                "mean_final_over_best": sum(finals) / len(finals) if finals else None,
                "mean_share_of_bound": _share_of_bound(targets.values(), name),
                "own_seconds_a_run": sum(sum(one["own_seconds"]) for one in figures) / len(near),
            }
    return overall


def _share_of_bound(targets: Iterable[Mapping[str, Any]], name: str) -> float | None:
    """Return the bound over a proposer's results, as a geometric mean over targets and seeds; None without bounds."""
    shares = [
        target["bound_seconds"] / (ratio * target["best_known_seconds"])
        for target in targets
        if target["bound_seconds"] is not None
        for ratio in target["proposers"][name]["final_over_best"]
    ]
    return geometric_mean(shares) if shares else None
