"""The machine of a campaign: measures how busy other programs are, and waits until they are not."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from autosync.errors import OperationError
from autosync.specs.background_load import BackgroundLoad

LOOK_SECONDS = 0.5


class Machine:
    """Measures the use by other programs, and waits until it is small."""

    def __init__(
        self,
        *,
        max_other_cpu: float,
        patience_seconds: float,
        proc: Path = Path("/proc"),
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.max_other_cpu = max_other_cpu
        self._patience_seconds = patience_seconds
        self._sleep = sleep
        self._clock = clock
        self._others = BackgroundLoad(proc)

    def others_share(self) -> float:
        """Return the share of all processor time that others used since the last call."""
        return self._others.share()

    def await_quiet(self, tell: Callable[[str], None]) -> None:
        """Return when others use little; raise an OperationError if they are busy for too long."""
        deadline = self._clock() + self._patience_seconds
        told = False
        while True:
            self.others_share()
            self._sleep(LOOK_SECONDS)
            share = self.others_share()
            if share <= self.max_other_cpu:
                return
            busy = f"other programs use {share:.0%} of the processors (at most {self.max_other_cpu:.0%} may be)"
            if self._clock() >= deadline:
                raise OperationError(f"{busy}; waited {self._patience_seconds:.0f} s")
            if not told:
                tell(f"waiting: {busy}")
                told = True
            self._sleep(min(5.0, max(0.0, deadline - self._clock())))
