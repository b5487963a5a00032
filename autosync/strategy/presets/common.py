"""Helpers of several presets: which gradients travel as rows, which nodes serve, and how load is spread over them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal

from autosync.errors import DoesNotApplyError
from autosync.specs.cluster import ClusterSpec, Node
from autosync.specs.model import ModelSpec, Variable
from autosync.strategy.backends import BACKENDS
from autosync.strategy.parts import Part
from autosync.strategy.representation import Message
from autosync.strategy.shapes.links import node_rates
from autosync.strategy.synchronisers.parameter_server import ParameterServer
from autosync.strategy.synchronisers.sparse_gather import SparseGather

_NUM_HALVINGS = 60

NUM_LANES = 8
"""The most lanes to servers, unless a preset has its own number: every backend allows 8, and lanes cost threads."""


def in_ready_order(variables: Iterable[Variable]) -> list[Variable]:
    """Return variables in the order in which their gradients become ready."""
    return sorted(variables, key=lambda variable: variable.ready)


def travels_as_rows(variable: Variable, model: ModelSpec) -> bool:
    """Whether the touched rows of a variable may travel instead of its whole gradient.

    It must be an embedding, and neither the optimizer nor clipping or scaling may need a dense gradient.
    """
    is_scaled = model.clip_norm is not None or model.loss_scaling
    return variable.kind == "embedding" and model.optimizer.sparse and not is_scaled


def is_sparse_to_ddp(variable: Variable, model: ModelSpec, cluster: ClusterSpec) -> bool:
    """Whether stock DDP reduces the gradient as a sparse tensor: torch makes it sparse, and the backend is gloo."""
    return variable.sparse and travels_as_rows(variable, model) and cluster.backend == "gloo"


def rows_message(variable: Variable, *, priority: int = 0, lane: int = 0) -> Message:
    """Return a message in which all ranks gather an embedding's touched rows, like a sparse gradient's all-reduce."""
    return Message(parts=(variable.name,), synchroniser=SparseGather(), priority=priority, lane=lane)


def need_elementwise(model: ModelSpec, why: str) -> None:
    """Raise DoesNotApplyError if the optimizer is not elementwise; `why` is the rule in the error."""
    if not model.optimizer.elementwise:
        name = model.optimizer.name
        raise DoesNotApplyError(f"{name} is no elementwise optimizer", rule=why)


class ServerNodes:
    """The nodes that serve, and how many bytes each has been given.

    These are the nodes without devices, if there are any and the backend lets them take part; else all workers' nodes,
    as in AutoDist. A server receives as many bytes as it sends, so the slower direction of its interface is its rate.

    One lane keeps only one server busy at a time, because its transfers run in order. So each server has its own lane,
    as far as `num_lanes` allows.
    """

    def __init__(
        self, model: ModelSpec, cluster: ClusterSpec, *, local_proxy: bool = False, num_lanes: int = NUM_LANES
    ) -> None:
        dedicated = [node for node in cluster.nodes if node.role == "server"]
        can_serve = dedicated and BACKENDS[cluster.backend].serves_without_device
        self.nodes: list[Node] = dedicated if can_serve else [n for n in cluster.nodes if n.role == "worker"]
        self._load_bytes = dict.fromkeys((node.name for node in self.nodes), 0.0)
        self._lanes = {node.name: position % num_lanes for position, node in enumerate(self.nodes)}
        self._model = model
        self._local_proxy = local_proxy

    def message(self, part: Part) -> Message:
        """Return a message for the part on the server that would finish first with it, and count its bytes there.

        The first of several equal servers is taken.
        """
        rows = travels_as_rows(part.variable, self._model)
        # Traffic is balanced here, not memory, so an embedding counts with its touched rows.
        num_bytes = part.touched_rows()[0] * part.row_bytes if rows else part.num_bytes
        node = min(self.nodes, key=lambda node: (self._load_bytes[node.name] + num_bytes) / interface_rate(node))
        self._load_bytes[node.name] += num_bytes
        return self.message_of(node.name, part)

    def message_of(self, server: str, part: Part) -> Message:
        """Return a message for the part on one of `nodes`, in that server's lane."""
        return self.message_at(server, part, lane=self._lanes[server])

    def message_at(self, server: str, part: Part, *, lane: int = 0) -> Message:
        """Return a message for the part on the given server, which need not be one of `nodes`."""
        rows = travels_as_rows(part.variable, self._model)
        # A server sees only parts, so an optimizer that needs whole parameters runs on the workers.
        update: Literal["server", "worker"] = "server" if self._model.optimizer.elementwise else "worker"
        synchroniser = ParameterServer(
            server=server, update=update, local_proxy=self._local_proxy and not rows, sparse=rows
        )
        return Message(parts=(str(part.name),), synchroniser=synchroniser, lane=lane)


def balanced_shares(servers: Sequence[Node], cluster: ClusterSpec, *, has_proxies: bool) -> list[float]:
    """Return the share of the data of each server with which their interfaces finish together.

    A node with workers sends the gradients of its own ranks for all that it does not serve, and receives as many
    parameters. So if `own` of its ranks and `others` elsewhere exchange data with servers, a share p lets
    own (1 - p) + others p pass its interface in each direction. Rates are the probed ones, else those of the file.
    """
    num_senders = len(cluster.worker_groups()) if has_proxies else cluster.num_workers
    rates = [min(node_rates(cluster, cluster.node_index(node.name))) for node in servers]
    own = [min(node.devices, 1) if has_proxies else node.devices for node in servers]
    slopes = [num_senders - 2 * count for count in own]
    if min(slopes) <= 0:
        # Half of the ranks are on one node: what it serves does not change its load.
        return [rate / sum(rates) for rate in rates]

    def shares_by(seconds: float) -> list[float]:
        loads = zip(rates, own, slopes, strict=True)
        return [max(rate * seconds - count, 0.0) / slope for rate, count, slope in loads]

    low, high = 0.0, num_senders / min(rates)
    for _ in range(_NUM_HALVINGS):
        middle = (low + high) / 2
        low, high = (low, middle) if sum(shares_by(middle)) >= 1.0 else (middle, high)
    return shares_by(high)


def interface_rate(node: Node) -> float:
    """Return the rate of a node's interface in bytes per second, in its slower direction."""
    return min(node.bandwidth_in, node.bandwidth_out)
