"""Finds input settings by trials of the loader on this machine.

A few start points are tried first. From the best one, one setting at a time is changed. A change that helps is
repeated, and after one that harms, the opposite change is tried. The part on which workers spend most time says which
setting is changed first. The last trials repeat the two best settings, because the fastest of many noisy trials is too
often a lucky one.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from autosync.errors import InputError, OperationError
from autosync.inputs.epoch_order import Shuffle
from autosync.inputs.intervals import RateInterval, rate_interval
from autosync.inputs.tar_shards import reads_through_autosync
from autosync.inputs.trial import InputTrial, InputWork, run_trial
from autosync.specs.input_settings import InputSettings

MAX_TRIALS = 12
_NUM_REPEATS = 2
_AS_GOOD = 0.99
"""Of settings within 1 % of the best rate, those with the fewest workers are taken."""

_BY_CHANCE = 0.98
"""The rates of two trials with the same settings often differ by 1 %. A change by less than 2 % says nothing."""

_RANGES = {
    "num_workers": (0, 64),
    "prefetch_factor": (1, 16),
    "worker_threads": (1, 8),
    "read_bytes": (2**16, 2**26),
    "read_concurrency": (1, 64),
}
_FACTORS = {"read_bytes": 8}
"""By which factor a setting is changed, if not by 2."""

_FIRST_MOVES = {
    "read": (("read_concurrency", 1), ("num_workers", 1), ("read_bytes", 1), ("prefetch_factor", 1)),
    "decode": (("num_workers", 1), ("worker_threads", 1), ("prefetch_factor", 1)),
    "collate": (("num_workers", 1), ("prefetch_factor", 1)),
}
"""What is changed first, and in which direction, by the part that takes most time."""

_OTHER_MOVES = (
    ("num_workers", 1),
    ("num_workers", -1),
    ("prefetch_factor", 1),
    ("read_concurrency", 1),
    ("read_bytes", 1),
    ("read_bytes", -1),
    ("read_concurrency", -1),
    ("prefetch_factor", -1),
)

Move = tuple[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class InputTuning:
    """The trials of a tuning run and the settings that it found, with the rate of all their trials together."""

    settings: InputSettings
    rate: RateInterval
    trials: tuple[InputTrial, ...]


def tune_input(
    dataset: Any,
    *,
    batch_size: int,
    collate_fn: Callable[[list[Any]], Any] | None = None,
    shuffle: Shuffle = "examples",
    compute_seconds: float = 0.0,
    start: InputSettings | None = None,
    max_trials: int = MAX_TRIALS,
    trial_seconds: float = 3.0,
    max_workers: int | None = None,
    seed: int = 0,
    prepare: Callable[[], None] | None = None,
    told: Callable[[InputTrial], None] = lambda _trial: None,
) -> InputTuning:
    """Return the settings that deliver the most examples a second, with all trials.

    With `compute_seconds`, each step sleeps so long between two batches, as a training step on an accelerator does;
    then the rate includes it, and the settings that let steps wait least are found. `start` has the settings that are
    not searched, such as a cache. The request size and concurrency are searched only if the dataset reads through
    autosync. `told` receives each trial.
    """
    if max_trials < 1 or not trial_seconds > 0 or compute_seconds < 0:
        raise InputError(
            f"{max_trials} trials of {trial_seconds} s with {compute_seconds} s of compute",
            rule="one trial or more, of more than 0 s, and compute of 0 s or more",
        )
    work = InputWork(
        dataset=dataset,
        batch_size=batch_size,
        collate_fn=collate_fn,
        shuffle=shuffle,
        seed=seed,
        compute_seconds=compute_seconds,
        prepare=prepare,
    )
    search = _Search(
        work,
        start or InputSettings(),
        max_trials=max_trials,
        trial_seconds=trial_seconds,
        max_workers=max_workers,
        told=told,
    )
    search.run(random.Random(seed))
    best = search.ranked()
    if not best:
        raise OperationError(f"no trial succeeded; the first failed with: {search.trials[0].failure}")
    top = search.pooled(best[0]).value
    good = [one for one in best if search.pooled(one).value >= _AS_GOOD * top]
    chosen = min(good, key=lambda one: (one.num_workers, -search.pooled(one).value))
    return InputTuning(settings=chosen, rate=search.pooled(chosen), trials=tuple(search.trials))


class _Search:
    """The trials so far and the choice of the next."""

    def __init__(
        self,
        work: InputWork,
        start: InputSettings,
        *,
        max_trials: int,
        trial_seconds: float,
        max_workers: int | None,
        told: Callable[[InputTrial], None],
    ) -> None:
        self.trials: list[InputTrial] = []
        self._work = work
        self._start = start
        self._max_trials = max_trials
        self._seconds = trial_seconds
        self._num_cores = len(os.sched_getaffinity(0))
        self._max_workers = max(4, 2 * self._num_cores) if max_workers is None else max_workers
        self._told = told
        self._searched = {"num_workers", "prefetch_factor", "worker_threads"}
        if reads_through_autosync(work.dataset):
            self._searched |= {"read_bytes", "read_concurrency"}

    def run(self, chance: random.Random) -> None:
        # More than half of a few trials must not be repeats.
        num_repeats = min(_NUM_REPEATS, (self._max_trials - 1) // 3)
        last = self._max_trials - num_repeats
        for settings in self._start_points(chance):
            if len(self.trials) < last and not self._is_tried(settings):
                self._try(settings)
        self._climb(last)
        for settings in self.ranked()[:num_repeats]:
            self._try(settings)

    def _start_points(self, chance: random.Random) -> Iterator[InputSettings]:
        """Yield the first settings. Without workers, errors of the user's code come first and with their own line."""
        yield self._with_workers(self._start, 0)
        yield self._with_workers(self._start, 2)
        yield self._with_workers(self._start, 4 if self._num_cores <= 2 else self._num_cores)
        drawn = {
            "prefetch_factor": chance.choice((2, 4, 8)),
            "read_bytes": chance.choice((2**18, 2**20, 2**23)),
            "read_concurrency": chance.choice((8, 16, 32)),
        }
        changes: dict[str, Any] = {name: value for name, value in drawn.items() if name in self._searched}
        yield self._with_workers(replace(self._start, **changes), chance.randint(1, max(self._max_workers, 1)))

    def _with_workers(self, settings: InputSettings, num_workers: int) -> InputSettings:
        return replace(settings, num_workers=min(num_workers, self._max_workers))

    def _climb(self, last: int) -> None:
        """Change one setting of the best at a time, until there are `last` trials or no change is left."""
        next_move: Move | None = None
        while len(self.trials) < last and (ranked := self.ranked()):
            best, best_rate = ranked[0], self.pooled(ranked[0]).value
            moves = [*([next_move] if next_move else []), *_FIRST_MOVES[self._bottleneck(best)], *_OTHER_MOVES]
            candidates = ((move, self._moved(best, move)) for move in moves)
            found = next(((m, s) for m, s in candidates if s is not None and not self._is_tried(s)), None)
            if found is None:
                return
            (name, direction), settings = found
            self._try(settings)
            rate = self.pooled(settings).value if self._of(settings) else 0.0
            if best_rate < _BY_CHANCE * rate:
                next_move = (name, direction)
            else:
                next_move = (name, -direction) if rate < _BY_CHANCE * best_rate else None

    def _moved(self, settings: InputSettings, move: Move) -> InputSettings | None:
        """Return settings with one change, or None if the change has no effect or leaves the range."""
        name, direction = move
        if name not in self._searched or (name in ("prefetch_factor", "worker_threads") and not settings.num_workers):
            return None
        value, factor = getattr(settings, name), _FACTORS.get(name, 2)
        changed = max(value * factor, 1) if direction > 0 else value // factor
        least, most = _RANGES[name]
        if name == "num_workers":
            most = min(most, self._max_workers)
            changed = min(changed, most)
        if name == "worker_threads":
            most = min(most, max(self._num_cores // max(settings.num_workers, 1), 1))
        if changed == value or not least <= changed <= most:
            return None
        changes: dict[str, Any] = {name: changed}
        if name == "read_bytes" and direction < 0:
            # As many bytes are asked for at a time, in smaller requests.
            changes["read_concurrency"] = min(settings.read_concurrency * factor, _RANGES["read_concurrency"][1])
        return replace(settings, **changes)

    def _try(self, settings: InputSettings) -> None:
        number = len(self.trials)
        try:
            trial = run_trial(self._work, settings, number=number, seconds=self._seconds)
        except Exception as error:
            # Without workers, the user's data or code fails; with workers, the settings may be to blame.
            if settings.num_workers == 0:
                raise
            words = " ".join(str(error).split()) or type(error).__name__
            trial = InputTrial(number=number, settings=settings, failure=words)
        self.trials.append(trial)
        self._told(trial)

    def _is_tried(self, settings: InputSettings) -> bool:
        return any(_effective(trial.settings) == _effective(settings) for trial in self.trials)

    def _bottleneck(self, settings: InputSettings) -> str:
        return next(trial.bottleneck for trial in self._of(settings))

    def _of(self, settings: InputSettings) -> Sequence[InputTrial]:
        return [trial for trial in self.trials if trial.settings == settings and trial.rate is not None]

    def pooled(self, settings: InputSettings) -> RateInterval:
        """Return the rate of all trials with these settings together."""
        trials = self._of(settings)
        return rate_interval(
            [count for trial in trials for count in trial.step_counts],
            [seconds for trial in trials for seconds in trial.step_seconds],
        )

    def ranked(self) -> list[InputSettings]:
        """Return the settings of successful trials, the fastest first."""
        tried = dict.fromkeys(trial.settings for trial in self.trials if trial.rate is not None)
        failed = {trial.settings for trial in self.trials if trial.failure}
        return sorted((one for one in tried if one not in failed), key=lambda one: -self.pooled(one).value)


def _effective(settings: InputSettings) -> InputSettings:
    """Return settings without differences that have no effect."""
    if settings.num_workers:
        return settings
    return replace(settings, prefetch_factor=1, worker_threads=1, persistent_workers=False)
