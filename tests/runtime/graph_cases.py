"""What ranks are told to do in tests of graphs: train with a bundle's batching, and compare with one process."""

from typing import Any

import torch
import torch.distributed as dist
from graph_tasks import TASKS
from rank_training import SEED, difference, raised, rank

from autosync import trainer
from autosync.graphs.policy import BatchingPolicy
from autosync.runtime.parallelize import parallelize
from autosync.specs.task import Task

NUM_STEPS = 3


def _batches(task: Task) -> list[Any]:
    generators = [torch.Generator().manual_seed(100 + number) for number in range(dist.get_world_size())]
    return [[graph for one in generators for graph in task.batch(one)] for _ in range(NUM_STEPS)]


def trained(name: str, bundle: str) -> str:
    """Train with the bundle; how the result differs from that of one process, which runs vertex by vertex."""
    task = TASKS[name]()
    batches = _batches(task)
    torch.manual_seed(SEED + rank())
    with trainer(task, bundle, timeout_seconds=40) as training:
        losses = [training.step(batch) for batch in batches]
        values = {key: value.detach().clone() for key, value in training.state_dict().items()}
        policy = training.model.policy.name
    alone: Any = task.model()
    alone.policy = BatchingPolicy(order="naive")
    optimizer = task.optimizer(alone.parameters())
    wanted = []
    for batch in batches:
        optimizer.zero_grad()
        loss = task.loss(alone, batch)
        loss.backward()
        optimizer.step()
        wanted.append(float(loss.detach()))
    far = [pair for pair in zip(losses, wanted, strict=True) if abs(pair[0] - pair[1]) > 1e-9 * abs(pair[1])]
    if far:
        return f"losses: {far}"
    return difference(values, dict(alone.state_dict()), usual_tolerance=1e-9) or f"under {policy}"


def refused(bundle: str) -> str:
    """What is said about a model without graphs."""
    model = torch.nn.Linear(1, 1)
    return raised(lambda: parallelize(model, torch.optim.SGD(model.parameters(), lr=0.1), bundle))
