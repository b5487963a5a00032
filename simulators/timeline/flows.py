"""The timeline from afar: transfers as flows that share links, ranks that do the same as one; for large clusters."""

from __future__ import annotations

import numpy as np

from autosync.plan.tables import LOCAL_KINDS, Tables, tables_of
from autosync.plan.types import Plan
from autosync.runtime.updates import EngineUpdates, engine_updates
from autosync.simulators.costs import Costs, usual_costs
from autosync.simulators.symmetry import Classes
from autosync.simulators.timeline.assembly import Given, assemble
from autosync.simulators.timeline.catalog import Catalogs
from autosync.simulators.timeline.horizon import num_iterations, step_seconds, within_reach
from autosync.simulators.timeline.kernel import simulate
from autosync.simulators.timeline.problem import Flags, Floats, Outcome, Problem, Program
from autosync.simulators.timeline.program import program_of, with_update
from autosync.specs.cluster import ClusterSpec
from autosync.specs.model import ModelSpec
from autosync.strategy.representation import Overlap

_UPDATE = LOCAL_KINDS.index("update")


class Flows:
    """Plays plans, transfer by transfer. `classes`: of ranks that are simulated as one; found unless told."""

    def __init__(
        self, model: ModelSpec, cluster: ClusterSpec, *, costs: Costs | None = None, classes: Classes | None = None
    ) -> None:
        self._model = model
        self._cluster = cluster
        self._costs = costs or usual_costs(cluster)
        self._catalogs = Catalogs(cluster, self._costs, classes=classes)
        self._programs: dict[Overlap, Program] = {}
        num_elements = sum(variable.num_elements for variable in model.variables)
        self._update_seconds = sum(segment.seconds for segment in model.timeline.optimizer) / num_elements

    def play(self, plan: Plan, *, count: int | None = None) -> Outcome:
        """All that happens, from rest until steps are steady."""
        return _played(self.problem(plan), count)

    def problem(self, plan: Plan) -> Problem:
        """What the kernel is given."""
        tables = tables_of(plan)
        ours = engine_updates(plan)
        elements = sum(v.num_elements for v in self._model.variables if v.name not in ours.variables)
        catalog, numbers = self._catalogs.find(tables.shapes)
        return assemble(
            Given(
                operations=tables.operations._replace(shape=numbers[tables.operations.shape]),
                gates=tables.gates,
                num_lanes=max(1, tables.num_lanes),
                catalog=catalog,
                program=with_update(self._program(plan), elements * self._update_seconds),
                local_seconds=self._local_seconds(tables),
                by_users=users_updates(tables, ours),
                bytes_ahead=self._costs.bytes_ahead,
            )
        )

    def seconds(self, plan: Plan) -> float:
        """A steady step."""
        problem = self.problem(plan)
        found = _played(problem)
        return step_seconds(found.step_ends, found.ended, problem.every, problem.waiting_lag)

    def _program(self, plan: Plan) -> Program:
        """Plans have the same gates wherever they overlap the same."""
        found = self._programs.get(plan.overlap)
        if found is None:
            found = self._programs[plan.overlap] = program_of(plan.gates, self._model)
        return found

    def _local_seconds(self, tables: Tables) -> Floats:
        """What each operation takes that is local work, on the whole of its elements."""
        operations, costs = tables.operations, self._costs
        rates = np.array([costs.local_rate(cost) for cost in tables.costs] or [1.0])
        per_element = np.where(operations.kind == _UPDATE, self._update_seconds, 1.0 / rates[operations.cost])
        return np.asarray(costs.local_seconds + operations.num_elements * per_element, dtype=np.float64)


def _played(problem: Problem, count: int | None = None) -> Outcome:
    every, lag = within_reach(problem.every, problem.waiting_lag)
    return simulate(problem._replace(every=every, waiting_lag=lag), count or num_iterations(every, lag))


def users_updates(tables: Tables, ours: EngineUpdates) -> Flags:
    """The updates that the user's optimizer makes."""
    found: Flags = ~tables.operations.is_transfer & (tables.operations.kind == _UPDATE)
    found[list(ours.operations)] = False
    return found
