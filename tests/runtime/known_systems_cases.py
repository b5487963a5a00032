"""What real ranks do under a preset's bundle, beside torch's own hook, averager or optimizer doing it."""

from collections import defaultdict
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from rank_training import Training, difference, rank, training
from torch import Tensor
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook
from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager
from torch.nn.parallel import DistributedDataParallel

from autosync.plan.lowering import lower
from autosync.strategy.bundle import load_bundle
from autosync.strategy.codecs import PowerSGD
from autosync.strategy.presets.lossy import is_worth_factors

NUM_STEPS = 4
# In the first step DDP does not know the order yet in which gradients come, and in the second it has just learnt it.
NUM_FIRST_STEPS = 2

Gradients = list[dict[str, Tensor]]


def gradients(made: Training, num_steps: int) -> Gradients:
    """What some backward passes come to; parameters stay as they are."""
    found = []
    for _ in range(num_steps):
        made.optimizer.zero_grad()
        made.backward()
        found.append({name: parameter.grad.clone() for name, parameter in made.model.named_parameters()})
    return found


def by_hook(task: str, state: Any, hook: Callable[..., Any], names: dict[int, str] | None = None) -> Gradients:
    """The gradients under DDP with a hook, which finds the names of parameters by their memory in `names`."""
    made = Training(task)
    if names is not None:
        names.update({parameter.data_ptr(): name for name, parameter in made.model.named_parameters()})
    ddp = DistributedDataParallel(made.model)
    ddp.register_comm_hook(state, hook)
    made.called = ddp
    gradients(made, NUM_FIRST_STEPS)
    made.batches = torch.Generator().manual_seed(100 + rank())
    return gradients(made, NUM_STEPS)


def by_bundle(task: str, bundle: str) -> Gradients:
    with training(task, bundle) as made:
        return gradients(made, NUM_STEPS)


def casts(task: str, bundle: str, hook: str) -> dict[str, Any]:
    """Which gradients are not bit for bit those of torch's hook; how far from them, and from exact ones."""
    torchs = getattr(default_hooks, hook)

    def under_another_name(state: Any, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
        # By its own name DDP takes the hook for bfloat16 on GPUs alone.
        future: torch.futures.Future[Tensor] = torchs(state, bucket)
        return future

    theirs, ours = by_hook(task, None, under_another_name), by_bundle(task, bundle)
    plain = by_hook(task, None, default_hooks.allreduce_hook)
    return {
        "differing": sorted({n for a, b in zip(ours, theirs, strict=True) for n in a if not torch.equal(a[n], b[n])}),
        "off": far(ours, theirs),
        "off_exact": far(ours, plain),
    }


def far(ours: Gradients, theirs: Gradients) -> float:
    # It keeps what is no number, which `max` may not.
    apart = [float((a[name] - b[name]).abs().max()) for a, b in zip(ours, theirs, strict=True) for name in a]
    return float(np.max(apart))


class Started:
    """torch's PowerSGD hook, started from the right factors that a bundle's plan starts from."""

    def __init__(self, bundle: str) -> None:
        made = load_bundle(bundle)
        plan = lower(made.strategy, made.model, made.cluster)
        (self.codec,) = {message.codec for message in made.strategy.messages if isinstance(message.codec, PowerSGD)}
        self.model = made.model
        self.numbers = {part.variable.name: index for index, part in enumerate(plan.parts)}
        self.names: dict[int, str] = {}
        self.state = PowerSGDState(None, matrix_approximation_rank=self.codec.rank, start_powerSGD_iter=NUM_FIRST_STEPS)

    def hook(self, state: PowerSGDState, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
        if state.iter == NUM_FIRST_STEPS:
            names = self.compressed(bucket)
            num_rows = sum(self.model.variable(name).shape[0] for name in names)
            state.p_memory_dict[bucket.index()] = torch.empty(num_rows * self.codec.rank, dtype=torch.float64)
            state.q_memory_dict[bucket.index()] = torch.cat([self.right(name) for name in names])
        return powerSGD_hook(state, bucket)

    def compressed(self, bucket: dist.GradBucket) -> list[str]:
        """The compressed variables in the hook's own order: those of one shape together."""
        by_shape = defaultdict(list)
        for parameter in bucket.parameters():
            variable = self.model.variable(self.names[parameter.data_ptr()])
            if is_worth_factors(variable, rank=self.codec.rank, rate=2.0):
                by_shape[parameter.flatten(1).shape].append(variable.name)
        return [name for alike in by_shape.values() for name in alike]

    def right(self, name: str) -> Tensor:
        variable = self.model.variable(name)
        columns = variable.num_elements // variable.shape[0]
        drawn = np.random.default_rng(self.numbers[name]).standard_normal((columns, self.codec.rank))
        return torch.from_numpy(drawn).view(-1)


def power_sgd(task: str, bundle: str) -> dict[str, float]:
    """How far gradients are from those of torch's hook, and from exact ones."""
    started = Started(bundle)
    theirs, ours = by_hook(task, started.state, started.hook, started.names), by_bundle(task, bundle)
    return {"off": far(ours, theirs), "off_exact": far(ours, by_hook(task, None, default_hooks.allreduce_hook))}


def begun_together(task: str) -> Training:
    """A task whose ranks have the first one's parameters, and go on apart."""
    made = Training(task)
    for parameter in made.model.parameters():
        dist.broadcast(parameter.detach(), 0)
    return made


def averages(task: str, bundle: str, every: int) -> str:
    """Local SGD beside torch's averager, whose first average is due when the first `every` steps are made."""
    theirs = begun_together(task)
    averager = PeriodicModelAverager(period=every, warmup_steps=every - 1)
    for _ in range(2 * every):
        theirs.step()
        averager.average_parameters(theirs.model.parameters())
    with training(task, bundle) as ours:
        ours.steps(2 * every)
        return difference(ours.values(), theirs.values())


def outer_steps(task: str, bundle: str, every: int) -> str:
    """DiLoCo beside torch's SGD with Nesterov momentum as the outer optimizer."""
    theirs = begun_together(task)
    parameters = list(theirs.model.parameters())
    anchors = [torch.nn.Parameter(parameter.detach().clone()) for parameter in parameters]
    outer = torch.optim.SGD(anchors, lr=0.7, momentum=0.9, nesterov=True)
    for step in range(3 * every):
        theirs.step()
        if (step + 1) % every:
            continue
        for parameter, anchor in zip(parameters, anchors, strict=True):
            mean = parameter.detach() / dist.get_world_size()
            dist.all_reduce(mean)
            anchor.grad = anchor.detach() - mean
        outer.step()
        for parameter, anchor in zip(parameters, anchors, strict=True):
            parameter.detach().copy_(anchor.detach())
    with training(task, bundle) as ours:
        ours.steps(3 * every)
        return difference(ours.values(), theirs.values())
