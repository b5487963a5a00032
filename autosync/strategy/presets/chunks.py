"""The presets of AutoDist's all-reduce builders: groups of consecutive variables, whole or cut."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping

from autosync.errors import DoesNotApplyError
from autosync.specs.cluster import ClusterSpec
from autosync.specs.model import ModelSpec, Variable
from autosync.strategy.cuts import even_sizes, smallest_divisor
from autosync.strategy.legality import MAX_PARTS
from autosync.strategy.parts import Part, Partition, parts_of
from autosync.strategy.presets.all_reduce import topology_option
from autosync.strategy.presets.common import need_elementwise, travels_as_rows
from autosync.strategy.presets.options import count_option
from autosync.strategy.representation import Message, Strategy
from autosync.strategy.synchronisers.all_reduce import AllReduce
from autosync.strategy.synchronisers.base import Topology
from autosync.strategy.synchronisers.sparse_gather import SparseGather

CHUNK_SIZE = 128


def all_reduce_chunks(
    model: ModelSpec, cluster: ClusterSpec, *, chunk_size: int = CHUNK_SIZE, topology: str = "native"
) -> Strategy:
    """All-reduce in groups of `chunk_size` variables that follow one another in the order of declaration.

    Variables of different dtypes do not share a message. Rows of embeddings are gathered; embeddings count in the size
    of their group.

    Source: petuum/autodist, autodist/strategy/all_reduce_strategy.py (`AllReduce`; `all_reduce_spec` is the topology,
    and its scoped allocator merges the gradients of a group).
    """
    del cluster  # the same on every cluster
    parts = [part for variable in model.variables for part in parts_of(variable, None)]
    messages = grouped(parts, model, count_option("chunk_size", chunk_size), topology_option(topology))
    return Strategy(messages=messages)


def partitioned_all_reduce(model: ModelSpec, cluster: ClusterSpec, *, chunk_size: int = CHUNK_SIZE) -> Strategy:
    """Each variable cut along its first axis, all-reduced in groups of `chunk_size` parts.

    The number of parts is the smallest divisor above 1 of the number of rows (7 rows make 7 parts, 8 rows make 2);
    scalars are not cut. Parts of one variable in the same group travel as if the variable were not cut. Rows are
    gathered, with a message for each part.

    Source: petuum/autodist, autodist/strategy/partitioned_all_reduce_strategy.py (`PartitionedAR`).
    """
    del cluster  # the same on every cluster
    return _partitioned(model, dict.fromkeys((variable.name for variable in model.variables), 0), chunk_size)


def random_axis_partitioned_all_reduce(
    model: ModelSpec, cluster: ClusterSpec, *, chunk_size: int = CHUNK_SIZE, seed: int = 0
) -> Strategy:
    """Each variable cut along an axis drawn at random, all-reduced in groups of `chunk_size` parts.

    The axis is drawn from the axes longer than 1; embeddings that send rows are cut along the first axis. All else is
    as in `partitioned_all_reduce`. The same `seed` draws the same axes.

    Source: petuum/autodist, autodist/strategy/random_axis_partition_all_reduce_strategy.py (`RandomAxisPartitionAR`),
    which draws without a seed.
    """
    del cluster  # the same on every cluster
    rng = random.Random(count_option("seed", seed, minimum=0))
    axes: dict[str, int] = {}
    for variable in model.variables:
        long = [axis for axis, size in enumerate(variable.shape) if size > 1]
        axes[variable.name] = rng.choice(long) if long and not travels_as_rows(variable, model) else 0
    return _partitioned(model, axes, chunk_size)


def _partitioned(model: ModelSpec, axes: Mapping[str, int], chunk_size: int) -> Strategy:
    need_elementwise(model, "parts are updated apart, which needs an elementwise optimizer")
    partitions: dict[str, Partition] = {}
    for variable in model.variables:
        size = variable.shape[axes[variable.name]] if variable.shape else 1
        num_parts = smallest_divisor(size)
        if num_parts > MAX_PARTS:
            what = f"{variable.name} would be cut into {num_parts} parts"
            raise DoesNotApplyError(what, rule=f"at most {MAX_PARTS} parts")
        if num_parts > 1:
            partitions[variable.name] = Partition(axis=axes[variable.name], sizes=even_sizes(size, num_parts))
    parts = [part for variable in model.variables for part in parts_of(variable, partitions.get(variable.name))]
    return Strategy(
        partitions=partitions, messages=grouped(parts, model, count_option("chunk_size", chunk_size), "native")
    )


def grouped(parts: Iterable[Part], model: ModelSpec, chunk_size: int, topology: Topology) -> tuple[Message, ...]:
    """Return messages of `chunk_size` consecutive parts; parts that send rows count in their group but travel alone."""
    alone: list[Message] = []
    groups: dict[tuple[int, str], list[str]] = {}
    for index, part in enumerate(parts):
        variable: Variable = part.variable
        if travels_as_rows(variable, model):
            alone.append(Message(parts=(str(part.name),), synchroniser=SparseGather()))
        else:
            groups.setdefault((index // chunk_size, variable.dtype), []).append(str(part.name))
    synchroniser = AllReduce(topology=topology)
    together = (Message(parts=tuple(names), synchroniser=synchroniser) for names in groups.values())
    return (*alone, *together)
