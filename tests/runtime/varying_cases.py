"""Ranks whose steps use different parameters, beside stock DDP that searches for unused ones."""

import contextlib
import functools
import random
import re
import runpy
import subprocess
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.distributed as dist
from rank_training import difference, rank
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

from autosync import Task
from autosync.plan.bundling import bundled
from autosync.plan.lowering import lower
from autosync.runtime.local.engine_updates import engine_updates
from autosync.runtime.parallelize import describe, drain, no_sync, parallelize, release
from autosync.script.door import Door
from autosync.specs.cluster import ClusterSpec, Node
from autosync.specs.profile.run import profile
from autosync.specs.use_sample import UseSample
from autosync.strategy.bundle import Bundle
from autosync.strategy.presets import build_preset

WIDTH = 6
NUM_BRANCHES = 5
NUM_STEPS = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Pass:
    """What one forward pass of one rank does: branches in order, each with the way in which it is used."""

    uses: tuple[tuple[int, str], ...]


class Branches(nn.Module):
    """A trunk and branches. A branch is called, or its weights are read without a call, or its output is ignored."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk = nn.Linear(WIDTH, WIDTH)
        self.branches = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(NUM_BRANCHES))
        self.head = nn.Linear(WIDTH, 1)
        self.next = Pass(uses=tuple((number, "call") for number in range(NUM_BRANCHES)))

    def forward(self, x: Tensor) -> Tensor:
        x = torch.tanh(self.trunk(x))
        for number, way in self.next.uses:
            branch: Any = self.branches[number]
            if way == "call":
                x = x + torch.tanh(branch(x))
            elif way == "read":
                x = x + torch.tanh(functional.linear(x, branch.weight, branch.bias))
            else:
                branch(x)
        out: Tensor = self.head(x)
        return out


OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "momentum": lambda ones: torch.optim.SGD(ones, lr=0.05, momentum=0.9, weight_decay=0.1),
    "adamw": lambda ones: torch.optim.AdamW(ones, lr=0.02, weight_decay=0.1),
}


def task_of(optimizer: str) -> Task:
    return Task(
        name="branches",
        model=lambda: Branches().double(),
        optimizer=OPTIMIZERS[optimizer],
        batch=lambda generator: torch.randn(3, WIDTH, generator=generator, dtype=torch.float64),
        loss=lambda model, x: (model(x) - 1).square().mean(),
    )


def here(num_ranks: int) -> ClusterSpec:
    nodes = tuple(
        Node(name=f"n{i}", host="localhost", devices=1, bandwidth_out=1e8, bandwidth_in=1e8) for i in range(num_ranks)
    )
    return ClusterSpec(name="test", nodes=nodes)


def bundle_of(task: Task, preset: str, options: dict[str, Any], sample: UseSample | None = None) -> Bundle:
    """The first rank profiles the task; all ranks get its bundle, with this sample of uses."""
    made: list[Any] = [None]
    if rank() == 0:
        cluster = here(dist.get_world_size())
        spec = replace(profile(task, times="computed", steps=1), use_sample=sample)
        made = [bundled(build_preset(preset, spec, cluster, **options), spec, cluster)]
    dist.broadcast_object_list(made, src=0)
    bundle: Bundle = made[0]
    return bundle


def passes_of(seed: int, of_rank: int) -> list[Pass]:
    """The passes of a rank: its own choice of branches, in its own order."""
    draw = random.Random(f"{seed} {of_rank}")
    likely = random.Random(seed).choice([0.2, 0.5, 0.9])
    found = []
    for _ in range(2 * NUM_STEPS):
        uses = [
            (number, draw.choice(["call", "call", "read", "ignore"]))
            for number in range(NUM_BRANCHES)
            if draw.random() < likely
        ]
        draw.shuffle(uses)
        found.append(Pass(uses=tuple(uses)))
    return found


def train(
    task: Task, seed: int, model: Any, *, called: Any, optimizer: Any, without_sync: Callable[[], Any], to_none: bool
) -> list[str]:
    """Train by a seed's passes; return which gradients are None before each step."""
    accumulates = random.Random(seed).random() < 0.3
    batches, passes = torch.Generator().manual_seed(100 + rank()), iter(passes_of(seed, rank()))
    told = []
    for _ in range(NUM_STEPS):
        optimizer.zero_grad(set_to_none=to_none)
        for number in range(1 + accumulates):
            last = number == accumulates
            with contextlib.nullcontext() if last else without_sync():
                model.next = next(passes)
                task.loss(called, task.batch(batches)).backward()
        told.append(" ".join(name for name, one in model.named_parameters() if one.grad is None))
        optimizer.step()
    return told


