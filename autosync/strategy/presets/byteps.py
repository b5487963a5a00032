"""The preset of BytePS: spare machines and the workers' own machines sum gradients, in proportion to their links."""

from __future__ import annotations

from collections.abc import Mapping

from autosync.specs.cluster import ClusterSpec, Node
from autosync.specs.model import ModelSpec
from autosync.strategy.backends import BACKENDS
from autosync.strategy.cuts import equal_sizes
from autosync.strategy.legality import MAX_PARTS, smallest_slice_bytes
from autosync.strategy.parts import Partition, parts_of
from autosync.strategy.presets.common import interface_rate
from autosync.strategy.presets.options import count_option, size_option
from autosync.strategy.presets.scheduling import ServerLanes, need_overtaking, shares_nodes, use_levels
from autosync.strategy.representation import Message, Strategy
from autosync.strategy.synchronisers.parameter_server import ParameterServer

PARTITION_BYTES = 4_096_000
NUM_LANES = 16


def byteps(
    model: ModelSpec, cluster: ClusterSpec, *, partition_bytes: int | str = PARTITION_BYTES, num_lanes: int = NUM_LANES
) -> Strategy:
    """Pieces of 4 MB summed on spare nodes and on the workers' own, as much on each as keeps all links equally busy.

    The ranks of a node sum among themselves first. If all links are equally fast, the shares are those of the paper:
    with n nodes of workers and k < n nodes that only serve, a server sums 2(n-1)/(n² + kn - 2k) of all bytes and a
    worker's node (n-k)/(n² + kn - 2k). With unequal links the shares let all links finish at the same time. Pieces are
    placed in the order of declaration, each on the node that has the least of its share so far; the original draws
    nodes by a hash. Servers only sum; workers update. Variables that the next forward pass uses first go first, and
    transfers may overlap that pass. Each server has a lane for each of up to four bands of use, as far as `num_lanes`
    allows. Embeddings are dense.

    Source: Jiang et al., "A Unified Architecture for Accelerating Distributed DNN Training in Heterogeneous GPU/CPU
    Clusters", OSDI 2020, section 4 (Theorem 1); bytedance/byteps, byteps/common/global.cc (`Hash_Mixed_Mode`,
    `BYTEPS_PARTITION_BYTES` of 4,096,000), byteps/common/scheduled_queue.cc (priority, then the first piece),
    byteps/torch/cross_barrier.py (overlap with the next forward pass).
    """
    need_overtaking(cluster)
    limit = size_option("partition_bytes", partition_bytes, minimum=1024)
    shares = optimal_shares(cluster)
    servers = {name: position for position, name in enumerate(shares)}
    lanes = ServerLanes(model, len(servers), count_option("num_lanes", num_lanes))
    levels = use_levels(model)
    partitions = _pieces(model, limit)
    loads = dict.fromkeys(shares, 0.0)
    messages: list[Message] = []
    for variable in model.variables:
        for part in parts_of(variable, partitions.get(variable.name)):
            server = min(shares, key=lambda name: (loads[name] + part.num_bytes) / shares[name])
            loads[server] += part.num_bytes
            synchroniser = ParameterServer(server=server, update="worker", local_proxy=shares_nodes(cluster))
            messages.append(
                Message(
                    parts=(str(part.name),),
                    synchroniser=synchroniser,
                    priority=levels[variable.name],
                    lane=lanes.lane(variable.name, servers[server]),
                    # A part that cannot be cut further, such as a row longer than a piece, travels in slices.
                    slice_bytes=max(limit, smallest_slice_bytes(model)) if part.num_bytes > limit else None,
                )
            )
    return Strategy(overlap="forward", partitions=partitions, messages=tuple(messages))


def _pieces(model: ModelSpec, limit_bytes: int) -> Mapping[str, Partition]:
    """Return cuts along the first axis into pieces of about `limit_bytes`; the last piece of a variable is the rest."""
    if not model.optimizer.elementwise:
        return {}
    partitions: dict[str, Partition] = {}
    for variable in model.variables:
        if variable.num_bytes <= limit_bytes or variable.shape[0] == 1:
            continue
        num_rows = variable.shape[0]
        rows = max(1, limit_bytes * num_rows // variable.num_bytes, -(-num_rows // MAX_PARTS))
        partitions[variable.name] = Partition(sizes=equal_sizes(num_rows, rows))
    return partitions


def optimal_shares(cluster: ClusterSpec) -> Mapping[str, float]:
    """Return the share of all bytes that each node sums, servers first; nodes without a share are left out.

    With n nodes of workers, a worker's node with share m sends and receives 1 + (n-2)m: all its own gradients except
    share m of them, and share m of the gradients of each of the n-1 others. A node that only serves sends and receives
    n times its share. All nodes finish at the same time t if (1 + (n-2)m)/rate = t, or nm/rate = t for servers, and the
    shares add up to 1. The slowest worker needs at least the time to send its own gradients. If t is shorter than that,
    the nodes have more room than needed, and all shares are reduced in proportion.
    """
    workers = [node for node in cluster.nodes if node.role == "worker"]
    can_serve = BACKENDS[cluster.backend].serves_without_device
    servers = [node for node in cluster.nodes if node.role == "server" and can_serve]
    n = len(workers)
    if n == 1:
        # With one node of workers a server would only add traffic.
        return {workers[0].name: 1.0}
    own = 1 / min(interface_rate(node) for node in workers)
    if n == 2:
        return _shares_of_two(servers, workers, own)
    speed = sum(interface_rate(node) for node in servers) / n + sum(interface_rate(node) for node in workers) / (n - 2)
    seconds = max(own, (1 + n / (n - 2)) / speed)
    room = {node.name: seconds * interface_rate(node) / n for node in servers}
    room |= {node.name: (seconds * interface_rate(node) - 1) / (n - 2) for node in workers}
    return _in_proportion(room)


def _shares_of_two(servers: list[Node], workers: list[Node], seconds: float) -> Mapping[str, float]:
    """Return the shares for two nodes of workers: servers take as much as they can, the two nodes the rest.

    Each of the two sends the bytes of all its gradients, however much it sums.
    """
    room = {node.name: seconds * interface_rate(node) / 2 for node in servers}
    rest = max(0.0, 1 - sum(room.values()))
    rates = sum(interface_rate(node) for node in workers)
    return _in_proportion(room | {node.name: rest * interface_rate(node) / rates for node in workers})


def _in_proportion(room: Mapping[str, float]) -> Mapping[str, float]:
    """Return shares that add up to 1; nodes with almost no room are left out."""
    total = sum(room.values())
    return {name: size / total for name, size in room.items() if size / total > 1e-9}
