"""What a behaviour is given: a task in training, by stock DDP or by a bundle of ours, on the ranks of this run.

A behaviour is a function of an `Env`. It trains, or does with the model what scripts do, and returns what must be
equal: parameters, outputs, counts. The same function runs once under stock DDP and once under each strategy.
"""

import contextlib
import functools
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel

from autosync import Task
from autosync.errors import AutosyncError, OperationError
from autosync.plan.bundling import bundled
from autosync.runtime.parallelize import drain, is_parallelized, no_sync, parallelize, release
from autosync.script.door import Door
from autosync.specs.cluster import ClusterSpec, Node
from autosync.specs.profile.run import profile
from autosync.strategy.bundle import Bundle
from autosync.strategy.presets import build_preset

SEED = 5
NUM_STEPS = 4
TIMEOUT_SECONDS = 8.0

Values = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """A strategy of the suite: a preset with its options, and whether torch's reducer may have its plan.

    With `door` a behaviour is an unchanged script behind the script door: it constructs DDP as under stock DDP. With
    `leaves_unused`, scripts that ask DDP to find unused parameters ask `parallelize` for the same.
    """

    preset: str
    options: tuple[tuple[str, Any], ...] = ()
    hand_off: bool = True
    door: bool = False
    leaves_unused: bool = False


# What each stands for: torch's own reducer; a server on a worker updates; shards, and overlap with the next forward
# pass; our engine with that overlap, and no shards. The others are for `--strategies`.
WAYS: dict[str, Way] = {
    "ddp": Way(preset="ddp"),
    "ps_load_balanced": Way(preset="ps_load_balanced"),
    "fsdp": Way(preset="fsdp"),
    "bytescheduler": Way(preset="bytescheduler", options=(("slice_bytes", 1024),)),
    "engine": Way(preset="ddp", hand_off=False),
    "sharded": Way(preset="sharded"),
    "unused": Way(preset="ddp", leaves_unused=True),
    "unused_forward": Way(preset="bytescheduler", options=(("slice_bytes", 1024),), leaves_unused=True),
    "unused_servers": Way(preset="ps_load_balanced", leaves_unused=True),
    "unused_sharded": Way(preset="fsdp", leaves_unused=True),
    "door": Way(preset="ddp", door=True),
    "door_forward": Way(preset="bytescheduler", options=(("slice_bytes", 1024),), door=True),
}
STRATEGIES = ("ddp", "ps_load_balanced", "fsdp", "bytescheduler")


def cluster_of(ranks: int) -> ClusterSpec:
    nodes = tuple(
        Node(name=f"n{i}", host="localhost", devices=1, bandwidth_out=1e8, bandwidth_in=1e8) for i in range(ranks)
    )
    return ClusterSpec(name="suite", nodes=nodes)


class Env:
    """One behaviour on one rank, by a strategy or (`way` is None) by stock DDP."""

    def __init__(self, way: Way | None, *, bundles: dict[tuple[int, Way], Any]) -> None:
        self.way = way
        self.rank = dist.get_rank()
        self.ranks = dist.get_world_size()
        self.runs: list[Run] = []
        self.moment = "start"
        self.num_batches = 0
        self.checks_threads = True
        self._bundles = bundles
        self._behind_door: list[Bundle] = []
        self._opened = contextlib.ExitStack()
        if way is not None and way.door:
            self._opened.enter_context(Door(self._behind_door).open())

    @property
    def is_stock(self) -> bool:
        """Whether scripts construct DDP."""
        return self.way is None or self.way.door

    def run(self, task: Task, *, seed: int = 0) -> "Run":
        """A model and its optimizer, not parallel yet. The ranks' models differ, as DDP and we make them equal."""
        self.runs.append(Run(self, task, len(self.runs), seed=seed))
        return self.runs[-1]

    def start(self, task: Task, *, seed: int = 0, ddp: dict[str, Any] | None = None, **options: Any) -> "Run":
        """The same, parallel. `ddp` are options of stock DDP alone; `options` are of both."""
        return self.run(task, seed=seed).start(ddp=ddp, **options)

    def wrapped(self, model: nn.Module, task: Task, number: int, **options: Any) -> DistributedDataParallel:
        """What a script constructs: DDP, by itself or behind the door."""
        if self.way is not None:
            self._behind_door.append(self.bundle(task, number))
        return DistributedDataParallel(model, **options)

    def bundle(self, task: Task, number: int) -> Bundle:
        """The first rank profiles the behaviour's task of that number and makes the bundle; all ranks get it."""
        assert self.way is not None, "stock DDP needs no bundle"
        key = (number, self.way)
        if key not in self._bundles:
            made: list[Any] = [None]
            if self.rank == 0:
                made = [_made(task, self.way, self.ranks)]
            dist.broadcast_object_list(made, src=0)
            self._bundles[key] = made[0]
        bundle = self._bundles[key]
        if isinstance(bundle, Exception):
            raise bundle
        assert isinstance(bundle, Bundle)
        return bundle

    def stop(self) -> None:
        """End all that is parallel."""
        for run in self.runs:
            run.stop()
        self._opened.close()

    def all_equal(self, value: Tensor) -> bool:
        """Whether all ranks have the same, bit for bit."""
        mine = value.detach().clone()
        first = mine.clone()
        dist.broadcast(first, 0)
        equal = torch.tensor([float(torch.equal(mine, first))])
        dist.all_reduce(equal, op=dist.ReduceOp.MIN)
        return bool(equal.item())


def _made(task: Task, way: Way, ranks: int) -> Bundle | Exception:
    """The bundle, or an error with the words of the one that profiling or building has raised."""
    cluster = cluster_of(ranks)
    try:
        spec = profile(task, steps=1)
        return bundled(build_preset(way.preset, spec, cluster, **dict(way.options)), spec, cluster)
    except AutosyncError as error:
        return OperationError(f"not built: {error}")
    except Exception as error:  # noqa: BLE001 - all ranks raise it
        return RuntimeError(f"not built: {type(error).__name__}: {error}")


