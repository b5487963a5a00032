"""The trial service of a running script: a contestant trains the script's own model for some of its steps."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from autosync.errors import OperationError
from autosync.script_tuning.counting import StepFilter
from autosync.script_tuning.input_waits import InputWaits
from autosync.script_tuning.launch import ScriptRanks
from autosync.specs.cluster import ClusterSpec
from autosync.specs.model import ModelSpec
from autosync.strategy.bundle import Bundle
from autosync.strategy.files import dump_strategy
from autosync.trials.contestant import Contestant
from autosync.trials.measured_inputs import joined_sums
from autosync.trials.ranks import Answer
from autosync.trials.service import StepSamples

STOCK: Mapping[str, Any] = {"strategy": None, "strategy_id": None, "plan_id": None}
"""The fields of a request that asks for stock DDP."""

_MOST_ASKED = 6
"""A run asks for at most this many times the steps that it wants; if too few count, the script cannot be tuned."""
_ALWAYS_ASKED = 60

MOST_SPARED = 60
"""The steps that a script makes at most while this process works, if it ends after its proof."""
_SECONDS_AT_ONCE = 0.5
_MOST_AT_ONCE = 16
"""While this process works, requests are for steps of about this time: the work and the requests share a lock."""

_SUSTAINED = 5
_SUSTAINED_SECONDS = 60.0
"""To see whether loaders keep up, a script trains for this many times the batches that they read ahead, to use these
up, and then as long to measure. If that takes too long, it trains for fewer steps. A loader that is slower by less than
a tenth may seem to keep up."""
_LEAST_LOST = 3.0
"""Fewer batches may be missing by chance: workers are somewhere in their next ones."""
_MOST_LOST_SHARE = 0.9

_STEPS_OF_CHANGE = 2
_WATCHED_SECONDS = 1.0
_LEAST_WATCHED = 8
_MOST_WATCHED = 16
"""A script that is only watched makes steps of about this time, and this many, from one request to the next: a rank
waits for each request, and what has become slower is to be seen within some steps."""

_OF_STEPS = ("step_seconds", "wait_seconds", "lost_shares", "num_left")

T = TypeVar("T")


class ScriptTrials:
    """Runs contestants on the script's own training; see `trials.samples.Service`.

    The script has one model, so contestants take turns in it: a change costs two steps that do not count. `prepare`
    only takes note of a contestant, and a strategy that is refused fails in its first run. After that, and after a
    contestant's last run, the script goes on by whatever comes next.
    """

    def __init__(self, ranks: ScriptRanks, *, observed: Sequence[Answer], most_spared: int | None = None) -> None:
        """`observed` are the workers' answers about the observed steps: they show which steps count.

        `most_spared` is the number of steps that the script makes at most while this process works; None: any number.
        """
        self._ranks = ranks
        self._most_spared = math.inf if most_spared is None else most_spared
        self.stock_seconds = statistics.median(map(max, zip(*(one["step_seconds"] for one in observed), strict=True)))
        """The time of a step under stock DDP, from the observed steps."""
        self._filter = StepFilter()
        first = _Counted()
        first.add(observed, self._filter.count(observed))
        waits = InputWaits.of(first.of_ranks("step_seconds"), first.of_ranks("wait_seconds"))
        self._waits_for_loaders = waits is not None and waits.is_worth_telling
        self._num_ahead = max(int(one["num_ahead"]) for one in observed)
        """The batches that the script's loaders read ahead."""
        self._fields: dict[str, Mapping[str, Any]] = {}
        self._present: str | None = None
        self._num_watched = _LEAST_WATCHED
        self._step_seconds: list[list[float]] = [[] for _ in observed]
        self._wait_seconds: list[list[float]] = [[] for _ in observed]
        self.num_steps = len(observed[0]["step_seconds"])
        """The steps that the script has made, observed ones included."""

    def fit(self, model: ModelSpec, cluster: ClusterSpec) -> None:
        """Have all ranks make plans for this model and this cluster from now on."""
        self._ranks.fit(model, cluster)

    def prepare(self, contestant: Contestant) -> int:
        """Take note of a contestant; return 1 if the script's steps wait for loaders, else 0 (see trials.periods)."""
        self._fields[contestant.name] = fields_of(contestant.bundle)
        return int(self._waits_for_loaders)

    def run(self, name: str, num_steps: int, *, settle: bool = False) -> StepSamples:
        """Train by a contestant until `num_steps` steps count."""
        counted = _Counted()
        self._count(counted, self._fields[name], num_steps, settle=settle)
        for key, kept in (("step_seconds", self._step_seconds), ("wait_seconds", self._wait_seconds)):
            for of_rank, seconds in zip(kept, counted.of_ranks(key), strict=True):
                of_rank.extend(seconds)
        return counted.samples(num_steps)

    def _count(self, counted: _Counted, fields: Mapping[str, Any], num_steps: int, *, settle: bool) -> None:
        """Train until `num_steps` more steps count."""
        began, wanted = time.monotonic(), counted.num_steps + num_steps
        # The first step after a change makes what later ones use again.
        missing = num_steps + (fields["strategy_id"] != self._present)
        num_asked = 0
        while missing > 0:
            if num_asked + missing > max(_MOST_ASKED * num_steps, _ALWAYS_ASKED):
                num_counted = counted.num_steps - wanted + num_steps
                raise OperationError(
                    f"{num_counted} of {num_asked} steps of the script count: in the others it evaluates, saves "
                    f"its state, begins an epoch or pauses between steps ({time.monotonic() - began:.0f} s; tuning "
                    "needs steps in which it only trains)"
                )
            answers = self._ask("run", {**fields, "num_steps": missing, "settle": settle})
            num_asked += missing
            counts = self._filter.count(answers)
            if num_asked > num_steps:
                # The first step of a further run begins with idle links.
                counts[0] = False
            counted.add(answers, counts)
            missing = wanted - counted.num_steps
            missing += missing > 0

    def sustained(self, contestant: Contestant) -> float | None:
        """Return how long a step by a contestant takes if its loaders make no batch faster; None if they keep up.

        In the turns of others, workers read ahead. So the script first trains by this contestant for some time. From
        then on, steps wait, or take more batches than are made: a part of them is then what was read ahead before.
        """
        if not self._num_ahead:
            return None
        affordable = round(_SUSTAINED_SECONDS / statistics.median(self._step_seconds[0][-_LEAST_WATCHED:]))
        num_steps = max(min(_SUSTAINED * self._num_ahead, affordable), self._num_ahead)
        fields, counted = fields_of(contestant.bundle), _Counted()
        while counted.num_steps < 2 * num_steps:
            self._count(counted, fields, min(2 * num_steps - counted.num_steps, _MOST_AT_ONCE), settle=False)
        steps, waits, lost, left = (
            [of_rank[-num_steps:] for of_rank in counted.of_ranks(key)]
            for key in ("step_seconds", "wait_seconds", "lost_shares", "num_left")
        )
        mean = InputWaits.of(steps, waits)
        assert mean is not None, "steps were made"
        most_lost = max(map(sum, lost))
        # Where batches are ready, a wait is the time in which the script takes one.
        is_empty = min(map(statistics.fmean, left)) < self._num_ahead / 2
        if most_lost < _LEAST_LOST and not (is_empty and mean.is_worth_telling):
            return None
        return mean.step_seconds / (1 - min(max(most_lost, 0.0) / num_steps, _MOST_LOST_SHARE))

    @property
    def input_waits(self) -> InputWaits | None:
        """How long the steps that counted have waited for their batches; None if there are none."""
        return InputWaits.of(self._step_seconds, self._wait_seconds)

    def train_while(self, work: Callable[[], T], bundle: Bundle | None) -> T:
        """Return what some work of this process gives. Meanwhile the script goes on training by a bundle.

        Its steps are not measured. If it has few steps to spare, it waits once they are made.
        """
        fields = {**fields_of(bundle), "settle": False}
        with ThreadPoolExecutor(1, thread_name_prefix="autosync-work") as pool:
            found = pool.submit(work)
            num_made, num_next = 0, 2
            while not found.done() and num_made + num_next <= self._most_spared:
                answers = self._ask("run", {**fields, "num_steps": num_next})
                num_made += num_next
                wanted = round(_SECONDS_AT_ONCE / statistics.median(answers[0]["step_seconds"]))
                num_next = min(max(wanted, 1), _MOST_AT_ONCE)
            return found.result()

    def _ask(self, request: str, fields: Mapping[str, Any]) -> Sequence[Answer]:
        self._present = None
        answers = self._ranks.ask(request, fields)
        self._present = fields["strategy_id"]
        self.num_steps += fields.get("num_steps", 0)
        return answers

    def difference(self, first: str, second: str) -> float:
        """Refuse: only inexact strategies are compared so, and a script is tuned by exact ones."""
        raise OperationError(f"{first} and {second} cannot be compared by their parameters: the script has one model")

    def timeline(self, name: str) -> str:
        """Refuse: the script's own steps are measured, and nothing records the parts of them."""
        raise OperationError(f"there is no timeline of {name}: the steps of a script that is tuned are not recorded")

    def release(self, name: str) -> None:
        """Forget a contestant."""
        self._fields.pop(name, None)

    def train_on(self, bundle: Bundle | None) -> list[float] | None:
        """Train by a bundle, or by stock DDP, for some steps, without a limit of time.

        Return the times of the steps that count, on the slowest rank each, without the longest wait for input; None if
        the script has ended.
        """
        num_steps, fields = self._num_watched, fields_of(bundle)
        is_change = fields["strategy_id"] != self._present
        answers = self._ranks.train({**fields, "num_steps": num_steps})
        if answers is None:
            return None
        self._present = fields["strategy_id"]
        self.num_steps += num_steps
        counts = self._filter.count(answers)
        if is_change:
            counts[:_STEPS_OF_CHANGE] = [False] * _STEPS_OF_CHANGE
        slowest, waits = (
            list(map(max, zip(*(answer[key] for answer in answers), strict=True)))
            for key in ("step_seconds", "wait_seconds")
        )
        wanted = round(_WATCHED_SECONDS / statistics.median(slowest))
        self._num_watched = min(max(wanted, _LEAST_WATCHED), _MOST_WATCHED)
        return [max(one - wait, 0.0) for one, wait, counted in zip(slowest, waits, counts, strict=True) if counted]


