"""Features of a plan without playing it: what it comes to on links, lanes and ranks, in seconds of a step."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from autosync.plan.tables import LOCAL_KINDS, Operations, Shape, Tables
from autosync.simulators.costs import Costs
from autosync.simulators.symmetry import Classes, classes_of
from autosync.simulators.timeline.catalog import catalog_of
from autosync.simulators.timeline.problem import Floats
from autosync.simulators.usage import links_of
from autosync.specs.cluster import ClusterSpec
from autosync.specs.model import ModelSpec

_UPDATE = LOCAL_KINDS.index("update")
_CODEC = [LOCAL_KINDS.index(kind) for kind in ("encode", "decode", "project")]
_ROWS = [LOCAL_KINDS.index(kind) for kind in ("merge_rows", "read_rows", "write_rows")]
_FACTORS = [LOCAL_KINDS.index("rebuild")]

SECONDS = (
    "analytical.busiest_link",
    "analytical.busiest_uplink",
    "analytical.mean_link",
    "analytical.within_nodes",
    "analytical.transfers_alone",
    "analytical.longest_lane",
    "analytical.own_rounds",
    "analytical.native_rounds",
    "analytical.rounds_of_servers",
    "analytical.processors",
    "analytical.local_work",
    "analytical.updates",
    "analytical.codecs",
    "analytical.rows",
    "analytical.factors",
)
"""Totals in seconds, in the order in which `Totals.of` has them."""

COUNTS = ("analytical.transfers", "analytical.lanes")


class _Priced(NamedTuple):
    """What a shape costs: before bytes flow, and for each byte alone, on each link and of the processors."""

    seconds: float
    alone: float
    links: Floats
    processors: float


class Totals:
    """Totals of plans for a model on a cluster; what a shape costs is worked out once."""

    def __init__(self, model: ModelSpec, cluster: ClusterSpec, costs: Costs) -> None:
        self._cluster = cluster
        self._costs = costs
        num_elements = sum(variable.num_elements for variable in model.variables)
        self._update_seconds = sum(segment.seconds for segment in model.timeline.optimizer) / num_elements
        self._priced: dict[tuple[Classes, Shape], _Priced] = {}

    def of(self, tables: Tables) -> tuple[Floats, Floats]:
        """The totals in seconds, and the counts."""
        operations = tables.operations
        transfers = operations.is_transfer
        often = 1.0 / operations.every
        num_shapes = len(tables.shapes)
        num_bytes = np.where(transfers, operations.num_elements * operations.item_bytes * often, 0.0)
        bytes_of_shape = np.bincount(operations.shape, num_bytes, num_shapes)
        times_of_shape = np.bincount(operations.shape, transfers * often, num_shapes)

        classes = classes_of(self._cluster, tables.shapes)
        priced = [self._price(classes, shape) for shape in tables.shapes]
        before = np.array([one.seconds for one in priced])
        alone = np.array([one.alone for one in priced])
        links = bytes_of_shape @ np.array([one.links for one in priced])
        kinds = [link.kind for link in links_of(self._cluster, classes)]
        of_nodes = np.array([kind in ("out", "in") for kind in kinds])
        within = np.array([kind == "within" for kind in kinds])
        uplinks = np.array([kind.startswith("rack") for kind in kinds])
        weights = np.array(classes.num_nodes * 2, dtype=np.float64)

        algorithms = [shape.algorithm for shape in tables.shapes]
        rounds = times_of_shape * before
        native = np.array([algorithm == "native" for algorithm in algorithms])
        star = np.array([algorithm == "star" for algorithm in algorithms])
        each = np.where(transfers, (before[operations.shape] + num_bytes * alone[operations.shape]) * often, 0.0)
        lanes = np.bincount(operations.lane[transfers], each[transfers], 1)
        seconds = [
            float(links[of_nodes].max(initial=0.0)),
            float(links[uplinks].max(initial=0.0)),
            float(np.average(links[of_nodes], weights=weights)),
            float(links[within].max(initial=0.0)),
            float(bytes_of_shape @ alone),
            float(lanes.max(initial=0.0)),
            float(rounds[~native & ~star].sum()),
            float(rounds[native].sum()),
            float(rounds[star].sum()),
            float(bytes_of_shape @ np.array([one.processors for one in priced])),
            *self._local_work(tables),
        ]
        counts = [float(np.log2(1 + transfers.sum())), float(np.log2(1 + tables.num_lanes))]
        return np.array(seconds), np.array(counts)

    def _local_work(self, tables: Tables) -> list[float]:
        """On the rank that has most of it: all, and of some kinds."""
        operations = tables.operations
        local = ~operations.is_transfer
        seconds = np.where(local, self._local_seconds(tables) / operations.every, 0.0)
        num_ranks = len(self._cluster.ranks)
        takes_part = np.zeros((len(tables.shapes), num_ranks))
        for number, shape in enumerate(tables.shapes):
            for group in shape.groups:
                takes_part[number, list(group)] = 1.0
        found = []
        for kinds in (None, [_UPDATE], _CODEC, _ROWS, _FACTORS):
            chosen = seconds if kinds is None else np.where(np.isin(operations.kind, kinds), seconds, 0.0)
            ranks = np.bincount(operations.shape, chosen, len(tables.shapes)) @ takes_part
            found.append(float(ranks.max(initial=0.0)))
        return found

    def _local_seconds(self, tables: Tables) -> Floats:
        operations: Operations = tables.operations
        rates = np.array([self._costs.local_rate(cost) for cost in tables.costs] or [1.0])
        per_element = np.where(operations.kind == _UPDATE, self._update_seconds, 1.0 / rates[operations.cost])
        sizes = np.array([max(map(len, shape.groups), default=1) for shape in tables.shapes])
        shared = np.where(operations.sharded, sizes[operations.shape], 1)
        found: Floats = self._costs.local_seconds + operations.num_elements * per_element / shared
        return found

    def _price(self, classes: Classes, shape: Shape) -> _Priced:
        known = self._priced.get((classes, shape))
        if known is None:
            known = self._priced[classes, shape] = self._priced_anew(classes, shape)
        return known

    def _priced_anew(self, classes: Classes, shape: Shape) -> _Priced:
        catalog = catalog_of(self._cluster, classes, [shape], self._costs)
        num_links = len(links_of(self._cluster, classes))
        # Behind the links come the processors, where they are everybody's.
        uses = np.bincount(catalog.use_link, catalog.use_share, len(catalog.capacity)) / catalog.capacity
        return _Priced(
            seconds=float(catalog.seconds.max(initial=0.0)),
            alone=float(catalog.alone.max(initial=0.0)),
            links=uses[:num_links],
            processors=float(uses[num_links:].sum()),
        )
