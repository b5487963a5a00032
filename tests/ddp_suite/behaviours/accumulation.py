"""`no_sync` and accumulation, several forward and backward passes, and passes in other orders."""

import contextlib
from collections.abc import Callable

import torch
from environment import Env, Run, Values, adam, behaviour, enter, momentum, net, square, task
from torch import Tensor, nn


def _accumulates(e: Env, turn: Callable[[Run, int], None], **more: object) -> Values:
    run = e.start(task(optimizer=momentum, **more))
    for number in range(4):
        run.optimizer.zero_grad()
        turn(run, number)
        run.optimizer.step()
    return run.values()


def _usual(run: Run, _: int) -> None:
    with run.no_sync():
        for _ in range(2):
            run.loss().backward()
    run.loss().backward()


def _one(run: Run, _: int) -> None:
    with run.no_sync():
        run.loss().backward()
    run.loss().backward()


def _other_counts(run: Run, number: int) -> None:
    with run.no_sync():
        for _ in range(number):
            run.loss().backward()
    run.loss().backward()


def _other_counts_on_each_rank(run: Run, number: int) -> None:
    with run.no_sync():
        for _ in range((number + run.rank) % 3):
            run.loss().backward()
    run.loss().backward()


def _nested(run: Run, _: int) -> None:
    with run.no_sync():
        with run.no_sync():
            run.loss().backward()
        run.loss().backward()
    run.loss().backward()


def _entered_anew(run: Run, _: int) -> None:
    for _ in range(3):
        with run.no_sync():
            run.loss().backward()
    run.loss().backward()


def _divided(run: Run, _: int) -> None:
    with run.no_sync():
        (run.loss() / 2).backward()
    (run.loss() / 2).backward()


def _several_forwards(run: Run, _: int) -> None:
    losses = [run.loss() for _ in range(3)]
    torch.stack(losses).mean().backward()


def _forward_of_which_nothing_comes(run: Run, _: int) -> None:
    run.loss()
    run.loss().backward()


def _forward_without_gradients_between(run: Run, _: int) -> None:
    loss = run.loss()
    with torch.no_grad():
        run.loss()
    loss.backward()


def _forward_within_backward_outside(run: Run, _: int) -> None:
    """Under DDP it is the forward pass that decides."""
    with run.no_sync():
        run.loss().backward()
    with run.no_sync():
        loss = run.loss()
    loss.backward()
    run.loss().backward()


def _sum_of_losses_of_two_passes(run: Run, _: int) -> None:
    (run.loss() + 2 * run.loss()).backward()


def _error_within(run: Run, _: int) -> None:
    with contextlib.suppress(ZeroDivisionError), run.no_sync():
        run.loss().backward()
        1 / 0  # noqa: B018 - an error of the script's
    run.loss().backward()


def _two_synchronised(run: Run, _: int) -> None:
    """Each pass averages: the first's average is added to again."""
    run.loss().backward()
    run.loss().backward()


def _kept_graph(run: Run, _: int) -> None:
    with run.no_sync():
        loss = run.loss()
        loss.backward(retain_graph=True)
        loss.backward()
    run.loss().backward()


def _kept_graph_synchronised(run: Run, _: int) -> None:
    """A second backward pass over a kept graph: DDP leaves it unsynchronised."""
    loss = run.loss()
    loss.backward(retain_graph=True)


for _name, _turn in {
    "accumulates": _usual,
    "accumulates_one": _one,
    "accumulates_other_counts": _other_counts,
    "accumulates_other_counts_on_each_rank": _other_counts_on_each_rank,
    "no_sync_nested": _nested,
    "no_sync_entered_anew": _entered_anew,
    "accumulates_and_divides": _divided,
    "several_forwards": _several_forwards,
    "forward_of_which_nothing_comes": _forward_of_which_nothing_comes,
    "forward_without_gradients_between": _forward_without_gradients_between,
    "forward_within_no_sync_backward_outside": _forward_within_backward_outside,
    "losses_of_two_passes": _sum_of_losses_of_two_passes,
    "error_within_no_sync": _error_within,
    "two_synchronised_backwards": _two_synchronised,
    "kept_graph_within_no_sync": _kept_graph,
    "kept_graph": _kept_graph_synchronised,
}.items():
    enter(_name, lambda e, turn=_turn: _accumulates(e, turn), group="accumulation")


@behaviour
def accumulates_in_groups_of_an_epoch(e: Env) -> Values:
    """The usual loop: the last batches of an epoch make a shorter group."""
    run = e.start(task(optimizer=adam))
    batches = [run.batch() for _ in range(7)]
    for epoch in range(2):
        run.optimizer.zero_grad()
        for number, batch in enumerate(batches):
            if (number + 1) % 3 and number + 1 < len(batches):
                with run.no_sync():
                    run.loss(batch).backward()
            else:
                run.loss(batch).backward()
                run.optimizer.step()
                run.optimizer.zero_grad()
        assert epoch < 2
    return run.values()


@behaviour
def accumulates_at_first_and_then_does_not(e: Env) -> Values:
    run = e.start(task(optimizer=momentum))
    for number in range(5):
        run.optimizer.zero_grad()
        if number < 2:
            with run.no_sync():
                run.loss().backward()
        run.loss().backward()
        run.optimizer.step()
    return run.values()


@behaviour
def declared_accumulation(e: Env) -> Values:
    """The task says that two microsteps make a step."""
    run = e.start(task(optimizer=momentum, accumulation_steps=2))
    for _ in range(4):
        run.optimizer.zero_grad()
        _one(run, 0)
        run.optimizer.step()
    return run.values()