class _Counted:
    """The steps that count, of several runs."""

    def __init__(self) -> None:
        self._kept: dict[str, list[list[float]]] = {}
        self._answers: list[Sequence[Answer]] = []

    @property
    def num_steps(self) -> int:
        return len(self._kept["step_seconds"][0]) if self._kept else 0

    def of_ranks(self, key: str) -> list[list[float]]:
        """Return the times of the steps, by rank."""
        return self._kept[key]

    def add(self, answers: Sequence[Answer], counts: Sequence[bool]) -> None:
        if not self._kept:
            self._kept = {key: [[] for _ in answers] for key in _OF_STEPS}
        for key, of_ranks in self._kept.items():
            for kept, answer in zip(of_ranks, answers, strict=True):
                kept += [seconds for seconds, is_counted in zip(answer[key], counts, strict=True) if is_counted]
        self._answers.append(answers)

    def samples(self, num_steps: int) -> StepSamples:
        num_made = sum(len(answers[0]["step_seconds"]) for answers in self._answers)
        share = num_steps / num_made
        peaks = [[answer["peak_memory_bytes"] for answer in answers] for answers in self._answers]
        return StepSamples(
            step_seconds=tuple(tuple(kept[:num_steps]) for kept in self._kept["step_seconds"]),
            cpu_share=max(answer["cpu_share"] for answers in self._answers for answer in answers),
            bytes_sent=self._bytes("bytes_sent", share),
            bytes_received=self._bytes("bytes_received", share),
            peak_memory_bytes=tuple(map(max, zip(*peaks, strict=True))),
            inputs=[
                joined_sums([answers[rank]["input"] for answers in self._answers], share)
                | {"wait_seconds": sum(waits), "in_step": True}
                for rank, waits in enumerate([kept[:num_steps] for kept in self._kept["wait_seconds"]])
            ],
        )

    def _bytes(self, key: str, share: float) -> tuple[int, ...] | None:
        """Return each rank's bytes in the steps that count: the share of them in all steps made."""
        found = [[answer[key] for answer in answers] for answers in self._answers]
        if any(None in of_run for of_run in found):
            return None
        return tuple(round(share * sum(of_rank)) for of_rank in zip(*found, strict=True))


def fields_of(bundle: Any) -> Mapping[str, Any]:
    """Return the fields of a request about a bundle; None stands for stock DDP."""
    if bundle is None:
        return STOCK
    assert isinstance(bundle, Bundle), "strategies of a study are in memory"
    return {
        "strategy": dump_strategy(bundle.strategy),
        "strategy_id": bundle.strategy_id,
        "plan_id": bundle.plan_id,
    }
