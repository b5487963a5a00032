"""What several presets share: which gradients travel as rows, which nodes serve, and how load is spread over them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from autosync.errors import DoesNotApplyError
from autosync.specs.cluster import ClusterSpec, Node
from autosync.specs.model import ModelSpec, Variable
from autosync.strategy.backends import BACKENDS
from autosync.strategy.parts import Part
from autosync.strategy.representation import Message
from autosync.strategy.synchronisers.parameter_server import ParameterServer
from autosync.strategy.synchronisers.sparse_gather import SparseGather

NUM_LANES = 8
"""Lanes of servers at most, unless a preset says otherwise: every backend allows these, and each lane is threads."""


def in_ready_order(variables: Iterable[Variable]) -> list[Variable]:
    """The order in which gradients come."""
    return sorted(variables, key=lambda variable: variable.ready)


def travels_as_rows(variable: Variable, model: ModelSpec) -> bool:
    """Whether touched rows may travel instead of the whole gradient: an embedding, and nothing that needs it dense."""
    is_scaled = model.clip_norm is not None or model.loss_scaling
    return variable.kind == "embedding" and model.optimizer.sparse and not is_scaled


def is_sparse_to_ddp(variable: Variable, model: ModelSpec, cluster: ClusterSpec) -> bool:
    """Whether stock DDP reduces the gradient as a sparse tensor: torch makes it one, and gloo alone can reduce it."""
    return variable.sparse and travels_as_rows(variable, model) and cluster.backend == "gloo"


def rows_message(variable: Variable, *, priority: int = 0, lane: int = 0) -> Message:
    """The touched rows of an embedding, gathered by all: what an all-reduce of a sparse gradient does."""
    return Message(parts=(variable.name,), synchroniser=SparseGather(), priority=priority, lane=lane)


def need_elementwise(model: ModelSpec, why: str) -> None:
    """Refuse an optimizer that looks at a whole parameter at once."""
    if not model.optimizer.elementwise:
        name = model.optimizer.name
        raise DoesNotApplyError(f"{name} is no elementwise optimizer", rule=why)


class Servers:
    """The nodes that serve, and how many bytes each has been given.

    These are the nodes without devices where there are any (and the backend lets them take part), else all workers,
    as in AutoDist. A server moves as many bytes in as out, so the slower direction of its interface is its rate.

    A lane keeps its order, so one lane keeps one server busy at a time: each server has its own, as far as `num_lanes`
    go.
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
        """A message for the part, on the server that would be done first with it: greedy, the first of equals."""
        rows = travels_as_rows(part.variable, self._model)
        # A table takes a server's memory, but what is balanced here is the wire: rows count as rows.
        num_bytes = part.touched_rows()[0] * part.row_bytes if rows else part.num_bytes
        node = min(self.nodes, key=lambda node: (self._load_bytes[node.name] + num_bytes) / interface_rate(node))
        self._load_bytes[node.name] += num_bytes
        return self.message_at(node.name, part, lane=self._lanes[node.name])

    def message_at(self, server: str, part: Part, *, lane: int = 0) -> Message:
        """A message for the part, on that server, which need not be one of these."""
        rows = travels_as_rows(part.variable, self._model)
        # A server sees parts; an optimizer that must see whole parameters stays with the workers.
        update: Literal["server", "worker"] = "server" if self._model.optimizer.elementwise else "worker"
        synchroniser = ParameterServer(
            server=server, update=update, local_proxy=self._local_proxy and not rows, sparse=rows
        )
        return Message(parts=(str(part.name),), synchroniser=synchroniser, lane=lane)


def interface_rate(node: Node) -> float:
    """What passes a node both ways at once, in bytes per second: the slower direction of its interface."""
    return min(node.bandwidth_in, node.bandwidth_out)
