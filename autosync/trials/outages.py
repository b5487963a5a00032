"""How often failures of the machines are put up with: each time after a longer pause, and not without end."""

from __future__ import annotations

import time
from collections.abc import Callable

from autosync.datasets.schema import Failure
from autosync.errors import OperationError
from autosync.trials.failures import TrialFailed

PAUSES_SECONDS: tuple[float, ...] = (1.0, 4.0)
"""Before a second and a third attempt to start ranks. What fails once more after the last of them is no accident."""
MAX_LOST = 10
"""The tenth trial in a row that ends by what may be the machines ends the run: a few strategies may have done it."""


class Outages:
    """Those of one search or comparison."""

    def __init__(self) -> None:
        self._doubted: set[str] = set()
        self._num_not_started = 0
        self._num_lost = 0

    def excuses(self, name: str, error: TrialFailed) -> bool:
        """Whether a contestant has no part in a failure and is to be tried again."""
        excused = error.is_excused(is_repeated=name in self._doubted)
        if error.blame == "either":
            self._doubted.add(name)
        return excused

    def wait(self, failure: Failure | TrialFailed, told: Callable[[str], None] = lambda _: None) -> None:
        """After a failure of the machines: pause, or give up where too many came one after another."""
        if failure.kind == "launch":
            self._num_not_started += 1
            number, most, seconds = self._num_not_started, len(PAUSES_SECONDS) + 1, PAUSES_SECONDS
        else:
            self._num_lost += 1
            number, most, seconds = self._num_lost, MAX_LOST, PAUSES_SECONDS[:1]
        if number == most:
            raise OperationError(f"{failure.message} ({number} times in a row)")
        pause = seconds[min(number, len(seconds)) - 1]
        told(f"trying again in {pause:g} s")
        time.sleep(pause)

    def over(self) -> None:
        """Something was measured: the machines are there again."""
        self._num_not_started = self._num_lost = 0
