"""What ranks are told to do in tests of interrupts: Ctrl-C comes while a rank waits for another one within a step."""

import contextlib
import signal
import time
from collections.abc import Iterator
from typing import Any

from rank_training import raised, rank, training

from autosync.runtime.checkpoints.calls import save

_COMES_SECONDS, _LATE_SECONDS = 0.4, 1.2


def _interrupt(*_: Any) -> None:
    raise KeyboardInterrupt


@contextlib.contextmanager
def _interrupted() -> Iterator[None]:
    """Have Ctrl-C come after a while. The script goes on from there."""
    before = signal.signal(signal.SIGALRM, _interrupt)
    signal.setitimer(signal.ITIMER_REAL, _COMES_SECONDS)
    try:
        yield
    except KeyboardInterrupt:
        return
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    raise AssertionError("the wait was over before the interrupt")


def in_backward(bundle: str) -> dict[str, str]:
    """The first rank is interrupted when it waits for the second one's gradients; what it may do then."""
    with training("small", bundle, hand_off=False, timeout_seconds=20) as made:
        made.step()
        made.optimizer.zero_grad()
        if rank():
            time.sleep(_LATE_SECONDS)
            made.backward()
            return {}
        with _interrupted():
            made.backward()
        return _attempts(made, bundle)


def in_step(bundle: str) -> dict[str, str]:
    """The first rank is interrupted when it waits for the second one's updates; what it may do then."""
    with training("small", bundle, hand_off=False, timeout_seconds=20) as made:
        made.step()
        made.optimizer.zero_grad()
        made.backward()
        if rank():
            time.sleep(_LATE_SECONDS)
            made.optimizer.step()
            return {}
        with _interrupted():
            made.optimizer.step()
        return _attempts(made, bundle)


def _attempts(made: Any, bundle: str) -> dict[str, str]:
    found = {"step": raised(made.optimizer.step)}
    made.optimizer.zero_grad()
    found["step without gradients"] = raised(made.optimizer.step)
    found["backward"] = raised(made.backward)
    found["save"] = raised(lambda: save(made.model, f"{bundle}-saved"))
    return found
