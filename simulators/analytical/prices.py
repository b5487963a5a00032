"""What the steps of templates cost on a cluster: each in closed form, priced once for all messages that take them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from autosync.plan.steps import LocalStep, Step, Template, TransferStep
from autosync.plan.tables import Shape
from autosync.simulators.analytical.tables import LINK, MEASURES, PROCESSORS, THREAD, Floats, Integers, Prices
from autosync.simulators.costs import Costs
from autosync.simulators.symmetry import Classes, apart, classes_of
from autosync.simulators.timeline.catalog import Catalog, catalog_of
from autosync.simulators.usage import instances_of
from autosync.specs.cluster import ClusterSpec

MAX_RANKS_APART = 64
"""On larger clusters ranks that do the same are one. Here each is one, so that all templates have the same links."""


class _Row(NamedTuple):
    """The price of a step, as `Prices` has it; uses by resource: seconds for a slice and for each of the measure."""

    fixed: float
    unit: float
    ahead: float
    rounds: float
    sent: float
    uses: Mapping[int, tuple[float, float]]


class PriceList:
    """Prices on a cluster. `update_seconds` is what the optimizer takes for an element."""

    def __init__(self, cluster: ClusterSpec, costs: Costs, *, update_seconds: float) -> None:
        self._cluster = cluster
        self._costs = costs
        self._update_seconds = update_seconds
        self._workers = (tuple(range(cluster.num_workers)),)

    def prices(self, templates: Sequence[Template]) -> Prices:
        """The prices of these templates, in their order."""
        steps = [[*one.collect.steps, *one.settle.once, *one.settle.each] for one in templates]
        flat = [step for of_template in steps for step in of_template]
        shapes = list(dict.fromkeys(map(_shape_of, flat)))
        classes = self._classes(shapes)
        catalog = catalog_of(self._cluster, classes, shapes, self._costs)
        position = {shape: index for index, shape in enumerate(shapes)}
        rows = [self._row(step, catalog, classes, position[_shape_of(step)]) for step in flat]
        uses = [sorted(row.uses.items()) for row in rows]
        num_links = len(catalog.capacity) - 1
        return Prices(
            num_stages=1 + max([step.stage for step in flat if isinstance(step, TransferStep)], default=0),
            first_step=_ends(map(len, steps)),
            num_collecting=_integers(len(one.collect.steps) for one in templates),
            period=_integers(max([step.every for step in of_template], default=1) for of_template in steps),
            everywhere=_flags(one.collect.holders == self._workers and not one.collect.sharded for one in templates),
            by_slice=_flags(one.settle.by_slice for one in templates),
            awaited=_flags(not _is_stale(one) for one in templates),
            is_transfer=_flags(isinstance(step, TransferStep) for step in flat),
            stage=_integers(step.stage if isinstance(step, TransferStep) else -1 for step in flat),
            every=_integers(step.every for step in flat),
            is_users=_flags(self._is_users(step) for step in flat),
            measure=_integers(MEASURES.index(step.amount.measure) for step in flat),
            own_items=_flags(isinstance(step, TransferStep) and step.item_bytes == 0 for step in flat),
            fixed=_floats(row.fixed for row in rows),
            unit=_floats(row.unit for row in rows),
            ahead=_floats(row.ahead for row in rows),
            rounds=_floats(row.rounds for row in rows),
            sent=_floats(row.sent for row in rows),
            first_use=_ends(map(len, uses)),
            use_resource=_integers(resource for of_step in uses for resource, _ in of_step),
            use_fixed=_floats(fixed for of_step in uses for _, (fixed, _) in of_step),
            use_unit=_floats(unit for of_step in uses for _, (_, unit) in of_step),
            kind=_integers([LINK] * num_links + [PROCESSORS] + [THREAD] * len(classes.num_ranks)),
            speed=np.concatenate((catalog.capacity, np.ones(len(classes.num_ranks)))),
        )

    def _classes(self, shapes: Sequence[Shape]) -> Classes:
        if len(self._cluster.ranks) <= MAX_RANKS_APART:
            return apart(self._cluster)
        return classes_of(self._cluster, shapes)

    def _row(self, step: Step, catalog: Catalog, classes: Classes, position: int) -> _Row:
        if isinstance(step, LocalStep):
            return self._of_local_work(step, catalog, position)
        return self._of_transfer(step, catalog, classes, position)

    def _of_transfer(self, step: TransferStep, catalog: Catalog, classes: Classes, position: int) -> _Row:
        """Groups of ranks transfer at the same time: the longest counts, and links carry what all put on them."""
        size = step.amount.factor * (step.item_bytes or 1)
        instances = range(catalog.first_instance[position], catalog.first_instance[position + 1])
        uses: dict[int, tuple[float, float]] = defaultdict(lambda: (0.0, 0.0))
        for instance in instances:
            for use in range(catalog.first_use[instance], catalog.first_use[instance + 1]):
                link = int(catalog.use_link[use])
                seconds = size * float(catalog.use_share[use] / catalog.capacity[link])
                uses[link] = (0.0, uses[link][1] + seconds)
        found = instances_of(self._cluster, classes, _shape_of(step))
        unit = size * max([float(catalog.alone[one]) for one in instances], default=0.0)
        return _Row(
            fixed=max([float(catalog.seconds[one]) for one in instances], default=0.0),
            unit=unit,
            ahead=self._ahead(step, unit / size, max([one.sent for one in found], default=0.0)),
            rounds=max([one.num_rounds for one in found], default=0),
            sent=size * sum([one.moved for one in found]),
            uses={link: use for link, use in uses.items() if use[1] > 0.0},
        )

    def _ahead(self, step: TransferStep, seconds_per_byte: float, sent: float) -> float:
        """Who only sends goes on when what is left is on its way. A root that trains as well has to receive first."""
        root = self._cluster.ranks[step.groups[0][0]]
        only_send = step.algorithm == "star" and step.collective in {"reduce", "gather_v"} and root.role == "server"
        return self._costs.bytes_ahead / sent * seconds_per_byte if only_send and sent > 0.0 else 0.0

    def _of_local_work(self, step: LocalStep, catalog: Catalog, position: int) -> _Row:
        """Each rank works for itself, on its shard where work is sharded."""
        begin, end = catalog.first_instance[position], catalog.first_instance[position + 1]
        cost = step.cost or step.kind
        per_element = self._update_seconds if step.kind == "update" else 1.0 / self._costs.local_rate(cost)
        fixed, uses, longest = self._costs.local_seconds, dict[int, tuple[float, float]](), 0.0
        first_thread = len(catalog.capacity)
        for instance in range(begin, end):
            share = int(catalog.num_members[instance]) if step.sharded else 1
            unit = step.amount.factor * per_element / share
            longest = max(longest, unit)
            for at in range(catalog.first_member[instance], catalog.first_member[instance + 1]):
                uses[first_thread + int(catalog.member[at])] = (fixed, unit)
        return _Row(fixed=fixed, unit=longest, ahead=0.0, rounds=0.0, sent=0.0, uses=uses)

    def _is_users(self, step: Step) -> bool:
        return (
            isinstance(step, LocalStep) and step.kind == "update" and step.groups == self._workers and not step.sharded
        )


def _shape_of(step: Step) -> Shape:
    if isinstance(step, LocalStep):
        return Shape(None, None, step.groups)
    return Shape(step.collective, step.algorithm, step.groups, step.within)


def _is_stale(template: Template) -> bool:
    """Whether what the next forward pass waits for is of an earlier iteration."""
    steps = (*template.settle.once, *template.settle.each)
    return bool(steps) and any(wait.lag > 0 for wait in steps[-1].waits)


def _ends(lengths: Iterable[int]) -> Integers:
    """Where rows of these lengths begin, and the last one ends."""
    return np.concatenate(([0], np.cumsum(list(lengths)))).astype(np.int64)


def _integers(values: Iterable[int]) -> Integers:
    return np.array(list(values), dtype=np.int64)


def _floats(values: Iterable[float]) -> Floats:
    return np.array(list(values), dtype=np.float64)


def _flags(values: Iterable[bool]) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    return np.array(list(values), dtype=np.bool_)
