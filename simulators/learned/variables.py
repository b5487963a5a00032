"""The input of the sequence model: numbers for each variable, in the order in which the forward pass uses them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from autosync.simulators.features.choices import complexity
from autosync.simulators.features.context import context_features, scales_of
from autosync.simulators.shared.arrays import Floats
from autosync.simulators.shared.costs import usual_costs
from autosync.specs.cluster import ClusterSpec
from autosync.specs.model import ModelSpec
from autosync.strategy import legality
from autosync.strategy.parts import Part
from autosync.strategy.representation import Message, Strategy, all_parts
from autosync.strategy.synchronisers import SHIPPED_KINDS

_TOPOLOGIES = ("native", "ring", "tree", "halving_doubling")

VARIABLE_NAMES = (
    "size",
    "wire",
    "compute",
    "ready",
    "embedding",
    "linear",
    "parts",
    "message",
    "company",
    "priority",
    "lane",
    "sliced",
    "codec",
    "forward",
    "updates_at_server",
    "rows",
    "hierarchical",
    "server_rate",
    *(f"kind.{kind}" for kind in SHIPPED_KINDS),
    *(f"topology.{topology}" for topology in _TOPOLOGIES),
)


class SequenceRows(NamedTuple):
    """A row for each strategy: the numbers of its variables (strategy, variable, number), and the bound."""

    values: Floats
    bound: Floats
    complexity: Floats


class SequenceReader:
    """Reads strategies for one model on one cluster."""

    def __init__(self, model: ModelSpec, cluster: ClusterSpec) -> None:
        self._model = model
        self._cluster = cluster
        self._bound = scales_of(model, cluster).bound
        costs = usual_costs(cluster)
        self._context = np.array(list(context_features(model, cluster, costs).values()))
        self._order = sorted(model.variables, key=lambda variable: (variable.use, variable.ready, variable.name))
        rates = [min(node.bandwidth_out, node.bandwidth_in) for node in cluster.nodes if node.role == "worker"]
        self._rate = min(rates)
        self._compute = dict.fromkeys((variable.name for variable in model.variables), 0.0)
        for segment in model.timeline.backward:
            for name in segment.variables:
                self._compute[name] += segment.seconds / len(segment.variables)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of a variable's numbers."""
        return (*VARIABLE_NAMES, *(f"context.{number}" for number in range(len(self._context))))

    def read(self, strategies: Sequence[Strategy]) -> SequenceRows:
        """Return strategies as rows, in their order."""
        shape = (len(strategies), len(self._order), len(VARIABLE_NAMES) + len(self._context))
        values = np.zeros(shape)
        for row, strategy in enumerate(strategies):
            values[row, :, : len(VARIABLE_NAMES)] = self._variables(strategy)
        values[:, :, len(VARIABLE_NAMES) :] = self._context
        return SequenceRows(
            values=np.round(values, 7),
            bound=np.full(len(strategies), self._bound),
            complexity=np.array([complexity(strategy) for strategy in strategies]),
        )

    def _variables(self, strategy: Strategy) -> Floats:
        try:
            parts = all_parts(strategy, self._model)
            messages = {name: message for message in strategy.messages for name in message.parts}
            sizes = {id(message): sum(parts[name].num_bytes for name in message.parts) for message in strategy.messages}
            of_variable: dict[str, list[tuple[Part, Message]]] = {}
            for name, part in parts.items():
                of_variable.setdefault(part.variable.name, []).append((part, messages[name]))
        except KeyError:
            legality.check(strategy, self._model, self._cluster)
            raise
        lanes = 1 + max(message.lane for message in strategy.messages)
        priorities = 1 + max(message.priority for message in strategy.messages)
        forward = float(strategy.overlap == "forward")
        rows = []
        for variable in self._order:
            found = of_variable[variable.name]
            each = [
                self._of_part(message, sizes[id(message)], lanes=lanes, priorities=priorities) for _, message in found
            ]
            weights = [part.num_bytes / variable.num_bytes for part, _ in found]
            rows.append(
                [
                    np.log2(variable.num_bytes / self._model.num_bytes),
                    variable.num_bytes / self._rate / self._bound,
                    self._compute[variable.name] / self._bound,
                    variable.ready / len(self._order),
                    float(variable.kind == "embedding"),
                    float(variable.kind == "linear"),
                    np.log2(len(found)),
                    *np.average(np.array(each), axis=0, weights=weights).tolist(),
                ]
            )
            rows[-1].insert(VARIABLE_NAMES.index("forward"), forward)
        return np.array(rows)

    def _of_part(self, message: Message, size: int, *, lanes: int, priorities: int) -> list[float]:
        """Return a part's numbers from its message: those from `message` on, except `forward`."""
        synchroniser = message.synchroniser
        server_rate = 0.0
        if synchroniser.served_by is not None:
            server = self._cluster.nodes[self._cluster.node_index(synchroniser.served_by)]
            server_rate = min(server.bandwidth_out, server.bandwidth_in) / self._rate
        return [
            size / self._model.num_bytes,
            float(np.log2(len(message.parts))),
            message.priority / priorities,
            message.lane / lanes,
            float(message.slice_bytes is not None),
            float(message.codec is not None),
            float(synchroniser.updates_at_server),
            float(synchroniser.sends_rows),
            float(synchroniser.is_hierarchical),
            server_rate,
            *(float(synchroniser.kind == kind) for kind in SHIPPED_KINDS),
            *(float(synchroniser.route == one) for one in _TOPOLOGIES),
        ]
