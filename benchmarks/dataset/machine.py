"""The machine of a campaign: how busy it is with other things, and waiting until it is not."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from autosync.errors import OperationError
from autosync.specs.background_load import BackgroundLoad

LOOK_SECONDS = 0.5


class Machine:
    """Tells what others use, and waits until it is little."""

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
        """The share of all processor time that others used since this was last asked."""
        return self._others.share()

    def await_quiet(self, tell: Callable[[str], None]) -> None:
        """Return when others use little; OperationError where they do not stop for too long."""
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
