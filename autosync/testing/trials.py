"""A fake trial service with step times by rule, for tests of code that measures or tunes.

    service = FakeService({"fast": FakeSteps(seconds=0.1), "slow": FakeSteps(seconds=0.2, noise=0.01)}, seed=1)
    compare(service, [Contestant(name="fast"), Contestant(name="slow")])

Its clock advances only by steps, so a drift affects all contestants in turn. `calls` lists the calls that were made.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Self

from autosync.datasets.schema import FailureKind
from autosync.errors import OperationError
from autosync.trials.contestant import Contestant
from autosync.trials.failures import Blame, TrialFailed
from autosync.trials.service import StepSamples

Load = Callable[[float], float]
"""The factor by which all steps are slower at a given time, in seconds since the service began."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FakeSteps:
    """The times of a contestant's steps, and when it fails.

    The first `num_warmup_steps` after `prepare` take `warmup_factor` times as long. After a run without `settle`, the
    next contestant's steps share the links for `leaves_seconds`. `noise` is the standard deviation of a step's time, as
    a share of it. Step `fails_at` after `prepare` (0: `prepare` itself) fails with the failure kind `fails_by` and with
    `blame`. It fails `num_failures` times, then never again; None means always.
    """

    seconds: float
    noise: float = 0.0
    num_warmup_steps: int = 3
    warmup_factor: float = 2.0
    bytes_per_step: int = 1_000_000
    cpu_share: float = 0.25
    peak_memory_bytes: int = 100_000_000
    fails_at: int | None = None
    fails_by: FailureKind = "raised"
    blame: Blame = "strategy"
    num_failures: int | None = None
    leaves_seconds: float = 0.0
    loss: float = 1.0
    gradient_error: float = 0.0


class FakeService:
    """A `Service` (see trials.policy) with given step times; contestants that `steps` lacks have the steps `others`.

    Like the real service, it forgets all contestants when one fails. `correlation` is the correlation of the noise
    between consecutive steps, of whichever contestants.
    """

    def __init__(
        self,
        steps: Mapping[str, FakeSteps],
        *,
        others: FakeSteps | None = None,
        seed: int = 0,
        num_ranks: int = 2,
        correlation: float = 0.0,
        load: Load = lambda _: 1.0,
    ) -> None:
        self.calls: list[tuple[str, str, int]] = []
        self.now_seconds = 0.0
        self._steps = dict(steps)
        self._others = others
        self._random = random.Random(seed)
        self._num_ranks = num_ranks
        self._correlation = correlation
        self._load = load
        self._state = self._random.gauss(0, 1)
        self._taken: dict[str, int] = {}
        self._left: tuple[str, float] = ("", 0.0)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def prepared(self) -> set[str]:
        return set(self._taken)

    def prepare(self, contestant: Contestant) -> None:
        name = contestant.name
        self.calls.append(("prepare", name, 0))
        if name in self._taken:
            raise OperationError(f"{name} is prepared already: release it first")
        if self._others is not None:
            self._steps.setdefault(name, self._others)
        if self._steps[name].fails_at == 0:
            self._fail(name)
        self._taken[name] = 0

    def run(self, name: str, num_steps: int, *, settle: bool = False) -> StepSamples:
        self.calls.append(("run and settle" if settle else "run", name, num_steps))
        if name not in self._taken:
            raise OperationError(f"{name} is not prepared")
        steps = self._steps[name]
        ranks: list[list[float]] = [[] for _ in range(self._num_ranks)]
        for _ in range(num_steps):
            seconds = self._step(name, steps)
            # The ranks take turns at being the slowest; on average they take the step's seconds.
            for rank, times in enumerate(ranks):
                is_slowest = (self._taken[name] + rank) % self._num_ranks == 0
                times.append(seconds * (1 + 0.01 * (self._num_ranks - 1) if is_slowest else 0.99))
        self._left = (name, 0.0 if settle else steps.leaves_seconds)
        return StepSamples(
            step_seconds=tuple(map(tuple, ranks)),
            cpu_share=steps.cpu_share,
            bytes_sent=(steps.bytes_per_step * num_steps,) * self._num_ranks,
            bytes_received=(steps.bytes_per_step * num_steps,) * self._num_ranks,
            peak_memory_bytes=(steps.peak_memory_bytes,) * self._num_ranks,
            losses=((steps.loss,) * num_steps,) * self._num_ranks,
        )

    def difference(self, first: str, second: str) -> float:
        """Return the gradient error of the second contestant; the first counts as exact."""
        self.calls.append(("difference", f"{first}, {second}", 0))
        return self._steps[second].gradient_error

    def timeline(self, name: str) -> str:
        """Return a timeline of the steps that a contestant has taken: half of each is a wait for one transfer."""
        self.calls.append(("timeline", name, 0))
        length = self._steps[name].seconds * 1e6
        return f"[\n{''.join(_step_events(number, length) for number in range(self._taken[name]))}"

    def release(self, name: str) -> None:
        self.calls.append(("release", name, 0))
        self._taken.pop(name, None)

    def close(self) -> None:
        self._taken.clear()

    def _step(self, name: str, steps: FakeSteps) -> float:
        self._taken[name] += 1
        if self._taken[name] == steps.fails_at:
            self._fail(name)
        fresh = (1 - self._correlation**2) ** 0.5 * self._random.gauss(0, 1)
        self._state = self._correlation * self._state + fresh
        seconds = steps.seconds * max(1 + steps.noise * self._state, 0.01) * self._load(self.now_seconds)
        if self._taken[name] <= steps.num_warmup_steps:
            seconds *= steps.warmup_factor
        whose, left = self._left
        shared = min(left, seconds) if whose != name else 0.0
        self._left = (whose, left - shared)
        self.now_seconds += seconds + shared
        return seconds + shared

    def _fail(self, name: str) -> None:
        steps = self._steps[name]
        if steps.num_failures is not None:
            num_left = steps.num_failures - 1
            self._steps[name] = replace(steps, num_failures=num_left, fails_at=steps.fails_at if num_left else None)
        self._taken.clear()
        raise TrialFailed(steps.fails_by, f"rank 0: {name} fails here", blame=steps.blame)


def _step_events(number: int, length: float) -> str:
    """Return the lines of a step of so many microseconds in a timeline."""
    parts = {"forward": ("compute", 0, 0.0, 0.2), "backward": ("compute", 0, 0.2, 0.5), "wait": ("wait", 0, 0.5, 1.0)}
    parts["all_reduce of everything (operation 0)"] = ("transfer", 1, 0.3, 1.0)
    events = [
        {
            "ph": "X",
            "name": name,
            "cat": kind,
            "pid": 0,
            "tid": track,
            "ts": (number + begin) * length,
            "dur": (end - begin) * length,
            "args": {"iteration": number},
        }
        for name, (kind, track, begin, end) in parts.items()
    ]
    return "".join(f"{json.dumps(event)},\n" for event in events)