def like_ddp(preset: str, options: dict[str, Any], seeds: list[int], optimizer: str) -> list[str]:
    """The differences from stock DDP: of weights, and of gradients that are None where the user's optimizer updates."""
    task = task_of(optimizer)
    bundle = bundle_of(task, preset, options)
    is_users = not engine_updates(lower(bundle.strategy, bundle.model, bundle.cluster)).variables
    found = []
    for seed in seeds:
        # A gradient of zeros moves a parameter by momentum and decay. Where the engine updates, scripts have none.
        to_none = not is_users or random.Random(f"zeros {seed}").random() < 0.6
        torch.manual_seed(seed)
        model: Any = task.model()
        stock = DistributedDataParallel(model, find_unused_parameters=True)
        expected_none = train(
            task,
            seed,
            model,
            called=stock,
            optimizer=task.optimizer(model.parameters()),
            without_sync=stock.no_sync,
            to_none=to_none,
        )
        expected = {name: value.detach().clone() for name, value in model.state_dict().items()}
        torch.manual_seed(seed)
        ours: Any = task.model()
        updates = task.optimizer(ours.parameters())
        parallelize(ours, updates, bundle, find_unused_parameters=True, checks=seed % 2 == 1, timeout_seconds=30)
        nones = train(
            task,
            seed,
            ours,
            called=ours,
            optimizer=updates,
            without_sync=functools.partial(no_sync, ours),
            to_none=to_none,
        )
        release(ours)
        told = difference(dict(ours.state_dict()), expected)
        if is_users and nones != expected_none:
            told += f" gradients that are None: {nones}, not {expected_none}"
        if told:
            found.append(f"seed {seed}: {told}")
    return found


class Halves(nn.Module):
    """In float16; the second parameter is read without a call."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = (nn.Linear(1, 1, bias=False).half() for _ in range(2))
        self.reads_second = False

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.first(x)
        return out + functional.linear(x, self.second.weight) if self.reads_second else out


def late_gradients_of_float16(preset: str) -> float:
    """The mean of gradients that no rank waited for: each is 40,000, and a sum of two is too large for the type."""
    task = Task(
        name="halves",
        model=Halves,
        optimizer=lambda ones: torch.optim.SGD(ones, lr=0.0),
        batch=lambda _: torch.full((1, 1), 40_000.0).half(),
        loss=lambda model, x: model(x).sum(),
    )
    bundle = bundle_of(task, preset, {})
    model: Any = task.model()
    optimizer = task.optimizer(model.parameters())
    parallelize(model, optimizer, bundle, find_unused_parameters=True, timeout_seconds=30)
    for model.reads_second in (False, True):
        optimizer.zero_grad()
        task.loss(model, task.batch(torch.Generator())).backward()
        found = model.second.weight.grad
        optimizer.step()
    release(model)
    return float(found)


# Bytes through the interface. These cases run in a network namespace of their own.


class Experts(nn.Module):
    """A small trunk and experts of a megabyte each, of which each pass calls some."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk = nn.Linear(8, 512)
        self.experts = nn.ModuleList(nn.Linear(512, 512, bias=False) for _ in range(6))
        self.chosen: list[int] = list(range(6))

    def forward(self, x: Tensor) -> Tensor:
        x = self.trunk(x)
        for number in self.chosen:
            x = x + self.experts[number](x)
        return x


