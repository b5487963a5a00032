"""Builds the scenes of the timeline: every message of every rank."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from autosync.plan.tables import ALGORITHMS, COLLECTIVES, LOCAL_KINDS, Operations, Shape, Tables
from autosync.simulators.shared.arrays import Flags, Floats, Integers
from autosync.simulators.shared.rank_classes import ALIKE
from autosync.simulators.shared.reads import Reads
from autosync.simulators.shared.server_work import is_at_server
from autosync.simulators.timeline.links import network_of
from autosync.simulators.timeline.message_counts import num_messages
from autosync.simulators.timeline.move_tables import MoveTables, move_tables_of
from autosync.simulators.timeline.one_node import EqualNodes, goes_round, is_same_on_nodes
from autosync.simulators.timeline.reads import num_messages_of, tables_of_reads, timed, with_reads
from autosync.simulators.timeline.scene import NetworkLinks, Scene, Times
from autosync.simulators.timeline.scene_inputs import SceneInputs
from autosync.simulators.timeline.scene_tables import scene_of
from autosync.simulators.timeline.stock_ddp import is_stock
from autosync.simulators.timeline.training_program import Program, program_of, seconds_at, with_update, with_work
from autosync.simulators.timeline.transfer_sizes import WHOLE_BYTES
from autosync.specs.cluster import ClusterSpec
from autosync.specs.compute_pace import USUAL, Pace, paces_of
from autosync.specs.costs import Costs
from autosync.specs.graph_batching import GraphBatching
from autosync.specs.model import ModelSpec
from autosync.strategy.representation import Overlap

_UPDATE = LOCAL_KINDS.index("update")
_NATIVE = ALGORITHMS.index("native")
_STAR = ALGORITHMS.index("star")
_IS_GLOOS_OWN = np.array(
    [
        *(one in ("all_reduce", "reduce", "broadcast") for one in COLLECTIVES),
        *(False for _ in range(max(0, len(LOCAL_KINDS) - len(COLLECTIVES)))),
    ]
)
_PACE_SLACK_SECONDS = 5e-4
"""The largest loss of time that replayed compute makes up for (see `trials.replay`)."""


MOST_RANKS = 64
"""The largest number of ranks that are all simulated even if one node could represent all others."""

FEW_MESSAGES = 1_500_000
"""The largest number of messages a step that are all simulated if their order is chance, although nodes are equal."""

MOST_MESSAGES = 3_000_000
"""The largest number of messages a step that are simulated, unless one node represents all others."""

_FEW_RANKS = 16
_SHORTEST_PIECE_BYTES = WHOLE_BYTES // 2


def may_have_too_many(model: ModelSpec, cluster: ClusterSpec) -> bool:
    """Return whether plans may have more than `MOST_MESSAGES` messages, so that they must be counted.

    Among few ranks, only the bytes of a large model make so many.
    """
    num_ranks = len(cluster.ranks)
    return num_ranks > _FEW_RANKS or 2 * num_ranks * model.num_bytes > MOST_MESSAGES * _SHORTEST_PIECE_BYTES


class BatchDivision(NamedTuple):
    """How the ranks of a strategy divide the batch: their shares (empty: even ones), and the batching of graphs."""

    shares: tuple[int, ...] = ()
    batching: GraphBatching | None = None


EVEN = BatchDivision()


class SceneBuilder:
    """Makes scenes of plans of one model on one cluster.

    With `coarse`, one node represents all wherever all do the same; by default on large clusters, and over NCCL. On
    smaller clusters only nodes with one rank are represented by one.
    """

    def __init__(self, model: ModelSpec, cluster: ClusterSpec, costs: Costs, *, coarse: bool | None = None) -> None:
        self._model = model
        self._cluster = cluster
        self._costs = costs
        self._known_paces: dict[BatchDivision, tuple[Pace, ...]] = {}
        self._workers = tuple(range(cluster.num_workers))
        is_large = len(cluster.ranks) > MOST_RANKS or cluster.backend == "nccl"
        self._is_coarse = is_large if coarse is None else coarse
        # Ranks that share processors wait for each other, so none can represent others.
        nodes = _equal_nodes(cluster) if costs.num_processors is None else None
        # On small clusters, ranks of one node are played apart, and so are links that were probed.
        if nodes is not None and not self._is_coarse and (nodes.per_node > 1 or cluster.calibration is not None):
            nodes = None
        network = network_of(cluster, costs)
        self._apart = _PlayedRanks(network, np.array([rank.role == "worker" for rank in cluster.ranks]))
        self._alike: _PlayedRanks | None = None
        typical = _typical_node(network, nodes) if nodes is not None else None
        if nodes is not None and typical is not None:
            self._alike = _PlayedRanks(typical, np.ones(nodes.per_node, dtype=np.bool_))
        self._nodes = nodes
        self._few_share_links = nodes is not None and nodes.per_node > 1 and len(cluster.ranks) <= MOST_RANKS
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
        division: BatchDivision = EVEN,
        reads: Reads | None = None,
        every_rank: bool = False,
    ) -> Scene:
        """Return the scene of a plan whose ranks divide the batch so.

        If all nodes do the same it has the ranks of only one of them, except with `every_rank` or `reads`.
        """
        operations, costs = tables.operations, self._costs
        stock = self._is_stock(tables, overlap, division)
        rates = np.array([costs.local_rate(cost) for cost in tables.costs] or [1.0])
        is_update = operations.kind == _UPDATE
        elements = operations.num_elements.astype(np.float64)
        is_native, paces = self._are_native(operations), self._paces(division)
        alike = not every_rank and reads is None and self._are_alike(tables, overlap, division)
        place = self._alike if alike and self._alike is not None else self._apart
        if alike:
            operations = self._with_chunk_of_each(operations)
        program = with_update(self._program(tables, overlap, stock=stock), users_elements * self._update_seconds)
        numbers = self._numbers_of(tables.shapes)
        inputs = SceneInputs(
            operations=operations._replace(shape=numbers[operations.shape]),
            gates=tables.gates,
            num_lanes=max(1, tables.num_queues),
            lane_width=costs.stock_threads if stock else 1,
            move_tables=self._tables_of_moves(alike=alike),
            network=place.network,
            times=self._times(stock=stock),
            trains=place.trains,
            program=program,
            # The reducer averages while it communicates.
            local_work=np.where(is_update | stock, 0.0, elements / rates[operations.cost]),
            local_seconds=np.where(is_update, elements * self._update_of(operations, tables.shapes), 0.0),
            added_share=np.where(operations.algorithm == _STAR, 1.0 / costs.servers.num_cores, 1.0),
            by_users=by_users,
            is_native=is_native,
            is_one_node=alike,
            phase=np.zeros(len(operations.shape), np.int64),
        )
        if reads is not None:
            return self._with_reads(inputs, reads, paces)
        return _at_paces(scene_of(inputs), program, paces[: len(place.trains)])

    def _with_reads(self, inputs: SceneInputs, reads: Reads, paces: tuple[Pace, ...]) -> Scene:
        """Return the scene of a plan whose ranks also read their examples."""
        tables = tables_of_reads(reads, len(inputs.trains), inputs.num_lanes)
        shapes = self._numbers_of(tables.shapes)
        inputs = with_reads(inputs._replace(move_tables=self._tables_of_moves(alike=False)), reads, tables, shapes)
        paces += (USUAL,) * (len(inputs.trains) - len(paces))
        return timed(_at_paces(scene_of(inputs), inputs.program, paces), reads, tables)

    def is_affordable(
        self,
        tables: Tables,
        overlap: Overlap,
        division: BatchDivision = EVEN,
        reads: Reads | None = None,
        *,
        every_rank: bool = False,
    ) -> bool:
        """Return whether a plan's messages are few enough to simulate all of them.

        Those of one node are few enough, if it represents all others: not with `every_rank` or `reads`.
        """
        if not every_rank and reads is None and self._are_alike(tables, overlap, division):
            return True
        return num_messages(tables) + (0 if reads is None else num_messages_of(reads)) <= MOST_MESSAGES

    def _is_stock(self, tables: Tables, overlap: Overlap, division: BatchDivision) -> bool:
        is_weighed = bool(division.shares) or self._model.weighs
        # The reducer sends every gradient, so the engine runs plans in which some may stay.
        stays = self._model.use_sample is not None and self._cluster.backend == "gloo" and len(self._workers) > 1
        return not is_weighed and not stays and is_stock(tables, overlap, self._model)

    def _are_native(self, operations: Operations) -> Flags:
        """Return which operations are collectives of the backend."""
        is_native: Flags = operations.is_transfer & (operations.algorithm == _NATIVE)
        if self._cluster.backend == "gloo":
            # The engine has gloo's other collectives as rounds of its own.
            is_native &= _IS_GLOOS_OWN[operations.kind]
        return is_native

    def _are_alike(self, tables: Tables, overlap: Overlap, division: BatchDivision) -> bool:
        """Return whether one node represents all in a plan."""
        if self._alike is None or len(set(self._paces(division))) > 1:
            return False
        if not all(self._is_same_for_all(shape) for shape in tables.shapes):
            return False
        operations = tables.operations
        has_few_elements = (operations.num_elements[operations.is_transfer] < len(self._workers)).any()
        if has_few_elements and not self._is_coarse:
            return False
        if self._has_one_order(tables, overlap, division):
            return True
        return self._is_coarse and num_messages(tables) > FEW_MESSAGES

    def _with_chunk_of_each(self, operations: Operations) -> Operations:
        """Return operations in which every member of a transfer has a chunk to send.

        If there are fewer elements than members, only some have one, and nodes differ. The chunk of an element is still
        passed on from each member to the next, and its hops take the time, however many there are at once.
        """
        fewest = np.where(operations.is_transfer, len(self._workers), 0)
        return operations._replace(num_elements=np.maximum(operations.num_elements, fewest))

    def _has_one_order(self, tables: Tables, overlap: Overlap, division: BatchDivision) -> bool:
        """Return whether messages have one order.

        With several lanes, or threads of the reducer, it is chance whether a request is sent just before or just after
        the data of another one. Ranks then drift apart, which takes some percent of the time if messages are long.
        Collectives of the backend have no requests. Lanes of gloo's own matter only if few ranks share the links of
        their nodes (up to 9 % of the time; on more than `MOST_RANKS` less than 3 %); those of NCCL do not.
        """
        if self._costs.stock_threads > 1 and self._is_stock(tables, overlap, division):
            return False
        operations = tables.operations
        drifting = operations.is_transfer
        if self._cluster.backend != "gloo" or not self._few_share_links:
            drifting = drifting & ~self._are_native(operations)
        return len(np.unique(operations.lane[drifting])) < 2

    def _update_of(self, operations: Operations, shapes: Sequence[Shape]) -> Floats:
        """Return the seconds of an update of one element, for each operation."""
        rate = self._costs.servers.update_rate
        if rate is None:
            return np.full(len(operations.shape), self._update_seconds)
        at_server = np.array([is_at_server(shape.groups, len(self._workers)) for shape in shapes], dtype=np.bool_)
        return np.where(at_server[operations.shape], 1.0 / rate, self._update_seconds)

    def _paces(self, division: BatchDivision) -> tuple[Pace, ...]:
        """Return the pace of each rank. Ranks that only serve have the usual one."""
        found = self._known_paces.get(division)
        if found is None:
            of_servers = (USUAL,) * (len(self._cluster.ranks) - len(self._workers))
            of_workers = paces_of(self._model, self._cluster, division.shares, division.batching)
            found = self._known_paces[division] = of_workers + of_servers
        return found

    def _is_same_for_all(self, shape: Shape) -> bool:
        """Return whether all nodes do the same; on small clusters, whether all workers do, in one group."""
        if self._nodes is not None and self._is_coarse:
            return is_same_on_nodes(shape, self._nodes)
        return shape.groups == (self._workers,) and not shape.within and goes_round(shape)

    def _numbers_of(self, shapes: Sequence[Shape]) -> Integers:
        """Return the numbers of shapes in the tables, which are made again if a shape is new."""
        if any(shape not in self._numbers for shape in shapes):
            self._move_tables.clear()
            for shape in shapes:
                self._numbers.setdefault(shape, len(self._numbers))
        return np.array([self._numbers[shape] for shape in shapes], dtype=np.int64)

    def _tables_of_moves(self, *, alike: bool) -> MoveTables:
        """Return the moves of all known shapes, of every rank or of the first node."""
        found = self._move_tables.get(alike)
        if found is None:
            nodes = self._nodes if alike else None
            found = self._move_tables[alike] = move_tables_of(list(self._numbers), nodes=nodes)
        return found

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
                    step=costs.stock_step if stock else costs.step,
                    gradient=costs.stock_gradient if stock else costs.gradient,
                    update=costs.update * len(self._model.variables),
                )
            self._programs[overlap, stock] = found
        return found

    def _times(self, *, stock: bool) -> Times:
        costs, processor = self._costs, self._costs.processor
        return Times(
            latency=costs.hop_seconds,
            latency_within=costs.hop_within,
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


def _equal_nodes(cluster: ClusterSpec) -> EqualNodes | None:
    """Return the nodes of a cluster if its file says that all are the same workers; None if they differ, or of one."""
    # Memory plays no part, and neither does storage: where ranks read, every rank is played.
    kinds = {replace(node, name="", host="", memory_bytes=None, storage=None) for node in cluster.nodes}
    if len(kinds) > 1 or cluster.racks or len(cluster.nodes) == 1 or cluster.num_workers != len(cluster.ranks):
        return None
    return EqualNodes(len(cluster.nodes), cluster.nodes[0].devices)


def _typical_node(network: NetworkLinks, nodes: EqualNodes) -> NetworkLinks | None:
    """Return the network of one node that represents all, with the medians of probed figures; None if rates differ."""
    count = nodes.num_nodes

    def of_links(figures: Floats) -> Floats:
        return np.column_stack((figures[:count], figures[count:].reshape(count, -1)))

    def of_queues(figures: Floats) -> Floats:
        # The way into the node, and what its ranks share inside it. There are no racks.
        return figures.reshape(-1, count).T

    rates = np.hstack((of_links(network.link_rate), of_queues(network.queue_rate)))
    if (rates.max(axis=0) > (1 + ALIKE) * rates.min(axis=0)).any():
        return None
    queue_rate = np.median(of_queues(network.queue_rate), axis=0)
    return network._replace(
        node=network.node[: nodes.per_node],
        rack=network.rack[:1],
        inner_rack=network.inner_rack[:1],
        link_rate=np.median(of_links(network.link_rate), axis=0),
        link_burst=np.median(of_links(network.link_burst), axis=0),
        link_flow=np.median(of_links(network.link_flow), axis=0),
        bus=np.array([len(queue_rate) - 1 or -1], dtype=np.int64),
        queue_rate=queue_rate,
        queue_burst=np.median(of_queues(network.queue_burst), axis=0),
    )
