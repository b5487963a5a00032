"""The samples of running a contestant, the interface of services that run it, and sums over several runs.

`policy` and `periods` join the seconds of runs; this module joins processor shares, memory and bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from autosync.trials.contestant import Contestant
from autosync.trials.measured_inputs import Answers


class Samples(Protocol):
    """Some consecutive steps of one contestant: seconds by rank and step, and bytes and peak memory by rank.

    `cpu_share` is the used share of the machine's processor time during the steps, 0 to 1. Bytes are sums over the
    steps; None if they cannot be measured. `inputs` are sums about the input, by rank; None if nothing is known.
    """

    @property
    def step_seconds(self) -> Sequence[Sequence[float]]: ...
    @property
    def cpu_share(self) -> float: ...
    @property
    def bytes_sent(self) -> Sequence[int] | None: ...
    @property
    def bytes_received(self) -> Sequence[int] | None: ...
    @property
    def peak_memory_bytes(self) -> Sequence[int]: ...
    @property
    def inputs(self) -> Answers | None: ...


class Service(Protocol):
    """The part of a trial service that measuring needs; only one user may use it at a time.

    `prepare` and `run` raise `TrialFailed`. Several contestants may be prepared at once. If a loader reads batches,
    `prepare` returns the number of steps after which all of its workers have given equally many. `run` takes
    `num_steps` steps of one contestant and returns their samples. With `settle`, it also finishes the work that the
    last step has left for the next step, so that the next contestant finds idle links. `release` forgets a contestant,
    prepared or not, and never fails.
    """

    def prepare(self, contestant: Contestant) -> int | None: ...
    def run(self, name: str, num_steps: int, *, settle: bool = False) -> Samples: ...
    def release(self, name: str) -> None: ...


def run_seconds(run: Samples) -> float:
    """Return the seconds of a run: it ends when its last rank has taken its last step."""
    return max(map(sum, run.step_seconds))


def cpu_share(runs: Sequence[Samples]) -> float:
    """Return the processor share over all runs, weighted by their duration."""
    lengths = list(map(run_seconds, runs))
    return sum(run.cpu_share * length for run, length in zip(runs, lengths, strict=True)) / sum(lengths)


def peak_memory_bytes(runs: Sequence[Samples]) -> tuple[int, ...]:
    """Return the peak memory of each rank over all runs."""
    return tuple(max(counts) for counts in zip(*(run.peak_memory_bytes for run in runs), strict=True))


def mean_bytes(counts: Sequence[Sequence[int] | None], num_steps: int) -> tuple[int, ...] | None:
    """Return each rank's mean bytes per step, from the counts of runs with `num_steps` steps in total.

    Returns None if a run has no counts.
    """
    known = [of_run for of_run in counts if of_run is not None]
    if len(known) < len(counts):
        return None
    return tuple(round(sum(of_rank) / num_steps) for of_rank in zip(*known, strict=True))