class Run:
    """A model in training. `called` is what the script calls: DDP's wrapper, or the model itself."""

    def __init__(self, env: Env, task: Task, number: int, *, seed: int = 0) -> None:
        self.env = env
        self.task = task
        self.number = number
        self.rank = env.rank
        torch.manual_seed(SEED + self.rank + seed)
        self.model = task.model()
        self.optimizer = task.optimizer(self.model.parameters())
        self.batches = torch.Generator().manual_seed(100 + self.rank + seed)
        self.called: Any = self.model
        # Optimizers of the script's that `parallelize` is given beside the first.
        self.others: list[torch.optim.Optimizer] = []
        self._is_parallel = False

    @property
    def is_stock(self) -> bool:
        return self.env.is_stock

    def start(self, *, ddp: dict[str, Any] | None = None, **options: Any) -> "Run":
        self.env.moment = "start"
        if self.is_stock:
            self.called = self.env.wrapped(self.model, self.task, self.number, **options, **(ddp or {}))
        else:
            way = self.env.way
            assert way is not None, "it is not stock"
            bundle = self.env.bundle(self.task, self.number)
            if way.leaves_unused:
                options.setdefault("find_unused_parameters", (ddp or {}).get("find_unused_parameters", False))
            options = {"timeout_seconds": TIMEOUT_SECONDS, "hand_off": way.hand_off, **options}
            parallelize(
                self.model, [self.optimizer, *self.others] if self.others else self.optimizer, bundle, **options
            )
            self.called = self.model
        self._is_parallel = True
        self.env.moment = "training"
        return self

    def stop(self) -> None:
        if self._is_parallel and is_parallelized(self.model):
            release(self.model)
        self._is_parallel = False
        self.called = self.model

    def no_sync(self) -> contextlib.AbstractContextManager[None]:
        context: contextlib.AbstractContextManager[None] = (
            self.called.no_sync() if self.is_stock else no_sync(self.model)
        )
        return context

    def join(self, **options: Any) -> contextlib.AbstractContextManager[Any]:
        """torch's context for ranks that have fewer batches than others."""
        return Join([self.called], **options)

    def drain(self) -> None:
        if self._is_parallel and not self.is_stock:
            drain(self.model)

    def batch(self) -> Any:
        self.env.num_batches += 1
        return self.task.batch(self.batches)

    def loss(self, batch: Any = None) -> Tensor:
        return self.task.loss(self.called, self.batch() if batch is None else batch)

    def step(self) -> float:
        self.optimizer.zero_grad()
        loss = self.loss()
        loss.backward()
        self.optimizer.step()
        return float(loss.detach().real)

    def steps(self, count: int = NUM_STEPS) -> list[float]:
        return [self.step() for _ in range(count)]

    def parameters(self) -> list[nn.Parameter]:
        return list(self.model.parameters())

    def values(self, prefix: str = "") -> Values:
        """The state of the model, as a script that saves it has it."""
        return {prefix + name: value.detach().clone() for name, value in self.model.state_dict().items()}

    def read(self, prefix: str = "") -> Values:
        """The parameters as a script reads them: by themselves, without a word to the engine."""
        return {prefix + name: value.detach().clone() for name, value in self.model.named_parameters()}

    def grads(self, prefix: str = "grad ") -> Values:
        return {
            prefix + name: None if parameter.grad is None else parameter.grad.detach().clone()
            for name, parameter in self.model.named_parameters()
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Behaviour:
    """One behaviour. `tolerance` is for results of mixed precision."""

    name: str
    group: str
    function: Callable[[Env], Values]
    tolerance: float | None = None
    only_ranks: int | None = None


BEHAVIOURS: dict[str, Behaviour] = {}


def behaviour(
    function: Callable[[Env], Values] | None = None, *, tolerance: float | None = None, only_ranks: int | None = None
) -> Any:
    """Enter a function into the list of behaviours, by its name."""
    if function is None:
        return functools.partial(behaviour, tolerance=tolerance, only_ranks=only_ranks)
    enter(function.__name__, function, tolerance=tolerance, only_ranks=only_ranks)
    return function


def enter(name: str, function: Callable[[Env], Values], *, group: str = "", **options: Any) -> None:
    assert name not in BEHAVIOURS, f"two behaviours are called {name}"
    group = group or function.__module__.split(".")[-1]
    BEHAVIOURS[name] = Behaviour(name=name, group=group, function=function, **options)


# What most behaviours train.


def numbers(generator: torch.Generator) -> Tensor:
    return torch.randn(4, 5, generator=generator, dtype=torch.float64)


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 4), nn.Tanh(), nn.Linear(4, 1)).double()


def square(model: nn.Module, x: Tensor) -> Tensor:
    """Mean squares of how far off outputs are."""
    off: Tensor = model(x) - 1
    return off.square().mean()


def sgd(parameters: Iterable[Any]) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.05)


def momentum(parameters: Iterable[Any]) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.05, momentum=0.9)


def adam(parameters: Iterable[Any]) -> torch.optim.Optimizer:
    return torch.optim.Adam(parameters, lr=0.02)


def adamw(parameters: Iterable[Any]) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=0.02)


def task(
    model: Callable[[], nn.Module] = net,
    optimizer: Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer] = sgd,
    batch: Callable[[torch.Generator], Any] = numbers,
    loss: Callable[[nn.Module, Any], Tensor] = square,
    **more: Any,
) -> Task:
    return Task(name="suite", model=model, optimizer=optimizer, batch=batch, loss=loss, **more)
