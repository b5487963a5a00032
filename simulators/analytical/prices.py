"""The costs of templates' steps on a cluster: closed formulas, computed once for all messages with the same steps."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from autosync.plan.expansion import Move
from autosync.plan.outline import outline
from autosync.plan.steps import LocalStep, Step, Template, TransferStep
from autosync.plan.tables import Shape
from autosync.simulators.analytical.tables import (
    LINK,
    MEASURES,
    PROCESSORS,
    RESOURCE,
    STEP,
    SWITCH,
    TEMPLATE,
    THREAD,
    USE,
    Prices,
)
from autosync.simulators.shared.arrays import Records
from autosync.simulators.shared.link_use import instances_of, links_of
from autosync.simulators.shared.rank_classes import Classes, apart, classes_of
from autosync.simulators.shared.server_work import is_at_server
from autosync.simulators.shared.shape_costs import ShapeCosts, shape_costs_of
from autosync.simulators.shared.size_exchange import CONTENT_BYTES, moves_of_sizes
from autosync.specs.cluster import ClusterSpec
from autosync.specs.costs import Costs

MAX_RANKS_APART = 64
"""The largest number of ranks that are treated separately, so that all templates have the same links. On larger
clusters, ranks that do the same are treated as one."""


class _Row(NamedTuple):
    """The price of a step, as in `Prices`.

    `uses` has for each resource the seconds for a slice and for each unit of the measure.
    """

    fixed: float
    unit: float
    ahead: float
    rounds: float
    sent: float
    uses: Mapping[int, tuple[float, float]]


class PriceList:
    """Computes prices on a cluster. `update_seconds` is the optimizer's time for an element."""

    def __init__(self, cluster: ClusterSpec, costs: Costs, *, update_seconds: float) -> None:
        self._cluster = cluster
        self._costs = costs
        self._update_seconds = update_seconds
        self._workers = (tuple(range(cluster.num_workers)),)

    def prices(self, templates: Sequence[Template]) -> Prices:
        """Return the prices of these templates, in their order."""
        flat = [step for template in templates for step in _steps_of(template)]
        shapes = list(dict.fromkeys(map(_shape_of, flat)))
        classes = self._classes(shapes)
        shape_costs = shape_costs_of(self._cluster, classes, shapes, self._costs)
        position = {shape: index for index, shape in enumerate(shapes)}
        rows = [self._row(step, shape_costs, classes, position[_shape_of(step)]) for step in flat]
        links = [SWITCH if one.kind == "inside" else LINK for one in links_of(self._cluster, classes)]
        return Prices(
            num_stages=1 + max([step.stage for step in flat if isinstance(step, TransferStep)], default=0),
            templates=self._templates(templates),
            steps=_steps(flat, rows, [self._is_users(step) for step in flat]),
            uses=np.array([(at, *use) for row in rows for at, use in sorted(row.uses.items())], dtype=USE),
            resources=np.array(
                [
                    *zip(links, shape_costs.capacity[:-1].tolist(), strict=True),
                    (PROCESSORS, 1.0),
                    *[(THREAD, 1.0) for _ in classes.num_ranks],
                ],
                dtype=RESOURCE,
            ),
        )

    def _templates(self, templates: Sequence[Template]) -> Records:
        found: list[tuple[int, ...]] = []
        last = 0
        for template in templates:
            first, middle = last, last + len(template.collect.steps)
            last += len(_steps_of(template))
            everywhere = template.collect.holders == self._workers and not template.collect.sharded
            period = max([step.every for step in _steps_of(template)], default=1)
            flags = (everywhere, template.settle.by_slice, not _is_stale(template))
            found.append((first, middle, last, period, *flags))
        return np.array(found, dtype=TEMPLATE)

    def _classes(self, shapes: Sequence[Shape]) -> Classes:
        if len(self._cluster.ranks) <= MAX_RANKS_APART:
            return apart(self._cluster)
        return classes_of(self._cluster, shapes)

    def _row(self, step: Step, shape_costs: ShapeCosts, classes: Classes, position: int) -> _Row:
        if isinstance(step, LocalStep):
            return self._of_local_work(step, shape_costs, classes, position)
        return self._of_transfer(step, shape_costs, classes, position)

    def _of_transfer(self, step: TransferStep, shape_costs: ShapeCosts, classes: Classes, position: int) -> _Row:
        """Return the price of a transfer.

        Groups transfer at the same time: the longest counts, and links carry all groups.
        """
        size = step.amount.factor * (step.item_bytes or 1)
        instances = range(shape_costs.first_instance[position], shape_costs.first_instance[position + 1])
        uses: dict[int, tuple[float, float]] = defaultdict(lambda: (0.0, 0.0))
        for instance in instances:
            for use in range(shape_costs.first_use[instance], shape_costs.first_use[instance + 1]):
                link = int(shape_costs.use_link[use])
                seconds = size * float(shape_costs.use_share[use] / shape_costs.capacity[link])
                uses[link] = (0.0, uses[link][1] + seconds)
        found = instances_of(self._cluster, classes, _shape_of(step))
        moved, stays = sum([one.moved for one in found]), sum([one.stays for one in found])
        self._add_processors(uses, step, len(shape_costs.capacity) - 1, (size * (moved - stays), size * stays))
        unit = size * max([float(shape_costs.alone[one]) for one in instances], default=0.0)
        sizes = _num_rounds_of_sizes(step)
        costs = self._costs
        round_seconds = costs.native_round_seconds if step.algorithm == "native" else costs.round_seconds
        return _Row(
            fixed=max([float(shape_costs.seconds[one]) for one in instances], default=0.0) + sizes * round_seconds,
            unit=unit,
            ahead=self._ahead(step, unit / size, max([one.sent for one in found], default=0.0)),
            rounds=max([one.num_rounds for one in found], default=0) + sizes,
            sent=size * moved,
            uses={link: use for link, use in uses.items() if max(use) > 0.0},
        )

    def _add_processors(
        self, uses: dict[int, tuple[float, float]], step: TransferStep, processors: int, num_bytes: tuple[float, float]
    ) -> None:
        """Add the use of the shared processors: the seconds for a slice's messages, and for each unit of the measure.

        The kernel does not count the former (see `tables.USE`).
        """
        if self._costs.num_processors is None:
            return
        costs = self._costs.processor
        num_messages = sum([outline(step.collective, step.algorithm, len(group)).num_moves for group in step.groups])
        num_messages += sum([len(some) for some in _sizes_of(step)])
        num_ranks = sum([len(group) for group in step.groups if len(group) > 1])
        fixed = num_messages * costs.of_message(native=step.algorithm == "native") + num_ranks * costs.transfer
        share = 1.0 / self._costs.num_processors
        between, within = num_bytes
        uses[processors] = (share * fixed, share * (between * costs.per_byte[0] + within * costs.per_byte[1]))

    def _ahead(self, step: TransferStep, seconds_per_byte: float, sent: float) -> float:
        """Return how long before its end a transfer frees a member that only sends: when the rest is in its socket.

        A root that trains has to receive first, so there it is 0.
        """
        root = self._cluster.ranks[step.groups[0][0]]
        only_send = step.algorithm == "star" and step.collective in {"reduce", "gather_v"} and root.role == "server"
        return self._costs.bytes_ahead / sent * seconds_per_byte if only_send and sent > 0.0 else 0.0

    def _of_local_work(self, step: LocalStep, shape_costs: ShapeCosts, classes: Classes, position: int) -> _Row:
        """Return the price of local work. Each rank does its own, on its shard if the work is sharded."""
        begin, end = shape_costs.first_instance[position], shape_costs.first_instance[position + 1]
        cost = step.cost or step.kind
        per_element = self._update_of(step) if step.kind == "update" else 1.0 / self._costs.local_rate(cost)
        fixed, uses, longest = self._costs.local_seconds, dict[int, tuple[float, float]](), 0.0
        first_thread = len(shape_costs.capacity)
        found = instances_of(self._cluster, classes, _shape_of(step))
        for instance, one in zip(range(begin, end), found, strict=True):
            unit = step.amount.factor * per_element / (one.num_shards if step.sharded else 1)
            longest = max(longest, unit)
            for at in range(shape_costs.first_member[instance], shape_costs.first_member[instance + 1]):
                uses[first_thread + int(shape_costs.member[at])] = (fixed, unit)
        if self._costs.num_processors is not None:
            busy = len(uses) / self._costs.num_processors
            uses[first_thread - 1] = (busy * self._costs.processor.local, busy * longest)
        return _Row(fixed=fixed, unit=longest, ahead=0.0, rounds=0.0, sent=0.0, uses=uses)

    def _update_of(self, step: LocalStep) -> float:
        """Return the time of an update of one element."""
        rate = self._costs.servers.update_rate
        if rate is None or not is_at_server(step.groups, self._cluster.num_workers):
            return self._update_seconds
        return 1.0 / rate

    def _is_users(self, step: Step) -> bool:
        return (
            isinstance(step, LocalStep) and step.kind == "update" and step.groups == self._workers and not step.sharded
        )


