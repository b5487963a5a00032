"""What ranks are told to do in tests of stages: train with a trainer, and compare with one process."""

import copy
import os
import signal
import time
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist
from rank_training import SEED, difference, raised, rank
from stage_tasks import TASKS
from torch import Tensor

from autosync import trainer
from autosync.plan.lowering import lower
from autosync.plan.rank_passes import most_late
from autosync.runtime.parallelize import parallelize
from autosync.runtime.trainer import _end_what_is_left
from autosync.specs.examples import examples_of, join_batches
from autosync.specs.profile.tape import tensors_of
from autosync.specs.task import Task
from autosync.specs.task_run import map_tensors
from autosync.strategy.bundle import load_bundle
from autosync.strategy.stages import stages_of_variables
from tests.helpers.stash_versions import stash_versions

NUM_STEPS, NUM_MORE_STEPS = 3, 7
"""The steps of a training, and those of one that has passes which come late."""


def _global_batches(task: Task, count: int) -> list[Any]:
    generators = [torch.Generator().manual_seed(100 + number) for number in range(dist.get_world_size())]
    return [join_batches([task.batch(one) for one in generators]) for _ in range(count)]


def _alone(task: Task, batches: list[Any], versions: "_Versions") -> tuple[dict[str, Tensor], list[float]]:
    """The parameters and the losses of training in one process on the global batches.

    Passes of all batches but the last one take the versions of parameters that they are told to take.
    """
    torch.manual_seed(SEED)
    model = task.model()
    computing = copy.deepcopy(model)
    optimizer = task.optimizer(model.parameters())
    losses, states = [], []
    for number, batch in enumerate(batches):
        states.append(copy.deepcopy(model.state_dict()))
        is_last = batch is batches[-1]
        computing.zero_grad()
        parts = 1 if is_last else versions.parts
        count = len(tensors_of(batch)[0]) // parts
        loss = 0.0
        for part in range(parts):
            computing.load_state_dict(states[-1] if is_last else versions.state(states, number, part))
            of_part = task.loss(computing, examples_of(batch, part * count, (part + 1) * count)) / parts
            _accumulate(of_part, computing)
            loss += float(of_part.detach())
        for one, other in zip(model.parameters(), computing.parameters(), strict=True):
            one.grad = None if other.grad is None else other.grad.clone()
        if not is_last:
            _set_rate(optimizer, number)
        _step(task, model, optimizer)
        losses.append(loss)
    return {name: value.detach().clone() for name, value in model.state_dict().items()}, losses


def _accumulate(loss: Tensor, model: torch.nn.Module) -> None:
    """Add gradients out of place: torch adds in place, even where two gradients share their memory."""
    parameters = [one for one in model.parameters() if one.requires_grad]
    for one, gradient in zip(parameters, torch.autograd.grad(loss, parameters, allow_unused=True), strict=True):
        if gradient is not None:
            one.grad = gradient if one.grad is None else one.grad + gradient


def _set_rate(optimizer: torch.optim.Optimizer, step: int) -> None:
    """Set the learning rate of a step, as a script with a schedule does."""
    for group in optimizer.param_groups:
        group["lr"] = group.setdefault("first_lr", group["lr"]) * 0.8**step


class _Versions:
    """The versions of parameters with which passes compute, by the schedule of a bundle's strategy.

    `parts` is the number of parts of a batch that take different versions.
    """

    def __init__(self, path: str, num_steps: int) -> None:
        bundle = load_bundle(path)
        strategy = bundle.strategy
        plan = lower(strategy, bundle.model, bundle.cluster)
        self.lag = int(strategy.schedule == "2bw")
        self.stages_of = stages_of_variables(strategy.stages, bundle.model) if plan.stashes else {}
        self.parts = strategy.microbatches if plan.stashes else 1
        self.stashed = stash_versions(strategy.stages, self.parts, strategy.slack, num_steps) if plan.stashes else []
        # Losses are told so many steps late.
        self.late = most_late(plan) if plan.stashes else self.lag

    def state(self, states: list[dict[str, Tensor]], step: int, part: int) -> dict[str, Tensor]:
        """Return the parameters with which a part of a step's batch passes."""
        found = dict(states[max(0, step - self.lag)])
        for name, (stage, *_) in self.stages_of.items():
            found[name] = states[self.stashed[stage][step, part]][name]
        return found


