"""Children that a script forks while it trains."""

import os
import signal
from collections.abc import Callable

import torch
from environment import Env, Run, Values, behaviour, momentum, task

HELD = torch.ones(3, 5, dtype=torch.float64)


def _forked(e: Env, act: Callable[[Run], bool]) -> Values:
    """A forked child looks at the model right after a step; its exit code says what it saw."""
    run = e.start(task(optimizer=momentum))
    run.steps(2)
    pid = os.fork()
    if not pid:
        signal.alarm(8)
        code = 3
        try:
            code = int(act(run))
        finally:
            os._exit(code)
    status = os.waitpid(pid, 0)[1]
    run.steps(2)
    return {"child": os.waitstatus_to_exitcode(status), **run.values()}


@behaviour
def fork_that_reads_parameters(e: Env) -> Values:
    def act(run: Run) -> bool:
        return bool(torch.isfinite(run.model[0].weight).all())

    return _forked(e, act)


@behaviour
def fork_that_evaluates(e: Env) -> Values:
    def act(run: Run) -> bool:
        run.model.eval()
        with torch.no_grad():
            return bool(torch.isfinite(run.model(HELD)).all())

    return _forked(e, act)


@behaviour
def fork_that_writes_a_checkpoint(e: Env) -> Values:
    """A child writes the state of the parent's model while that goes on."""
    import io

    def act(run: Run) -> bool:
        file = io.BytesIO()
        torch.save(run.model.state_dict(), file)
        return file.tell() > 0

    return _forked(e, act)