def _sizes_of(step: TransferStep) -> list[list[Move]]:
    """Return for each group the moves that announce the sizes of contents; empty if numbers are moved."""
    if step.item_bytes != CONTENT_BYTES:
        return []
    return [moves_of_sizes(step.collective, step.algorithm, len(group)) for group in step.groups if len(group) > 1]


def _num_rounds_of_sizes(step: TransferStep) -> int:
    return max([len({move.round for move in moves}) for moves in _sizes_of(step)], default=0)


def _steps_of(template: Template) -> tuple[Step, ...]:
    return (*template.collect.steps, *template.settle.once, *template.settle.each)


def _steps(steps: Sequence[Step], rows: Sequence[_Row], are_users: Sequence[bool]) -> Records:
    found: list[tuple[float, ...]] = []
    last = 0
    for step, row, is_users in zip(steps, rows, are_users, strict=True):
        first, last = last, last + len(row.uses)
        is_transfer = isinstance(step, TransferStep)
        own_items, stage = (step.item_bytes == 0, step.stage) if isinstance(step, TransferStep) else (False, 0)
        measure = MEASURES.index(step.amount.measure)
        kind = (is_transfer, is_users, own_items, stage, step.every, measure)
        found.append((*kind, row.fixed, row.unit, row.ahead, row.rounds, row.sent, first, last))
    return np.array(found, dtype=STEP)


def _shape_of(step: Step) -> Shape:
    if isinstance(step, LocalStep):
        return Shape(None, None, step.groups)
    return Shape(step.collective, step.algorithm, step.groups, step.within)


def _is_stale(template: Template) -> bool:
    """Return whether the next forward pass waits only for data of an earlier iteration."""
    steps = (*template.settle.once, *template.settle.each)
    return bool(steps) and any(wait.lag > 0 for wait in steps[-1].waits)
