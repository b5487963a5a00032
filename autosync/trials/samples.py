"""What running a contestant gives, who runs it, and how several runs become one.

Seconds are joined where they are judged (`policy`, `periods`); here is what they cost beside.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from autosync.trials.contestant import Contestant


class Samples(Protocol):
    """Some consecutive steps of one contestant: seconds by rank and step, bytes by rank, and what else they cost.

    `cpu_share` is of the machine's processor time while they ran, 0 to 1. Bytes are sums over the steps, None where
    they cannot be told.
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


class Service(Protocol):
    """What measuring needs of a trial service, which nobody else may use meanwhile.

    `prepare` and `run` raise `TrialFailed`. Several contestants may be prepared at once. `run` takes that many steps of
    one of them and returns all of them; with `settle`, what the last of them has left to be done during the next one is
    done by then, so that whoever comes next finds idle links. `release` forgets one, prepared or not, and never fails.
    """

    def prepare(self, contestant: Contestant) -> None: ...
    def run(self, name: str, num_steps: int, *, settle: bool = False) -> Samples: ...
    def release(self, name: str) -> None: ...


def run_seconds(run: Samples) -> float:
    """How long a run took: it is over when its last rank has taken its last step."""
    return max(map(sum, run.step_seconds))


def cpu_share(runs: Sequence[Samples]) -> float:
    """The share over all runs: each counts as long as it took."""
    lengths = list(map(run_seconds, runs))
    return sum(run.cpu_share * length for run, length in zip(runs, lengths, strict=True)) / sum(lengths)


def peak_memory_bytes(runs: Sequence[Samples]) -> tuple[int, ...]:
    """Of each rank, in any of the runs."""
    return tuple(max(counts) for counts in zip(*(run.peak_memory_bytes for run in runs), strict=True))


def mean_bytes(counts: Sequence[Sequence[int] | None], num_steps: int) -> tuple[int, ...] | None:
    """Of each rank in one of so many steps that all runs have together. None where a run cannot tell."""
    known = [of_run for of_run in counts if of_run is not None]
    if len(known) < len(counts):
        return None
    return tuple(round(sum(of_rank) / num_steps) for of_rank in zip(*known, strict=True))