def _step(task: Task, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
    if task.clip_norm is not None:
        torch.nn.utils.clip_grad_norm_(model.parameters(), task.clip_norm)
    optimizer.step()


def _goes_on(task: Task, values: dict[str, Tensor], state: dict[str, Any], batch: Any) -> dict[str, Tensor]:
    """The parameters after one more step of one process, from a checkpoint of the trainer."""
    model = task.model()
    optimizer = task.optimizer(model.parameters())
    model.load_state_dict(values)
    optimizer.load_state_dict(state)
    task.loss(model, batch).backward()
    _step(task, model, optimizer)
    return {name: value.detach().clone() for name, value in model.state_dict().items()}


def trained(name: str, bundle: str) -> str:
    """Train with the bundle; how the result differs from that of one process."""
    task = TASKS[name]()
    batches = _global_batches(task, NUM_MORE_STEPS)
    versions = _Versions(bundle, NUM_MORE_STEPS)
    # Ranks begin apart, and the first one's parameters count.
    torch.manual_seed(SEED + rank())
    with trainer(task, bundle, timeout_seconds=40) as training:
        losses = []
        for number, batch in enumerate(batches if versions.late else batches[:NUM_STEPS]):
            if number == NUM_STEPS:
                # What the last steps have left is made now, which changes nothing.
                training.state_dict()
            _set_rate(training.optimizer, number)
            losses.append(training.step(batch))
        values = {key: value.detach().clone() for key, value in training.state_dict().items()}
        state = copy.deepcopy(training.optimizer_state_dict())
    (last,) = _global_batches(task, 1)
    values = _goes_on(task, values, state, last)
    wanted, wanted_losses = _alone(task, [*batches[: len(losses)], last], versions)
    wanted_losses[:0] = wanted_losses[:1] * versions.late
    far = [
        pair for pair in zip(losses, wanted_losses, strict=False) if not abs(pair[0] - pair[1]) <= 1e-9 * abs(pair[1])
    ]
    return f"losses: {far}" if far else difference(values, wanted, usual_tolerance=1e-9)


def refused(name: str, bundle: str) -> dict[str, str]:
    """What is refused."""
    task = TASKS[name]()
    model = task.model()
    found = {"parallelize": raised(lambda: parallelize(model, task.optimizer(model.parameters()), bundle))}
    (batch,) = _global_batches(task, 1)
    with trainer(task, bundle, timeout_seconds=40) as training:
        found["part"] = raised(lambda: training.step(examples_of(batch, 0, 1)))
    return found


def own_batches(name: str, bundle: str) -> str:
    """Each rank gives the step another batch."""
    task = TASKS[name]()
    (batch,) = _global_batches(task, 1)
    moved = torch.roll(batch, rank(), 0) + rank()
    with trainer(task, bundle, timeout_seconds=40) as training:
        return raised(lambda: training.step(moved))


def own_batches_later(name: str, bundle: str) -> str:
    """The second rank gives the second step the examples in another order."""
    task = TASKS[name]()
    first, second = _global_batches(task, 2)
    with trainer(task, bundle, timeout_seconds=40) as training:
        training.step(first)
        return raised(lambda: training.step(map_tensors(second, lambda one: torch.roll(one, rank(), 0))))


def first_step(name: str, bundle: str) -> str:
    """What the first step raises."""
    task = TASKS[name]()
    (batch,) = _global_batches(task, 1)
    with trainer(task, bundle, timeout_seconds=40) as training:
        return raised(lambda: training.step(batch))


def begun(name: str, bundle: str) -> str:
    """What is raised before the first step."""
    return raised(lambda: trainer(TASKS[name](), bundle, timeout_seconds=40))


def begun_otherwise(name: str, bundle: str) -> str:
    """The second rank's task clips, and the bundle was made without that; what is raised before the first step."""
    task = TASKS[name]()
    changed = replace(task, clip_norm=0.5) if rank() else task
    return raised(lambda: trainer(changed, bundle, timeout_seconds=40))


def hooked_later(name: str, bundle: str) -> str:
    """A script hooks a parameter after the first step; what the next step raises."""
    task = TASKS[name]()
    first, second = _global_batches(task, 2)
    with trainer(task, bundle, timeout_seconds=40) as training:
        training.step(first)
        for parameter in training.model.parameters():
            parameter.register_hook(lambda gradient: gradient)
        return raised(lambda: training.step(second))


def hooked_step_later(name: str, bundle: str) -> str:
    """A script puts a hook after the optimizer's step; what the next step raises."""
    task = TASKS[name]()
    first, second = _global_batches(task, 2)
    with trainer(task, bundle, timeout_seconds=40) as training:
        training.step(first)
        training.optimizer.register_step_post_hook(lambda *_: None)
        return raised(lambda: training.step(second))


def moves_target(name: str, bundle: str, how: str) -> str:
    """A script moves a target network towards the trained one after two steps; what further steps raise.

    Without a flush, the second step makes the first update.
    """
    task = TASKS[name]()
    first, second, *others = _global_batches(task, 5)
    torch.manual_seed(SEED)
    with trainer(task, bundle, timeout_seconds=40) as training:
        training.step(first)
        training.step(second)
        if how == "gathered":
            training.state_dict()
        network: Any = training.model
        for target, online in zip(network.target.parameters(), network.online.parameters(), strict=True):
            if how == "rebound":
                target.data = 0.5 * target.data + 0.5 * online.data
            elif how == "hidden":
                target.data.mul_(0.5).add_(online.data, alpha=0.5)
            else:
                with torch.no_grad():
                    target.mul_(0.5).add_(online, alpha=0.5)
        return raised(lambda: [training.step(one) for one in others])


def evaluated_later(name: str, bundle: str) -> str:
    """A script leaves the model in evaluation mode after the first step; what the next step raises."""
    task = TASKS[name]()
    first, second = _global_batches(task, 2)
    with trainer(task, bundle, timeout_seconds=40) as training:
        training.step(first)
        training.model.eval()
        return raised(lambda: training.step(second))


def forks(name: str, bundle: str) -> str:
    """Between two steps a forked process comes to its end as scripts do; whether training minds."""
    task = TASKS[name]()
    first, second = _global_batches(task, 2)
    with trainer(task, bundle, timeout_seconds=40) as training:
        training.step(first)
        child = os.fork()
        if not child:
            signal.alarm(20)
            _end_what_is_left()
            os._exit(0)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        training.step(second)
    return f"the process ended with {code}" if code else ""


def changed(name: str, bundle: str) -> dict[str, Any]:
    """A script loads a state before the first step, and again before the second; how many pass, and what is raised."""
    task = TASKS[name]()
    batches = _global_batches(task, 2)
    losses: list[float] = []

    def train() -> None:
        with trainer(task, bundle, timeout_seconds=40) as training:
            before = copy.deepcopy(training.state_dict())
            for batch in batches:
                training.model.load_state_dict(before)
                losses.append(training.step(batch))

    told = raised(train)
    return {"told": told, "num_steps": len(losses)}


def replaced_before(name: str, bundle: str) -> str:
    """A script puts other parameters into the model before the first step; what this step raises."""
    task = TASKS[name]()
    (batch,) = _global_batches(task, 1)
    with trainer(task, bundle, timeout_seconds=40) as training:
        training.model.load_state_dict(copy.deepcopy(training.state_dict()), assign=True)
        return raised(lambda: training.step(batch))


def part_of_one(name: str, bundle: str) -> str:
    """The second rank gives the first step a part of the batch; what the step raises."""
    task = TASKS[name]()
    (batch,) = _global_batches(task, 1)
    with trainer(task, bundle, timeout_seconds=40) as training:
        return raised(lambda: training.step(examples_of(batch, 0, 1) if rank() else batch))


def masked_later(name: str, bundle: str) -> dict[str, Any]:
    """In the third batch, examples have unequally many unmasked numbers; how many steps pass, and what is raised."""
    task = TASKS[name]()
    batches = _global_batches(task, 3)
    for place, one in enumerate(batches[2]["unmasked"]):
        one[1 + place // 2 :] = 0
    losses: list[float] = []
    with trainer(task, bundle, timeout_seconds=40) as training:
        told = raised(lambda: losses.extend(map(training.step, batches)))
    return {"told": told, "num_steps": len(losses)}


def killed(name: str, bundle: str, victim: int) -> dict[str, Any]:
    """A rank is killed between two steps; what the others say, and after how long."""
    task = TASKS[name]()
    batches = _global_batches(task, 3)
    training = trainer(task, bundle, timeout_seconds=40)
    training.step(batches[0])
    if rank() == victim:
        os.kill(os.getpid(), signal.SIGKILL)
    begin = time.monotonic()
    told = raised(lambda: [training.step(batch) for batch in batches[1:]])
    training.close()
    return {"told": told, "seconds": time.monotonic() - begin}
