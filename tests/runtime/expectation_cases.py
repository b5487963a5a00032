"""Training scripts, each run once by stock DDP and once by a bundle: what comes of both must be the same.

A script gets a `Script`, which says how the model is made parallel, and returns whatever must be equal.
"""

import contextlib
import functools
from collections.abc import Callable
from typing import Any

import expectation_optimizer_states
import expectation_optimizers
import expectation_states
import expectation_steps
import torch
import torch.distributed as dist
from expectation_script import Script, Values, session_of
from rank_training import difference, raised

from autosync.runtime.parallelize import describe


def script_of(name: str) -> Callable[[Script], Values]:
    found: Callable[[Script], Values] = {
        **vars(expectation_steps),
        **vars(expectation_states),
        **vars(expectation_optimizers),
        **vars(expectation_optimizer_states),
    }[name]
    return found


@functools.cache
def by_ddp(script: str, task: str) -> Values:
    """What stock DDP makes of a script."""
    return script_of(script)(Script(task, None))


def compared(script: str, task: str, bundle: str, **options: Any) -> str:
    """What of a script's results is not as under stock DDP."""
    expected = by_ddp(script, task)
    made = Script(task, bundle, **options)
    try:
        found = script_of(script)(made)
    finally:
        with contextlib.suppress(Exception):
            made.stop()
    if found.keys() != expected.keys():
        return f"keys {list(found)} for {list(expected)}"
    return difference(found, expected)


def refused(script: str, task: str, bundle: str, **options: Any) -> str:
    """How a script is refused."""
    made = Script(task, bundle, **options)
    try:
        return raised(lambda: script_of(script)(made))
    finally:
        with contextlib.suppress(Exception):
            made.stop()


# What is no comparison with DDP.


def first_rank_evaluates(bundle: str, **options: Any) -> str:
    """One rank alone calls the model in evaluation: nobody waits for the others."""
    script = Script("normed", bundle, **options).start()
    script.steps(2)
    if script.rank == 0:
        script.model.eval()
        with torch.no_grad():
            script.loss()
        script.loss()
        script.model.train()
    # What the first rank has drawn alone.
    script.batches.manual_seed(script.rank)
    script.steps(2)
    script.stop()
    return ""


def keeps_own_buffers(bundle: str, **options: Any) -> str:
    """`broadcast_buffers=False`: what ranks have of statistics is what DDP leaves them with when told the same."""
    found = []
    for script in (Script("normed", None), Script("normed", bundle, **options)):
        script.start(broadcast_buffers=False).steps()
        found.append(script.model[1].running_mean.clone())  # type: ignore[index,union-attr]
        script.stop()
    stock, ours = found
    return "" if torch.allclose(stock, ours, rtol=1e-11) else f"{ours} for {stock}"


def described(bundle: str, **options: Any) -> str:
    script = Script("everything", bundle, **options)
    bare = repr(script.model)
    script.start()
    words = describe(script.model)
    assert repr(script.model) == bare, "it is the same model"
    assert repr(session_of(script.model)) == words
    script.step()
    script.stop()
    return words


def two_groups_at_once(bundle: str, **options: Any) -> str:
    """Four ranks, two data-parallel groups, each with a model and batches of its own."""
    groups = [dist.new_group([0, 2]), dist.new_group([1, 3])]
    mine = dist.get_rank() % 2
    plain = script_of("plain")
    expected = plain(Script("everything", None, group=groups[mine], seed=40 * mine))
    script = Script("everything", bundle, group=groups[mine], seed=40 * mine, **options)
    found = plain(script)
    script.stop()
    wrong = [key for key, value in found.items() if not torch.allclose(value, expected[key], rtol=1e-11, atol=1e-13)]
    return ", ".join(wrong)


def changes_within_a_step(bundle: str, **options: Any) -> str:
    """The first rank decays its parameters by hand, when a server has begun the step; how it is refused."""
    script = Script("layers", bundle, timeout_seconds=5, **options).start()
    script.step()
    script.optimizer.zero_grad()
    script.loss().backward()
    for parameter in script.model.parameters():
        parameter.data.mul_(0.99)
    told = raised(script.optimizer.step) if script.rank == 0 else ""
    with contextlib.suppress(Exception):
        script.stop()
    return told
