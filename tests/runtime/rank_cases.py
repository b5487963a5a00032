"""What ranks are told to do in tests. Every case leaves the process as it found it."""

import atexit
import os
import threading
import time
from fractions import Fraction
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from rank_training import NOT_RAISED, NUM_STEPS, Training, by_ddp, difference, raised, rank, training
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from autosync.runtime.parallelize import no_sync, parallelize, release


def exact(task: str, bundle: str, **options: Any) -> str:
    with training(task, bundle, **options) as made:
        made.steps()
        return difference(made.values(), by_ddp(task))


def traced(bundle: str, path: str) -> str:
    with training("small", bundle, trace=path) as made:
        made.steps()
    return ""


def refusals(bundle: str) -> dict[str, str]:
    """What is refused whatever the strategy."""
    found = {}
    with training("small", bundle) as made:
        found["step without backward"] = raised(made.optimizer.step)
        made.step()
        found["step twice"] = raised(made.optimizer.step)
        found["closure"] = raised(lambda: made.optimizer.step(lambda: 0.0))
        made.optimizer.zero_grad()
        with no_sync(made.model):
            made.backward()
        found["step without sync"] = raised(made.optimizer.step)
        found["parallelize twice"] = raised(lambda: parallelize(made.model, made.optimizer, bundle))
    found["release twice"] = raised(lambda: release(made.model))
    found["no_sync of a stranger"] = raised(lambda: no_sync(made.model).__enter__())
    return found


def still_exact_after_refusals(bundle: str) -> str:
    """A step without new gradients in between: it is as under DDP, or refused and without effect."""
    stock = Training("small")
    stock.called = DistributedDataParallel(stock.model)
    with training("small", bundle) as made:
        for one in (made, stock):
            one.step()
        if raised(made.optimizer.step) == NOT_RAISED:
            stock.optimizer.step()
        for one in (made, stock):
            one.steps(NUM_STEPS - 1)
        return difference(made.values(), stock.values())


def second_backward(bundle: str) -> str:
    """Backward twice before a step, both synchronised: DDP adds up averages."""
    stock = Training("small")
    stock.called = DistributedDataParallel(stock.model)
    for _ in range(2):
        stock.backward()
    stock.optimizer.step()
    with training("small", bundle) as made:
        made.backward()
        made.backward()
        made.optimizer.step()
        return difference(made.values(), stock.values())


def skipped_step(bundle: str) -> str:
    """A step that is not made, as a loss scaler does at an overflow; what the skipped batch would do must not show."""
    stock = Training("small")
    stock.called = DistributedDataParallel(stock.model)
    with training("small", bundle) as made:
        for one in (stock, made):
            one.step()
            one.optimizer.zero_grad()
            one.backward()
            one.step()
        return difference(made.values(), stock.values())


def clips_undeclared(bundle: str) -> str:
    with training("small", bundle) as made:
        made.backward()
        nn.utils.clip_grad_norm_(made.model.parameters(), 1e-3)
        made.optimizer.step()
    return ""


def state_dict(bundle: str) -> str:
    with training("small", bundle) as made:
        made.step()
        return str(len(made.optimizer.state_dict()["state"]))


