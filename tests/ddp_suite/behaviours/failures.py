"""Errors of the script that it goes on from, ranks that differ, and what is refused on all ranks."""

import contextlib
import time
from typing import Any

import torch
import torch.distributed as dist
from environment import Env, Run, Values, behaviour, enter, momentum, net, task
from torch import Tensor, nn


class Mine(Exception):  # noqa: N818 - the script's own
    """The script's own error."""


def _fails(e: Env, where: str, *, at: int, on: tuple[int, ...] = (0, 2)) -> Values:
    """A layer fails in some steps, on all ranks, and the script goes on with the next one."""
    fails = False

    def fault(_: nn.Module, __: Any, y: Tensor) -> None:
        if fails and where == "forward":
            raise Mine
        if fails:
            y.register_hook(_raise)

    run = e.run(task(optimizer=momentum))
    run.model[at].register_forward_hook(fault)
    run.start()
    for number in range(5):
        fails = number in on
        with contextlib.suppress(Mine):
            run.step()
    return run.values()


def _raise(_: Tensor) -> None:
    raise Mine


enter("error_in_forward", lambda e: _fails(e, "forward", at=2), group="failures")
enter("error_in_forward_of_the_first_layer", lambda e: _fails(e, "forward", at=0), group="failures")
enter("error_in_backward_before_gradients", lambda e: _fails(e, "backward", at=4), group="failures")
enter("error_in_backward_among_gradients", lambda e: _fails(e, "backward", at=1, on=(2,)), group="failures")


@behaviour
def error_after_forward(e: Env) -> Values:
    """The script finds its loss to be bad and leaves the rest out."""
    run = e.start(task(optimizer=momentum))
    for number in range(5):
        run.optimizer.zero_grad()
        loss = run.loss()
        if number in (0, 2):
            continue
        loss.backward()
        run.optimizer.step()
    return run.values()


@behaviour
def error_between_backward_and_step(e: Env) -> Values:
    run = e.start(task(optimizer=momentum))
    for number in range(5):
        with contextlib.suppress(Mine):
            run.optimizer.zero_grad()
            run.loss().backward()
            if number in (1, 3):
                raise Mine
            run.optimizer.step()
    return run.values()


@behaviour
def error_in_step(e: Env) -> Values:
    """A hook of the script's fails before the step."""
    run = e.run(task(optimizer=momentum))
    fails = [False]

    def fault(*_: Any) -> None:
        if fails[0]:
            raise Mine

    run.optimizer.register_step_pre_hook(fault)
    run.start()
    for number in range(5):
        fails[0] = number == 2
        with contextlib.suppress(Mine):
            run.step()
    return run.values()


@behaviour
def error_within_evaluation(e: Env) -> Values:
    run = e.start(task(optimizer=momentum))
    for _ in range(4):
        run.step()
        with contextlib.suppress(RuntimeError), torch.no_grad():
            run.model(torch.ones(2, 7, dtype=torch.float64))
    return run.values()


@behaviour
def error_on_all_ranks_ends_the_script(e: Env) -> Values:
    run = e.start(task())
    run.step()
    raise Mine


# Ranks that differ: an error on every rank, and in time.


def _ends_with_an_error(run: Run, steps: int = 2) -> Values:
    """Whether it ended with an error, whichever: stock DDP's are of several kinds."""
    try:
        run.start()
        run.steps(steps)
    except (RuntimeError, ValueError) as error:
        raise Mine from error
    return run.values()


@behaviour
def another_shape_on_one_rank(e: Env) -> Values:
    run = e.run(task())
    if e.rank == 1:
        run.model = nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 4), nn.Tanh(), nn.Linear(4, 1)).double()
        run.optimizer = run.task.optimizer(run.model.parameters())
    return _ends_with_an_error(run)


@behaviour
def another_number_of_parameters_on_one_rank(e: Env) -> Values:
    run = e.run(task())
    if e.rank == 1:
        run.model = nn.Sequential(*list(run.model), nn.Linear(1, 1).double())
        run.optimizer = run.task.optimizer(run.model.parameters())
    return _ends_with_an_error(run)


@behaviour
def another_type_on_one_rank(e: Env) -> Values:
    run = e.run(task())
    if e.rank == 1:
        run.model.float()
    return _ends_with_an_error(run)


@behaviour
def no_trainable_parameter(e: Env) -> Values:
    """DDP refuses a model that has nothing to train."""
    run = e.run(task())
    run.model.requires_grad_(requires_grad=False)
    return _ends_with_an_error(run)


# What differs between ranks, and is right.


@behaviour
def delay_on_one_rank(e: Env) -> Values:
    run = e.start(task(optimizer=momentum))
    for number in range(4):
        if (number + e.rank) % 2:
            time.sleep(0.05)
        run.step()
    return run.values()


@behaviour
def delay_between_backward_and_step(e: Env) -> Values:
    run = e.start(task(optimizer=momentum))
    for number in range(4):
        run.optimizer.zero_grad()
        run.loss().backward()
        time.sleep(0.05 * ((number + e.rank) % 2))
        run.optimizer.step()
        time.sleep(0.05 * ((number + e.rank) % 3))
    return run.values()


