"""The cases of `loss_curves.py`: the scripts of `examples/training`, and exact strategies that differ widely."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from autosync.errors import DoesNotApplyError
from autosync.specs.cluster import ClusterSpec, Node
from autosync.specs.model import ModelSpec, Variable
from autosync.specs.profile.run import profile
from autosync.specs.task_file import load_task
from autosync.strategy import legality
from autosync.strategy.codecs import Cast
from autosync.strategy.parts import Partition
from autosync.strategy.presets import build_preset
from autosync.strategy.presets.common import in_ready_order, travels_as_rows
from autosync.strategy.representation import Message, Strategy
from autosync.strategy.space import Limits, Space
from autosync.strategy.synchronisers.all_reduce import AllReduce
from autosync.strategy.synchronisers.base import Topology
from autosync.strategy.synchronisers.parameter_server import ParameterServer
from autosync.strategy.synchronisers.sparse_gather import SparseGather
from autosync.strategy.synchronisers.sufficient_factors import SufficientFactors

TRAINING = Path(__file__).parents[2] / "examples/training"
LIMITS = Limits(slice_bytes=(1024, 4096, 16384), max_parts=6)
"""Of strategies that are drawn: messages and parts that fit small models."""
CONTROL = "control: gradients in bfloat16"
"""A lossy strategy: if its curve passed for exact, so could anything."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """A training script, the function in it that `autosync tune` reads, and arguments of its command line.

    `dtypes` are those that its numbers may have by default.
    """

    file: str
    task: str = "task"
    arguments: tuple[str, ...] = ()
    dtypes: tuple[str, ...] = ("float64", "float32")

    @property
    def path(self) -> Path:
        return TRAINING / self.file


SCRIPTS = {
    "image classifier": Script(file="image_classifier.py"),
    "language model": Script(file="language_model.py"),
    "recommender": Script(file="recommender.py"),
    "mixed precision, bfloat16": Script(file="mixed_precision.py", dtypes=("float32",)),
    "mixed precision, float16": Script(
        file="mixed_precision.py", task="task_float16", arguments=("--precision", "float16"), dtypes=("float32",)
    ),
    "accumulation": Script(file="accumulation.py"),
}


def cluster_of(num_ranks: int) -> ClusterSpec:
    """Two nodes with half the ranks each, all on this machine."""
    nodes = tuple(
        Node(name=name, host="localhost", devices=num_ranks // 2, bandwidth_out=1e8, bandwidth_in=1e8)
        for name in ("n0", "n1")
    )
    return ClusterSpec(name="here", nodes=nodes)


def model_of(script: Script, dtype: str) -> ModelSpec:
    """The model spec of a script's task where numbers are of this type by default."""
    torch.set_default_dtype(getattr(torch, dtype))
    try:
        return profile(load_task(f"{script.path}:{script.task}"), steps=1)
    finally:
        torch.set_default_dtype(torch.float32)


def strategies(
    model: ModelSpec, cluster: ClusterSpec, *, seed: int, num_random: int
) -> Iterator[tuple[str, Strategy | str]]:
    """Strategies by name; or why the model cannot have one."""
    for name, build in {**BUILDERS, CONTROL: _control}.items():
        try:
            strategy = build(model, cluster)
            legality.check(strategy, model, cluster)
        except DoesNotApplyError as error:
            yield name, str(error)
        else:
            yield name, replace(strategy, name=name)
    space = Space(model=model, cluster=cluster, limits=LIMITS)
    for number in range(num_random):
        name = f"random {number + 1}"
        yield name, replace(space.sample(random.Random(f"{seed}/{number}")), name=name)


def _per_variable(model: ModelSpec, message: Callable[[int, Variable], Message], **options: Any) -> Strategy:
    """A message for each variable; what torch makes sparse is gathered by rows."""
    messages = (
        Message(parts=(variable.name,), synchroniser=SparseGather())
        if travels_as_rows(variable, model)
        else message(number, variable)
        for number, variable in enumerate(in_ready_order(model.variables))
    )
    return Strategy(messages=tuple(messages), **options)


def _rings(model: ModelSpec, _: ClusterSpec, **options: Any) -> Strategy:
    """The engine's own rounds, on two lanes."""
    ring = AllReduce(topology="ring")
    return _per_variable(
        model,
        lambda number, variable: Message(parts=(variable.name,), synchroniser=ring, lane=number % 2, priority=number),
        **options,
    )


def _into_forward(model: ModelSpec, cluster: ClusterSpec) -> Strategy:
    return _rings(model, cluster, overlap="forward")


def _in_parts(model: ModelSpec, _: ClusterSpec) -> Strategy:
    """Every matrix in two parts, which halves and doublings or trees sum; rows are sent as the dense gradient."""
    partitions, messages = {}, []
    for variable in in_ready_order(model.variables):
        rows = variable.shape[0] if variable.shape else 1
        names = [variable.name]
        if len(variable.shape) > 1 and rows > 1 and model.optimizer.elementwise:
            partitions[variable.name] = Partition(sizes=(rows // 3 + 1, rows - rows // 3 - 1))
            names = [f"{variable.name}[0]", f"{variable.name}[1]"]
        topologies: tuple[Topology, ...] = ("halving_doubling", "tree")
        messages += [
            Message(parts=(name,), synchroniser=AllReduce(topology=topology))
            for name, topology in zip(names, topologies, strict=False)
        ]
    return Strategy(partitions=partitions, messages=tuple(messages))


def _factors(model: ModelSpec, _: ClusterSpec) -> Strategy:
    """The two factors of linear layers' gradients."""
    if not any(variable.kind == "linear" for variable in model.variables):
        raise DoesNotApplyError(f"{model.name} has no linear variable", rule="factors are of linear variables")
    return _per_variable(
        model,
        lambda _, variable: Message(
            parts=(variable.name,), synchroniser=SufficientFactors() if variable.kind == "linear" else AllReduce()
        ),
    )


def _workers_update(model: ModelSpec, _: ClusterSpec) -> Strategy:
    """Servers that only average: gradients come back, and the script's own optimizer updates."""

    def message(number: int, variable: Variable) -> Message:
        server = ParameterServer(server=f"n{number % 2}", update="worker")
        return Message(parts=(variable.name,), synchroniser=server, slice_bytes=4096)

    return _per_variable(model, message)


def _control(model: ModelSpec, _: ClusterSpec) -> Strategy:
    return _per_variable(model, lambda _, variable: Message(parts=(variable.name,), codec=Cast()))


def _preset(name: str, **options: Any) -> Callable[[ModelSpec, ClusterSpec], Strategy]:
    return lambda model, cluster: build_preset(name, model, cluster, **options)


def _sharded_into_forward(model: ModelSpec, cluster: ClusterSpec) -> Strategy:
    return replace(build_preset("sharded", model, cluster, cap_bytes=65_536), overlap="forward")


BUILDERS: dict[str, Callable[[ModelSpec, ClusterSpec], Strategy]] = {
    "torch's reducer": _preset("ddp"),
    "rings": _rings,
    "rings into the next forward pass": _into_forward,
    "slices by priority": _preset("bytescheduler", slice_bytes=4096),
    "shards into the next forward pass": _sharded_into_forward,
    "servers": _preset("ps_load_balanced"),
    "servers of parts": _preset("ps_partitioned"),
    "servers that average": _workers_update,
    "halves and trees": _in_parts,
    "factors": _factors,
    "rows at servers": _preset("parallax"),
    "hierarchical": _preset("hierarchical"),
}
