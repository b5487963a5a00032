"""Builds the scenes of the timeline: every message of every rank."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from autosync.plan.tables import ALGORITHMS, COLLECTIVES, LOCAL_KINDS, Shape, Tables
from autosync.simulators.shared.arrays import Flags, Integers
from autosync.simulators.shared.costs import Costs
from autosync.simulators.timeline.links import network_of
from autosync.simulators.timeline.move_tables import MoveTables, goes_round, move_tables_of
from autosync.simulators.timeline.scene import NetworkLinks, Scene, Times
from autosync.simulators.timeline.scene_tables import SceneInputs, scene_of
from autosync.simulators.timeline.stock_ddp import is_stock
from autosync.simulators.timeline.training_program import Program, program_of, seconds_at, with_update, with_work
from autosync.specs.cluster import ClusterSpec
from autosync.specs.compute_pace import USUAL, Pace, paces_of
from autosync.specs.model import ModelSpec
from autosync.strategy.representation import Overlap

_UPDATE = LOCAL_KINDS.index("update")
_NATIVE = ALGORITHMS.index("native")
_IS_GLOOS_OWN = np.array(
    [
        *(one in ("all_reduce", "reduce", "broadcast") for one in COLLECTIVES),
        *(False for _ in range(max(0, len(LOCAL_KINDS) - len(COLLECTIVES)))),
    ]
)
_STOCK_THREADS = 2
_PACE_SLACK_SECONDS = 5e-4
"""The largest loss of time that replayed compute makes up for (see `trials.replay`)."""


class SceneBuilder:
    """Makes scenes of plans of one model on one cluster."""

    def __init__(self, model: ModelSpec, cluster: ClusterSpec, costs: Costs) -> None:
        self._model = model
        self._cluster = cluster
        self._costs = costs
        self._known_paces: dict[tuple[int, ...], tuple[Pace, ...]] = {}
        self._workers = tuple(range(cluster.num_workers))
        # Ranks that share processors wait for each other, so none can represent others.
        self._is_even = costs.num_processors is None and _is_even(cluster)
        network = network_of(cluster, costs)
        self._apart = _PlayedRanks(network, np.array([rank.role == "worker" for rank in cluster.ranks]))
        self._alike = _PlayedRanks(_first_of(network), np.ones(1, dtype=np.bool_)) if self._is_even else None
        self._programs: dict[tuple[Overlap, bool], Program] = {}
        self._numbers: dict[Shape, int] = {}
        self._move_tables: dict[bool, MoveTables] = {}
        num_elements = sum(variable.num_elements for variable in model.variables)
        self._update_seconds = sum(segment.seconds for segment in model.timeline.optimizer) / num_elements

    def scene(
        self,
        tables: Tables,
        overlap: Overlap,
        *,
        by_users: Flags,
        users_elements: int,
        shares: Sequence[int] = (),
        every_rank: bool = False,
    ) -> Scene:
        """Return the scene of a plan whose ranks compute these shares of the batch (empty: even ones).

        If all ranks do the same it has only one of them, except with `every_rank`.
        """
        operations, costs = tables.operations, self._costs
        is_weighed = bool(shares) or self._model.weighs
        stock = not is_weighed and is_stock(tables, overlap, self._model)
        rates = np.array([costs.local_rate(cost) for cost in tables.costs] or [1.0])
        is_update = operations.kind == _UPDATE
        elements = operations.num_elements.astype(np.float64)
        is_native = operations.is_transfer & (operations.algorithm == _NATIVE) & _IS_GLOOS_OWN[operations.kind]
        # With several lanes, it is chance whether a request is sent just before or just after another lane's data.
        has_one_order = not stock and len(np.unique(operations.lane[operations.is_transfer & ~is_native])) < 2
        is_same = all(self._is_same_for_all(shape) for shape in tables.shapes)
        # If there are fewer elements than members, only some members have a chunk to send.
        has_chunks = bool((operations.num_elements[operations.is_transfer] >= len(self._workers)).all())
        paces = self._paces(shares)
        has_one_pace = len(set(paces)) == 1
        alike = self._is_even and not every_rank and has_one_order and is_same and has_chunks and has_one_pace
        place = self._alike if alike and self._alike is not None else self._apart
        program = with_update(self._program(tables, overlap, stock=stock), users_elements * self._update_seconds)
        numbers = self._shapes(tables.shapes)
        scene = scene_of(
            SceneInputs(
                operations=operations._replace(shape=numbers[operations.shape]),
                gates=tables.gates,
                num_lanes=max(1, tables.num_queues),
                lane_width=_STOCK_THREADS if stock else 1,
                move_tables=self._move_tables[alike],
                network=place.network,
                times=self._times(stock=stock),
                trains=place.trains,
                program=program,
                # The reducer averages while it communicates.
                local_work=np.where(is_update | stock, 0.0, elements / rates[operations.cost]),
                local_seconds=np.where(is_update, elements * self._update_seconds, 0.0),
                by_users=by_users,
                is_native=is_native,
            )
        )
        return _at_paces(scene, program, paces[: len(place.trains)])

    def _paces(self, shares: Sequence[int]) -> tuple[Pace, ...]:
        """Return the pace of each rank. Ranks that only serve have the usual one."""
        key = tuple(shares)
        found = self._known_paces.get(key)
        if found is None:
            of_servers = (USUAL,) * (len(self._cluster.ranks) - len(self._workers))
            found = self._known_paces[key] = paces_of(self._model, self._cluster, key) + of_servers
        return found

    def _is_same_for_all(self, shape: Shape) -> bool:
        """Return whether all workers take part, in one group, and do the same in it."""
        return shape.groups == (self._workers,) and not shape.within and goes_round(shape)

    def _shapes(self, shapes: Sequence[Shape]) -> Integers:
        """Return the numbers of shapes in the tables, which are made again if a shape is new."""
        if not self._move_tables or any(shape not in self._numbers for shape in shapes):
            for shape in shapes:
                self._numbers.setdefault(shape, len(self._numbers))
            self._move_tables = {alike: move_tables_of(list(self._numbers), alike=alike) for alike in (False, True)}
        return np.array([self._numbers[shape] for shape in shapes], dtype=np.int64)

    def _program(self, tables: Tables, overlap: Overlap, *, stock: bool) -> Program:
        """Return the program of a plan.

        Plans with the same overlap have the same gates, so each program is made once.
        """
        found = self._programs.get((overlap, stock))
        if found is None:
            found = program_of(tables.gates, self._model)
            if self._costs.num_processors is not None:
                costs = self._costs.processor
                found = with_work(
                    found,
                    step=costs.step,
                    gradient=costs.stock_gradient if stock else costs.gradient,
                    update=costs.update * len(self._model.variables),
                )
            self._programs[overlap, stock] = found
        return found

    def _times(self, *, stock: bool) -> Times:
        costs, processor = self._costs, self._costs.processor
        return Times(
            latency=costs.hop_seconds,
            transfer=processor.stock_transfer if stock else processor.transfer,
            local=0.0 if stock else processor.local,
            ask=processor.ask,
            post=processor.post,
            asked=processor.asked,
            arrived=processor.arrived,
            taken=processor.taken,
            per_byte=processor.per_byte,
            rate_added=costs.rate_added,
            bytes_ahead=costs.bytes_ahead,
            bytes_queued=costs.bytes_queued,
            queued_seconds=costs.queued_seconds,
            slack=0.0 if costs.num_processors is None else _PACE_SLACK_SECONDS,
            num_processors=costs.num_processors or 0,
        )


class _PlayedRanks(NamedTuple):
    """The network that a plan is simulated on, and which ranks train."""

    network: NetworkLinks
    trains: Flags


def _at_paces(scene: Scene, program: Program, paces: Sequence[Pace]) -> Scene:
    """Return the scene in which each rank computes, and updates for the engine, at its own pace."""
    scene = scene._replace(program_seconds=seconds_at(program, paces))
    update = np.array([pace.update for pace in paces])
    if (update != 1).any():
        scene.parts["seconds"] *= update[scene.parts["rank"]]
    return scene


def _is_even(cluster: ClusterSpec) -> bool:
    """Return whether all nodes are the same, each with one worker."""
    kinds = {replace(node, name="", host="") for node in cluster.nodes}
    if len(kinds) > 1 or cluster.racks or len(cluster.ranks) != len(cluster.nodes):
        return False
    return cluster.num_workers == len(cluster.ranks) and cluster.calibration is None


def _first_of(network: NetworkLinks) -> NetworkLinks:
    """Return the network of only the first node."""
    num_nodes = len(network.rack)
    return network._replace(
        node=network.node[:1],
        rack=network.rack[:1],
        link_rate=network.link_rate[[0, num_nodes]],
        link_burst=network.link_burst[[0, num_nodes]],
        queue_rate=network.queue_rate[:1],
        queue_burst=network.queue_burst[:1],
    )