@behaviour
def no_gradient_on_one_rank(e: Env) -> Values:
    """One rank's loss does not depend on the second head."""

    class Heads(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.trunk, self.one, self.two = nn.Linear(5, 6), nn.Linear(6, 1), nn.Linear(6, 1)

        def forward(self, x: Tensor) -> Any:
            h = torch.tanh(self.trunk(x))
            return self.one(h), self.two(h)

    run = e.start(
        task(lambda: Heads().double(), momentum, loss=lambda m, x: sum(y.square().mean() for y in m(x))),
        ddp={"find_unused_parameters": True},
    )
    for _ in range(3):
        run.optimizer.zero_grad()
        one, two = run.called(run.batch())
        (one.square().mean() + (two.square().mean() if e.rank == 0 else 0)).backward()
        run.optimizer.step()
    return run.values()


@behaviour
def skips_a_bad_batch_on_one_rank_alone(e: Env) -> Values:
    """A rank that leaves a whole step out has others wait; the loss times zero is how scripts avoid it."""
    run = e.start(task(optimizer=momentum))
    for number in range(4):
        run.optimizer.zero_grad()
        loss = run.loss()
        if (number, e.rank) == (1, 1):
            loss = loss * 0
        loss.backward()
        run.optimizer.step()
    return run.values()


def _joined(e: Env, **options: Any) -> Values:
    run = e.start(task())
    with run.join(**options):
        for _ in range(2 + 2 * e.rank):
            run.optimizer.zero_grad()
            run.loss().backward()
            run.optimizer.step()
    return run.values()


enter("join_uneven_inputs", _joined, group="failures")
enter("join_divided_by_those_left", lambda e: _joined(e, divide_by_initial_world_size=False), group="failures")


@behaviour
def join_where_inputs_are_even(e: Env) -> Values:
    run = e.start(task())
    with run.join():
        run.steps(3)
    return run.values()


@behaviour
def join_switched_off(e: Env) -> Values:
    run = e.start(task())
    with run.join(enable=False):
        run.steps(3)
    return run.values()


@behaviour
def barriers_between_steps(e: Env) -> Values:
    run = e.start(task(optimizer=momentum))
    for _ in range(4):
        run.step()
        dist.barrier()
    return run.values()


@behaviour
def other_groups_of_ranks(e: Env) -> Values:
    """The script makes groups of its own and uses them while it trains."""
    run = e.start(task(optimizer=momentum))
    group = dist.new_group([0, 1])
    found = []
    for _ in range(3):
        run.step()
        if e.rank < 2:
            seen = torch.ones(1) * e.rank
            dist.all_reduce(seen, group=group)
            found.append(float(seen))
    return {"found": found, **run.values()}


@behaviour
def a_group_that_is_not_the_default(e: Env) -> Values:
    run = e.run(task(net, momentum))
    run.start(process_group=dist.new_group(list(range(e.ranks))))
    run.steps()
    return run.values()


@behaviour
def anomaly_detection(e: Env) -> Values:
    run = e.start(task(optimizer=momentum))
    with torch.autograd.set_detect_anomaly(mode=True):
        run.steps(3)
    return run.values()


@behaviour
def deterministic_algorithms(e: Env) -> Values:
    run = e.start(task(optimizer=momentum))
    torch.use_deterministic_algorithms(mode=True)
    try:
        run.steps(3)
    finally:
        torch.use_deterministic_algorithms(mode=False)
    return run.values()


@behaviour
def profiled_by_torch(e: Env) -> Values:
    from torch.profiler import profile

    run = e.start(task(optimizer=momentum))
    run.step()
    with profile() as seen:
        run.steps(2)
    return {"saw something": len(seen.key_averages()) > 0, **run.values()}


@behaviour
def another_layout_on_one_rank(e: Env) -> Values:
    """The strides of a parameter differ between ranks."""
    run = e.run(task(lambda: nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(64, 1)).double(), batch=_images))
    if e.rank == 1:
        run.model.to(memory_format=torch.channels_last)
    return _ends_with_an_error(run)


def _images(g: torch.Generator) -> Tensor:
    return torch.randn(2, 3, 6, 6, generator=g, dtype=torch.float64)


@behaviour
def join_that_throws(e: Env) -> Values:
    """`throw_on_early_termination`: all ranks end when the first has no more batches."""
    run = e.start(task())
    with contextlib.suppress(RuntimeError):
        _joined_steps(run, throw_on_early_termination=True)
    return {}


def _joined_steps(run: Run, **options: Any) -> None:
    with run.join(**options):
        for _ in range(2 + 2 * run.rank):
            run.step()


@behaviour
def stops_early(e: Env) -> Values:
    """Ranks agree by a collective of the script's to stop, and evaluate."""
    run = e.start(task(optimizer=momentum))
    for number in range(10):
        run.step()
        stop = torch.tensor(float(number == 3 and e.rank == 0))
        dist.all_reduce(stop)
        if stop.item():
            break
    run.model.eval()
    with torch.no_grad():
        return {"out": run.model(torch.ones(2, 5, dtype=torch.float64)).clone(), **run.values()}
