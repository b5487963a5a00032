"""The preset of P3: small slices are dealt to all servers, and slices of the first layers go first."""

from __future__ import annotations

from autosync.specs.cluster import ClusterSpec
from autosync.specs.model import ITEM_BYTES, ModelSpec, Variable
from autosync.strategy.cuts import even_sizes
from autosync.strategy.legality import MAX_PARTS, smallest_slice_bytes
from autosync.strategy.parts import Partition, parts_of
from autosync.strategy.presets.common import ServerNodes
from autosync.strategy.presets.options import count_option
from autosync.strategy.presets.scheduling import ServerLanes, need_overtaking, shares_nodes, use_levels
from autosync.strategy.representation import Message, Strategy
from autosync.strategy.synchronisers.parameter_server import ParameterServer

SLICE_PARAMETERS = 40_000
NUM_LANES = 16


def p3(
    model: ModelSpec, cluster: ClusterSpec, *, slice_parameters: int = SLICE_PARAMETERS, num_lanes: int = NUM_LANES
) -> Strategy:
    """Priority-based parameter propagation: slices of 40,000 parameters dealt to the servers, first layers first.

    P3 deals slices to servers in turn, and continues from one variable to the next. Here the slices of a variable on
    one server lie side by side: a variable is cut along its first axis into a part for each server (or for each slice,
    if there are fewer slices), and parts travel in slices. Servers sum and answer at once; workers update. Transfers
    may overlap the next forward pass. The ranks of a node sum among themselves first. Each server has a lane for each
    of up to four bands of use, as far as `num_lanes` allows. Embeddings are dense. Variables stay whole if the
    optimizer is not elementwise.

    Source: Jayarajan et al., "Priority-based Parameter Propagation for Distributed DNN Training", MLSys 2019 (slicing,
    priorities, answers without a request); apache/mxnet, src/kvstore/p3store_dist.h (`EncodeDefaultKey`: turns,
    `MXNET_KVSTORE_SLICE_THRESHOLD` of 40,000; no update on servers, no rows).
    """
    need_overtaking(cluster)
    limit = count_option("slice_parameters", slice_parameters, minimum=1024)
    nodes = ServerNodes(model, cluster).nodes
    lanes = ServerLanes(model, len(nodes), count_option("num_lanes", num_lanes))
    levels = use_levels(model)
    partitions: dict[str, Partition] = {}
    messages: list[Message] = []
    turn = 0
    for variable in model.variables:
        num_slices = -(-variable.num_elements // limit)
        num_parts = _num_parts(variable, model, min(num_slices, len(nodes)))
        if num_parts > 1:
            partitions[variable.name] = Partition(sizes=even_sizes(variable.shape[0], num_parts))
        slice_bytes = max(limit * ITEM_BYTES[variable.dtype], smallest_slice_bytes(model))
        for index, part in enumerate(parts_of(variable, partitions.get(variable.name))):
            server = (turn + index) % len(nodes)
            messages.append(
                Message(
                    parts=(str(part.name),),
                    synchroniser=ParameterServer(
                        server=nodes[server].name, update="worker", local_proxy=shares_nodes(cluster)
                    ),
                    priority=levels[variable.name],
                    lane=lanes.lane(variable.name, server),
                    slice_bytes=slice_bytes if part.num_bytes > slice_bytes else None,
                )
            )
        turn += num_slices
    return Strategy(overlap="forward", partitions=partitions, messages=tuple(messages))


def _num_parts(variable: Variable, model: ModelSpec, wanted: int) -> int:
    if not variable.shape or not model.optimizer.elementwise:
        return 1
    return min(wanted, variable.shape[0], MAX_PARTS)