def sent_bytes() -> int:
    """What the sockets of this namespace sent, without what TCP sent again: a busy machine acknowledges late."""
    shown = subprocess.run(["ss", "-tinH"], check=True, capture_output=True, text=True).stdout
    sent, again = (sum(map(int, re.findall(rf"\bbytes_{of}:(\d+)", shown))) for of in ("sent", "retrans"))
    return sent - again


def bytes_of_steps(
    preset: str, options: dict[str, Any], chosen: list[list[list[int]]], folder: str, *, by_profile: bool = False
) -> list[int]:
    """The bytes that all ranks together send in each step; `chosen` has the experts of each rank by step.

    Unused gradients stay because an option says so, or `by_profile`.
    """
    task = Task(
        name="experts",
        model=Experts,
        optimizer=lambda ones: torch.optim.SGD(ones, lr=0.01),
        batch=lambda generator: torch.randn(2, 8, generator=generator),
        loss=lambda model, x: model(x).square().mean(),
    )
    sample = UseSample(groups=(("experts.0.weight",),), steps=(("0",),))
    bundle = bundle_of(task, preset, options, sample if by_profile else None)
    model: Any = task.model()
    optimizer = task.optimizer(model.parameters())
    wanted = None if by_profile else True
    parallelize(model, optimizer, bundle, find_unused_parameters=wanted, timeout_seconds=30)
    batches = torch.Generator().manual_seed(rank())
    store: Any = dist.FileStore(f"{folder}/{preset}", dist.get_world_size())  # type: ignore[attr-defined]
    counts = []

    def meet(moment: str) -> None:
        """A barrier that sends nothing through the interface."""
        store.set(f"{moment}/{rank()}", "here")
        store.wait([f"{moment}/{other}" for other in range(dist.get_world_size())])

    for number, of_ranks in enumerate(chosen):
        model.chosen = of_ranks[rank()]
        meet(f"before {number}")
        before = sent_bytes()
        meet(f"go {number}")
        optimizer.zero_grad()
        task.loss(model, task.batch(batches)).backward()
        optimizer.step()
        drain(model)
        meet(f"after {number}")
        counts.append(sent_bytes() - before)
        meet(f"end {number}")
    release(model)
    return counts


def example_by_door(path: str) -> str:
    """How the weights of the example's mixture of experts differ behind the script door after some steps."""
    names = runpy.run_path(path)

    def steps(model: Any) -> dict[str, Tensor]:
        """Train as the script does."""
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        batches = torch.Generator().manual_seed(rank())
        for step in range(1, 7):
            features = torch.randn(names["BATCH_SIZE"], names["NUM_FEATURES"], generator=batches)
            scores = model(features, step % names["NUM_TOPICS"])
            optimizer.zero_grad()
            functional.cross_entropy(scores, features[:, : names["NUM_CLASSES"]].argmax(dim=1)).backward()
            optimizer.step()
        return {name: value.detach().clone() for name, value in model.module.state_dict().items()}

    def wrapped() -> Any:
        torch.manual_seed(0)
        return DistributedDataParallel(names["Mixture"](width=16, hidden=24), find_unused_parameters=True)

    task = Task(
        name="mixture",
        model=lambda: names["Mixture"](width=16, hidden=24),
        optimizer=torch.optim.AdamW,
        batch=lambda generator: torch.randn(4, names["NUM_FEATURES"], generator=generator),
        loss=lambda model, x: sum(model(x, topic).square().mean() for topic in range(names["NUM_TOPICS"])),
    )
    expected = steps(wrapped())
    with Door([bundle_of(task, "ddp", {})]).open():
        model = wrapped()
        found = steps(model)
        told = describe(model.module)
        release(model.module)
    return difference(found, expected) + ("" if "travel only in steps that use them" in told else told)