@behaviour
def gradients_within_no_sync_are_each_ranks_own(e: Env) -> Values:
    run = e.start(task())
    found = {}
    for number in range(3):
        run.optimizer.zero_grad()
        with run.no_sync():
            run.loss().backward()
        found |= run.grads(f"{number} ")
        run.loss().backward()
        run.optimizer.step()
    return {**found, **run.values()}


@behaviour
def no_sync_thrown_away(e: Env) -> Values:
    """What was accumulated is zeroed before the synchronised pass."""
    run = e.start(task(optimizer=momentum))
    for _ in range(3):
        with run.no_sync():
            run.loss().backward()
        run.optimizer.zero_grad()
        run.loss().backward()
        run.optimizer.step()
    return run.values()


@behaviour
def step_of_no_sync_alone(e: Env) -> Values:
    """A step with gradients that were never synchronised: under DDP ranks part."""
    run = e.start(task())
    run.step()
    run.optimizer.zero_grad()
    with run.no_sync():
        run.loss().backward()
    run.optimizer.step()
    return run.values()


@behaviour
def local_steps_between(e: Env) -> Values:
    """As local SGD has it: steps of each rank's own under `no_sync`, then a synchronised one."""
    run = e.start(task())
    for number in range(4):
        run.optimizer.zero_grad()
        if number % 2:
            run.loss().backward()
        else:
            with run.no_sync():
                run.loss().backward()
        run.optimizer.step()
    return run.values()


@behaviour
def skips_a_step(e: Env) -> Values:
    """Backward, and then no step: the next backward adds to what there is."""
    run = e.start(task())
    run.step()
    run.optimizer.zero_grad()
    run.loss().backward()
    run.loss().backward()
    run.optimizer.step()
    return run.values()


@behaviour
def skips_a_step_and_zeroes(e: Env) -> Values:
    """The script looks at its loss and leaves a step out, on all ranks."""
    run = e.start(task(optimizer=momentum))
    for number in range(5):
        run.optimizer.zero_grad()
        run.loss().backward()
        if number != 2:
            run.optimizer.step()
    return run.values()


@behaviour
def backward_through_part_of_the_graph(e: Env) -> Values:
    """Two losses, a backward pass each, over one forward pass."""
    run = e.start(task(optimizer=momentum))
    for _ in range(3):
        run.optimizer.zero_grad()
        with run.no_sync():
            out = run.called(run.batch())
            out[:2].square().mean().backward(retain_graph=True)
            out[2:].square().mean().backward()
        run.loss().backward()
        run.optimizer.step()
    return run.values()


@behaviour
def passes_of_two_steps_at_once(e: Env) -> Values:
    """The next step's forward pass runs before this one's backward pass (as where a loop is pipelined)."""
    run = e.start(task(optimizer=momentum))
    loss = run.loss()
    for _ in range(3):
        run.optimizer.zero_grad()
        following = run.loss()
        loss.backward()
        with torch.no_grad():
            run.loss()
        loss = following
        run.optimizer.zero_grad()
    run.optimizer.zero_grad()
    run.step()
    return run.values()


@behaviour
def other_layers_after_the_model(e: Env) -> Values:
    """A layer that is not in the model, between it and the loss."""
    torch.manual_seed(3)
    head = nn.Linear(1, 1).double()
    run = e.start(task(net, momentum))
    for _ in range(3):
        run.optimizer.zero_grad()
        square(lambda x: head(run.called(x)), run.batch()).backward()
        run.optimizer.step()
    return run.values()


class Heads(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(5, 1), nn.Linear(5, 1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.one(x), self.two(x)


@behaviour
def two_losses_a_pass_each(e: Env) -> Values:
    """Two heads without a layer in common, and a backward pass for each: together they give all gradients."""
    run = e.start(
        task(lambda: Heads().double(), momentum, loss=lambda m, x: sum((y - 1).square().mean() for y in m(x)))
    )
    for _ in range(3):
        run.optimizer.zero_grad()
        one, two = run.called(run.batch())
        (one - 1).square().mean().backward()
        (two - 1).square().mean().backward()
        run.optimizer.step()
    return run.values()


@behaviour
def two_losses_summed_by_autograd(e: Env) -> Values:
    """`torch.autograd.backward` of several losses at once."""
    run = e.start(
        task(lambda: Heads().double(), momentum, loss=lambda m, x: sum((y - 1).square().mean() for y in m(x)))
    )
    for _ in range(3):
        run.optimizer.zero_grad()
        torch.autograd.backward([(y - 1).square().mean() for y in run.called(run.batch())])
        run.optimizer.step()
    return run.values()


@behaviour
def static_graph_with_several_forwards(e: Env) -> Values:
    run = e.start(task(optimizer=momentum), ddp={"static_graph": True})
    for _ in range(4):
        run.optimizer.zero_grad()
        (run.loss() + run.loss()).backward()
        run.optimizer.step()
    return run.values()


@behaviour
def static_graph_with_accumulation(e: Env) -> Values:
    run = e.start(task(optimizer=momentum), ddp={"static_graph": True})
    for _ in range(4):
        run.optimizer.zero_grad()
        run.loss().backward()
        run.optimizer.step()
    for _ in range(2):
        run.optimizer.zero_grad()
        with run.no_sync():
            run.loss().backward()
        run.loss().backward()
        run.optimizer.step()
    return run.values()