def resumes(bundle: str) -> str:
    """Half of the training by stock DDP, the rest by the bundle, with the optimizer state that is there."""
    made = Training("small")
    made.called = DistributedDataParallel(made.model)
    made.steps(NUM_STEPS // 2)
    made.called = made.model
    parallelize(made.model, made.optimizer, bundle)
    try:
        made.steps(NUM_STEPS - NUM_STEPS // 2)
        return difference(made.values(), by_ddp("small"))
    finally:
        release(made.model)


def one_after_another(bundles: list[str]) -> str:
    """Several models under several strategies in turn, in one process, some of them at once."""
    found = []
    first = Training("small")
    parallelize(first.model, first.optimizer, bundles[0])
    for bundle in bundles[1:]:
        with training("small", bundle) as second:
            first.step()
            second.steps()
            found.append(difference(second.values(), by_ddp("small")))
    found.append(difference(first.values(), by_ddp("small", len(bundles) - 1)))
    release(first.model)
    threads = [thread.name for thread in threading.enumerate()]
    return "; ".join([*filter(None, found), *(name for name in threads if "autosync" in name)])


def released_is_free(bundle: str) -> str:
    """After release each rank's model is its own again."""
    with training("small", bundle) as made:
        made.step()
    made.optimizer.zero_grad()
    made.backward()
    mine = made.model[0].weight.grad.clone()
    return "synchronised" if _is_equal_everywhere(mine) else ""


def _is_equal_everywhere(tensor: torch.Tensor) -> bool:
    everyones = [torch.empty_like(tensor) for _ in range(dist.get_world_size())]
    dist.all_gather(everyones, tensor)
    return all(torch.equal(other, everyones[0]) for other in everyones)


def gradients_when_backward_returns(bundle: str) -> str:
    """Are gradients the same on all ranks at once, however slow transfers are; what of those in shards."""
    from autosync.runtime.wire.transfers import Mover

    move = Mover.run

    def slowly(*arguments: Any) -> None:
        time.sleep(0.1)
        move(*arguments)

    Mover.run = slowly
    try:
        with training("small", bundle) as made:
            made.backward()
            shared = made.model[0].weight.grad.clone()
            refusal = raised(made.model[2].weight.grad.clone)
            made.optimizer.step()
    finally:
        Mover.run = move
    return f"{'same' if _is_equal_everywhere(shared) else 'apart'}; {refusal}"


def failing_engine(bundle: str) -> str:
    from autosync.runtime.wire.transfers import Mover

    move = Mover.run
    Mover.run = _out_of_order
    try:
        with training("small", bundle, timeout_seconds=20) as made:
            made.step()
    finally:
        Mover.run = move
    return ""


def _out_of_order(*_: Any) -> None:
    raise ValueError("the wire is out of order")


def late_rank(bundle: str) -> str:
    """Rank 1 comes later than the others wait."""
    if rank() != 1:
        with training("small", bundle, timeout_seconds=1) as made:
            return raised(made.step)
    with training("small", bundle, timeout_seconds=1) as made:
        time.sleep(3)
        return raised(made.step)


def different_bundles(bundles: list[str]) -> str:
    made = Training("small")
    return raised(lambda: parallelize(made.model, made.optimizer, bundles[rank()]))


def wrong_optimizer(bundle: str) -> str:
    made = Training("small")
    return raised(lambda: parallelize(made.model, torch.optim.SGD(made.model.parameters(), lr=0.1), bundle))


def one_rank_refuses(bundle: str) -> str:
    """What speaks against rank 1 only, rank 0 hears at once."""
    made = Training("small")
    other = torch.optim.SGD(made.model.parameters(), lr=0.1)
    return raised(lambda: parallelize(made.model, made.optimizer if rank() == 0 else other, bundle))


def first_rank_refuses(bundle: str) -> str:
    made = Training("small")
    other = torch.optim.SGD(made.model.parameters(), lr=0.1)
    return raised(lambda: parallelize(made.model, other if rank() == 0 else made.optimizer, bundle))


def refused_at_last(bundle: str) -> str:
    """A model that is refused when all is connected already stays an ordinary one."""
    made = Training("small")
    made.model[0] = _Layer(made.model[0])
    refused = raised(lambda: parallelize(made.model, made.optimizer, bundle, trace=Path(bundle).parent / "late-trace"))
    made.step()
    return refused


class _Layer(nn.Module):
    """A layer with a linear one's parameters, which is none."""

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__()
        self.weight, self.bias = layer.weight, layer.bias

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ self.weight.T + self.bias


def late_to_meet(bundle: str) -> str:
    """Rank 1 comes to `parallelize` later than rank 0 waits."""
    made = Training("small")
    if rank() == 1:
        time.sleep(4)
    return raised(lambda: parallelize(made.model, made.optimizer, bundle, timeout_seconds=1))


def partly_optimized(bundle: str) -> str:
    """What the user's optimizer does not have stays as it is, also where an owner updates for all."""
    made = Training("small")
    made.optimizer = torch.optim.Adam(made.model[2].parameters(), lr=0.02)
    made.scheduler = torch.optim.lr_scheduler.StepLR(made.optimizer, step_size=2, gamma=0.5)
    parallelize(made.model, made.optimizer, bundle)
    before = made.values()
    made.step()
    after = made.values()
    release(made.model)
    moved = [key for key, value in after.items() if not torch.equal(value, before[key])]
    return ", ".join(moved)


def dies(bundle: str) -> str:
    """Rank 1 is gone in the middle of a step; what the others are told, and how long it takes."""
    made = Training("small")
    parallelize(made.model, made.optimizer, bundle, timeout_seconds=20, hand_off=False)
    made.step()
    if rank() == 1:
        os.kill(os.getpid(), 9)
    start = time.monotonic()
    told = raised(made.step)
    return f"{'late: ' if time.monotonic() - start > 20 else ''}{told}"


def server_dies(bundle: str, server: int) -> str:
    """A process that serves is killed between two steps; what workers are told."""
    made = Training("small")
    parallelize(made.model, made.optimizer, bundle, timeout_seconds=20)
    made.step()
    dist.barrier()
    if rank() == 0:
        os.kill(server, 9)
    dist.barrier()
    start = time.monotonic()
    told = raised(made.step)
    return f"{'late: ' if time.monotonic() - start > 20 else ''}{told}"


def hangs(bundle: str) -> str:
    """Rank 1 comes to a step only when the other has given up; what each is told."""
    made = Training("small")
    parallelize(made.model, made.optimizer, bundle, timeout_seconds=60)
    made.step()
    if rank() == 1:
        dist.barrier()
    told = raised(made.step)
    if rank() == 0:
        dist.barrier()
    return told


def odd_option(bundle: str) -> str:
    """An option of the optimizer is of a kind that no server is sent."""
    made = Training("small")
    made.optimizer.param_groups[0]["weight_decay"] = Fraction(1, 10)
    return raised(lambda: parallelize(made.model, made.optimizer, bundle))


def idles(bundle: str, seconds: float, task: str = "small") -> str:
    """Between two steps passes more time than anybody may be late within one."""
    with training(task, bundle, timeout_seconds=seconds / 2) as made:
        made.step()
        time.sleep(seconds)
        made.steps(NUM_STEPS - 1)
        return difference(made.values(), by_ddp(task))


def never_releases(bundle: str, *, exits: bool = True) -> str:
    """A script that just ends, as scripts do, or whose processes are gone without a word."""
    made = Training("small")
    parallelize(made.model, made.optimizer, bundle)
    made.steps()
    values = difference(made.values(), by_ddp("small"))
    if exits:
        atexit._run_exitfuncs()
    return values
