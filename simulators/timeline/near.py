"""Scenes of the timeline from near: every message of every rank."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from autosync.plan.tables import ALGORITHMS, COLLECTIVES, LOCAL_KINDS, Shape, Tables
from autosync.simulators.costs import Costs
from autosync.simulators.timeline.book import Book, book_of
from autosync.simulators.timeline.links import network_of
from autosync.simulators.timeline.network import Scene, Times
from autosync.simulators.timeline.problem import Flags, Integers, Program
from autosync.simulators.timeline.program import program_of_tables, with_update, with_work
from autosync.simulators.timeline.staging import Script, stage
from autosync.simulators.timeline.stock import is_stock
from autosync.specs.cluster import ClusterSpec
from autosync.specs.model import ModelSpec
from autosync.strategy.representation import Overlap

_UPDATE = LOCAL_KINDS.index("update")
_NATIVE = ALGORITHMS.index("native")
_GLOOS_OWN = [COLLECTIVES.index(one) for one in ("all_reduce", "reduce", "broadcast")]
_STOCK_THREADS = 2
_PACE_SLACK_SECONDS = 5e-4
"""Replayed compute makes good as much lost time (see `trials.replay`)."""


class Near:
    """Makes scenes of plans of one model on one cluster."""

    def __init__(self, model: ModelSpec, cluster: ClusterSpec, costs: Costs) -> None:
        self._model = model
        self._costs = costs
        self._network = network_of(cluster, costs)
        self._trains = np.array([rank.role == "worker" for rank in cluster.ranks], dtype=np.bool_)
        self._programs: dict[tuple[Overlap, bool], Program] = {}
        self._numbers: dict[Shape, int] = {}
        self._book: Book | None = None
        num_elements = sum(variable.num_elements for variable in model.variables)
        self._update_seconds = sum(segment.seconds for segment in model.timeline.optimizer) / num_elements

    def scene(self, tables: Tables, overlap: Overlap, *, by_users: Flags, users_elements: int) -> Scene:
        """What the kernel is given."""
        operations, costs = tables.operations, self._costs
        stock = is_stock(tables, overlap, self._model)
        rates = np.array([costs.local_rate(cost) for cost in tables.costs] or [1.0])
        is_update = operations.kind == _UPDATE
        elements = operations.num_elements.astype(np.float64)
        is_native = operations.is_transfer & (operations.algorithm == _NATIVE) & np.isin(operations.kind, _GLOOS_OWN)
        program = self._program(tables, overlap, stock=stock)
        return stage(
            Script(
                operations=operations._replace(shape=self._shapes(tables.shapes)[operations.shape]),
                gates=tables.gates,
                num_lanes=max(1, tables.num_lanes),
                lane_width=_STOCK_THREADS if stock else 1,
                book=self._known(),
                network=self._network,
                times=self._times(stock=stock),
                trains=self._trains,
                program=with_update(program, users_elements * self._update_seconds),
                # The reducer averages as it goes.
                local_work=np.where(is_update | stock, 0.0, elements / rates[operations.cost]),
                local_seconds=np.where(is_update, elements * self._update_seconds, 0.0),
                by_users=by_users,
                is_native=is_native,
            )
        )

    def _known(self) -> Book:
        assert self._book is not None, "shapes come first"
        return self._book

    def _shapes(self, shapes: Sequence[Shape]) -> Integers:
        """The numbers of shapes in the book, which grows whenever one is new."""
        if self._book is None or any(shape not in self._numbers for shape in shapes):
            for shape in shapes:
                self._numbers.setdefault(shape, len(self._numbers))
            self._book = book_of(list(self._numbers))
        return np.array([self._numbers[shape] for shape in shapes], dtype=np.int64)

    def _program(self, tables: Tables, overlap: Overlap, *, stock: bool) -> Program:
        """Plans have the same gates wherever they overlap the same."""
        found = self._programs.get((overlap, stock))
        if found is None:
            found = program_of_tables(tables.gates, self._model)
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
            slack=0.0 if costs.num_processors is None else _PACE_SLACK_SECONDS,
            num_processors=costs.num_processors or 0,
        )
