"""Decides how often a search or comparison goes on after failures of the machines, and pauses before it goes on."""

from __future__ import annotations

import time
from collections.abc import Callable

from autosync.datasets.schema import Failure
from autosync.errors import OperationError
from autosync.trials.failures import TrialFailed

PAUSES_SECONDS: tuple[float, ...] = (1.0, 4.0)
"""The pauses before the second and third attempt to start ranks. If the third fails too, the run ends."""
MAX_LOST = 10
"""If this many trials in a row lose a rank, the run ends. Fewer may be the fault of a few strategies."""


class Outages:
    """The failures of machines during one search or comparison."""

    def __init__(self) -> None:
        self._doubted: set[str] = set()
        self._num_not_started = 0
        self._num_lost = 0

    def excuses(self, name: str, error: TrialFailed) -> bool:
        """Whether a contestant is not blamed for a failure and should be tried again."""
        excused = error.is_excused(is_repeated=name in self._doubted)
        if error.blame == "either":
            self._doubted.add(name)
        return excused

    def wait(self, failure: Failure | TrialFailed, told: Callable[[str], None] = lambda _: None) -> None:
        """Pause after a failure of the machines; raise OperationError after too many in a row."""
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
        """Reset the counts, because a measurement succeeded: the machines work again."""
        self._num_not_started = self._num_lost = 0
