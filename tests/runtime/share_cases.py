"""What ranks are told to do in tests of shares: train on uneven parts of the batch, and compare with one process."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from rank_training import NUM_STEPS, SEED, difference, raised, rank, task_of
from torch import Tensor, nn

from autosync import trainer
from autosync.runtime.parallelize import no_sync, parallelize, release, weigh
from autosync.specs.examples import ShareOfBatches, join_batches
from autosync.specs.task import Task


def _generator(of_rank: int) -> torch.Generator:
    return torch.Generator().manual_seed(100 + of_rank)


def _steps(task: Task, model: nn.Module, optimizer: Any, draw: Callable[[], Any], *, is_alone: bool) -> None:
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=2, gamma=0.5)
    for _ in range(NUM_STEPS):
        optimizer.zero_grad()
        for left in reversed(range(task.accumulation_steps)):
            batch = draw()
            if is_alone or not left:
                if task.weight is not None and not is_alone:
                    weigh(model, task.weight(batch))
                task.loss(model, batch).backward()
            else:
                with no_sync(model):
                    task.loss(model, batch).backward()
        if task.clip_norm is not None:
            nn.utils.clip_grad_norm_(model.parameters(), task.clip_norm)
        optimizer.step()
        scheduler.step()


def _alone(task: Task) -> dict[str, Tensor]:
    """The parameters after training in one process on the global batches."""
    torch.manual_seed(SEED)
    model = task.model()
    generators = [_generator(of_rank) for of_rank in range(dist.get_world_size())]
    optimizer = task.optimizer(model.parameters())
    _steps(task, model, optimizer, lambda: join_batches([task.batch(one) for one in generators]), is_alone=True)
    return {name: value.detach().clone() for name, value in model.state_dict().items()}


def shared(name: str, bundle: str, shares: Sequence[int]) -> str:
    """Train on shares of the batch; how the result differs from that of one process."""
    task = task_of(name)
    torch.manual_seed(SEED)
    model = task.model()
    optimizer = task.optimizer(model.parameters())
    draw = ShareOfBatches(task, shares, rank(), _generator).draw
    parallelize(model, optimizer, bundle, batch_size=shares[rank()], hand_off=task.weight is None)
    try:
        _steps(task, model, optimizer, draw, is_alone=False)
        values = {key: value.detach().clone() for key, value in model.state_dict().items()}
    finally:
        release(model)
    # The true gradient of the key's bias is zero, and Adam makes much of what is left of it by rounding.
    return difference(values, _alone(task), usual_tolerance=1e-10)


def refused(name: str, bundle: str, shares: Sequence[int]) -> dict[str, str]:
    """What is refused to a script whose batches may not be the bundle's shares."""
    task = task_of(name)
    model = task.model()
    optimizer = task.optimizer(model.parameters())
    found = {"another batch": raised(lambda: parallelize(model, optimizer, bundle, batch_size=shares[rank()] + 1))}
    parallelize(model, optimizer, bundle)
    batch = task.batch(_generator(rank()))
    found["no weight"] = raised(lambda: task.loss(model, batch).backward())
    release(model)
    return found


def reweighed(name: str, bundle: str, shares: Sequence[int]) -> str:
    """A step with other weights than the shares, as the last one of an epoch; no weight twice."""
    task = task_of(name)
    torch.manual_seed(SEED)
    model, alone = task.model(), task.model()
    alone.load_state_dict(model.state_dict())
    generators = [_generator(of_rank) for of_rank in range(dist.get_world_size())]
    pieces = [task.batch(one)[: 1 + number] for number, one in enumerate(generators)]
    optimizers = [task.optimizer(one.parameters()) for one in (model, alone)]
    parallelize(model, optimizers[0], bundle, batch_size=shares[rank()])
    try:
        weigh(model, len(pieces[rank()]))
        twice = raised(lambda: weigh(model, 1))
        task.loss(model, pieces[rank()]).backward()
        optimizers[0].step()
        values = {key: value.detach().clone() for key, value in model.state_dict().items()}
    finally:
        release(model)
    task.loss(alone, join_batches(pieces)).backward()
    optimizers[1].step()
    assert "a second weight" in twice, twice
    return difference(values, alone.state_dict())


def weighed_apart(bundle: str) -> str:
    """What is refused to a script that weighs its batches while each rank makes steps by itself."""
    task = task_of("small")
    model = task.model()
    parallelize(model, task.optimizer(model.parameters()), bundle)
    found = raised(lambda: weigh(model, 1 + rank()))
    release(model)
    return found


def weightless(bundle: str) -> str:
    """The loss of a trainer's step in which the second rank's part of the batch weighs nothing, if it is wrong."""
    task = task_of("tokens")
    batch = join_batches([task.batch(_generator(of_rank)) for of_rank in range(dist.get_world_size())])
    batch[task.batch_size : 2 * task.batch_size] = -1
    with trainer(task, bundle, timeout_seconds=40) as training:
        with torch.no_grad():
            expected = float(task.loss(training.model, batch))
        found = training.step(batch)
    return "" if abs(found - expected) < 1e-9 else f"{found} for {expected}"
