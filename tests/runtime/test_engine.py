"""The engine's threads and counters: every operation after what it waits for, lanes in their order, errors told."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from autosync.errors import OperationError
from autosync.plan.types import Edge, Plan, Transfer
from autosync.runtime.engine.engine import Engine
from autosync.runtime.engine.rank_script import script_of
from autosync.runtime.local.engine_updates import engine_updates
from autosync.strategy.representation import Overlap
from autosync.strategy.synchronisers.parameter_server import ParameterServer
from tests.helpers.example_plans import example, examples

NUM_ITERATIONS = 5


@dataclass
class Noting:
    """Work that takes a random while, and notes what was done when it began."""

    plan: Plan
    rng: random.Random = field(default_factory=lambda: random.Random(1))
    happened: set[tuple[str, int, int]] = field(default_factory=set)
    missing: list[str] = field(default_factory=list)
    order: dict[int, list[int]] = field(default_factory=dict)
    told: dict[int, list[tuple[int, int]]] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)
    rank: int = 0

    def begin_thread(self) -> None:
        return

    def abort(self) -> None:
        return

    def heard_at(self) -> float:
        return 0.0

    def transfer(self, operation: int, iteration: int, following: Callable[[], int | None]) -> None:
        transfer = self.plan.operations[operation]
        assert isinstance(transfer, Transfer)
        with self.lock:
            self.order.setdefault(transfer.lane, []).append(operation)
        self._do(operation, iteration)
        while (coming := following()) is not None:
            self._check_edges(coming, iteration, f"operation {coming}, which was told before its turn,")
            with self.lock:
                self.told.setdefault(transfer.lane, []).append((coming, iteration))

    def waits_its_turn(self, operation: int, _: int) -> bool:
        return operation % 5 == 4

    def local(self, operation: int, iteration: int) -> None:
        self._do(operation, iteration)

    def _check_edges(self, operation: int, iteration: int, who: str) -> None:
        for edge in self.plan.operations[operation].after:
            self.check(edge, iteration, who)

    def _do(self, operation: int, iteration: int) -> None:
        self._check_edges(operation, iteration, f"operation {operation}")
        time.sleep(self.rng.choice((0, 0, 0.0005)))
        with self.lock:
            self.happened.add(("operation", operation, iteration))

    def happens(self, event: str, target: int, iteration: int) -> None:
        with self.lock:
            self.happened.add((event, target, iteration))

    def check(self, edge: Edge, iteration: int, who: str) -> None:
        before = iteration - edge.lag
        if before < 0 or not self._concerns(edge, before):
            return
        with self.lock:
            if (edge.event, edge.target, before) not in self.happened:
                self.missing.append(f"{who} of iteration {iteration} came before {edge}")

    def _concerns(self, edge: Edge, iteration: int) -> bool:
        if edge.event == "grad_ready":
            return self.plan.ranks[self.rank].role == "worker"
        if edge.event == "step_called":
            return True
        awaited = self.plan.operations[edge.target]
        is_mine = any(self.rank in group for group in awaited.groups)
        return is_mine and (iteration + 1) % awaited.every == 0


def _num_variables(plan: Plan) -> int:
    return len({part.variable.name for part in plan.parts})


def _train(plan: Plan, rank: int) -> Noting:
    """Go through some iterations as a session would, and check what gates let through."""
    work = Noting(plan, rank=rank)
    updates = engine_updates(plan)
    num_variables = _num_variables(plan)
    script = script_of(plan, rank, num_variables, updates)
    users = {script.operations[item] for item in script.instant}
    engine = Engine(plan, script, work, rank=rank, timeout_seconds=20)
    computes = plan.ranks[rank].role == "worker"
    try:
        for iteration in range(NUM_ITERATIONS):
            engine.begin()
            if computes:
                _compute(plan, work, engine, iteration, num_variables)
            work.happens("step_called", -1, iteration)
            engine.step_called()
            for operation in users:
                work.happens("operation", operation, iteration)
            engine.user_updated()
            if plan.overlap == "backward":
                engine.wait("step_returns")
                _check_gate(plan, work, "step_returns", -1, iteration)
            if plan.overlap == "backward" or not computes:
                engine.wait_due()
        engine.wait_done()
    finally:
        engine.close()
    return work


def _compute(plan: Plan, work: Noting, engine: Engine, iteration: int, num_variables: int) -> None:
    for variable in range(num_variables):
        if plan.overlap == "forward":
            engine.wait("before_use", variable)
            _check_gate(plan, work, "before_use", variable, iteration)
    for variable in work.rng.sample(range(num_variables), num_variables):
        if variable == 0:
            engine.wait_due(iterations_back=1)
        work.happens("grad_ready", variable, iteration)
        engine.gradient_ready(variable)
    engine.wait("backward_returns")
    if plan.overlap == "backward":
        _check_gate(plan, work, "backward_returns", -1, iteration)


def _check_gate(plan: Plan, work: Noting, kind: str, variable: int, iteration: int) -> None:
    for gate in plan.gates:
        if (gate.kind, gate.variable) == (kind, variable):
            for edge in gate.after:
                work.check(edge, iteration, kind)


@pytest.mark.parametrize("overlap", ["backward", "forward"])
@pytest.mark.parametrize("name", sorted(examples("backward")))
def test_everything_comes_after_what_it_waits_for(name: str, overlap: Overlap) -> None:
    plan = examples(overlap)[name].plan()
    for rank in range(len(plan.ranks)):
        work = _train(plan, rank)
        assert work.missing == []
        mine = [
            index
            for index, operation in enumerate(plan.operations)
            if isinstance(operation, Transfer) and any(rank in group for group in operation.groups)
        ]
        for lane, order in work.order.items():
            due = [
                index
                for iteration in range(NUM_ITERATIONS)
                for index in mine
                if plan.operations[index].lane == lane  # type: ignore[union-attr]
                and (iteration + 1) % plan.operations[index].every == 0
            ]
            assert order == due
            # What is told before its turn is told once, in the order of the lane.
            told = work.told.get(lane, [])
            assert told == sorted(set(told), key=lambda one: (one[1], due.index(one[0])))
            assert not any(work.waits_its_turn(operation, iteration) for operation, iteration in told)


def test_of_some_plans_transfers_are_told_before_their_turn() -> None:
    told = [work.told for work in (_train(one.plan(), 0) for one in examples("backward").values())]
    assert any(any(one.values()) for one in told)


class Blocked(Noting):
    """Nothing of the first iteration is carried out until it may be."""

    may_go: threading.Event

    def transfer(self, operation: int, iteration: int, following: Callable[[], int | None]) -> None:
        if iteration == 0:
            self.may_go.wait(20)
        super().transfer(operation, iteration, following)


@pytest.mark.parametrize("name", ["server, stale", "server"])
def test_waits_for_no_more_and_no_less_than_what_is_due(name: str) -> None:
    """Two iterations late what was sent is due; what comes home in time is due at once."""
    plan = examples("forward")[name].plan()
    work = Blocked(plan)
    work.may_go = threading.Event()
    num_variables = _num_variables(plan)
    engine = Engine(plan, script_of(plan, 0, num_variables, engine_updates(plan)), work, rank=0, timeout_seconds=0.3)
    staleness = 2 if "stale" in name else 0
    try:
        for iteration in range(staleness + 1):
            engine.begin()
            for variable in range(num_variables):
                engine.gradient_ready(variable)
            engine.step_called()
            if iteration < staleness:
                engine.wait_due()
        engine.wait_due(iterations_back=1)
        for wait in (engine.wait_due, engine.wait_done):
            with pytest.raises(OperationError, match="no end within"):
                wait()
        work.may_go.set()
        engine.wait_due()
    finally:
        work.may_go.set()
        engine.close()


class Slow(Noting):
    """Each transfer takes longer than the limit; pieces of it arrive meanwhile, up to the last one."""

    last_at = 0.0
    num_pieces = 6
    ends = True

    def heard_at(self) -> float:
        return self.last_at

    def transfer(self, operation: int, iteration: int, following: Callable[[], int | None]) -> None:
        for _ in range(self.num_pieces):
            time.sleep(0.1)
            self.last_at = time.perf_counter()
        while not self.ends:
            time.sleep(0.01)
        super().transfer(operation, iteration, following)


@pytest.mark.parametrize("num_pieces", [6, 0])
def test_a_wait_is_too_long_only_if_nothing_arrives(num_pieces: int) -> None:
    plan = examples("backward")["all_reduce"].plan()
    work = Slow(plan)
    num_variables = _num_variables(plan)
    engine = Engine(plan, script_of(plan, 0, num_variables, engine_updates(plan)), work, rank=0, timeout_seconds=0.4)
    try:
        engine.begin()
        for variable in range(num_variables):
            engine.gradient_ready(variable)
        engine.wait("backward_returns")
        engine.step_called()
        engine.user_updated()
        engine.wait_done()
        engine.begin()
        # From here on transfers stand still in the end.
        work.num_pieces, work.ends = num_pieces, False
        began = time.perf_counter()
        for variable in range(num_variables):
            engine.gradient_ready(variable)
        with pytest.raises(OperationError, match=r"no end within 0\.4 s"):
            engine.wait("backward_returns")
        assert time.perf_counter() - began >= 0.1 * num_pieces + 0.3
    finally:
        work.ends = True
        engine.close()


@pytest.mark.parametrize("overlap", ["backward", "forward"])
@pytest.mark.parametrize("name", ["all_reduce", "server", "sharded"])
def test_what_can_be_done_is_done_before_the_engine_ends(name: str, overlap: Overlap) -> None:
    plan = examples(overlap)[name].plan()
    work = Noting(plan)
    num_variables = _num_variables(plan)
    engine = Engine(plan, script_of(plan, 0, num_variables, engine_updates(plan)), work, rank=0, timeout_seconds=20)
    engine.begin()
    _compute(plan, work, engine, 0, num_variables)
    work.happens("step_called", -1, 0)
    engine.step_called()
    engine.user_updated()
    engine.close()
    mine = {index for index, one in enumerate(plan.operations) if any(0 in group for group in one.groups)}
    done = {operation for event, operation, _ in work.happened if event == "operation"}
    assert done >= mine - _users_operations(plan)


def _users_operations(plan: Plan) -> set[int]:
    script = script_of(plan, 0, _num_variables(plan), engine_updates(plan))
    return {script.operations[item] for item in script.instant}


@pytest.mark.parametrize("overlap", ["backward", "forward"])
def test_no_transfer_of_a_worker_begins_before_anything_has_happened(overlap: Overlap) -> None:
    # The norm is the server's, and all are told: those behind a proxy have no other part in it.
    server = ParameterServer(server="n2", local_proxy=True)
    plan = example(server, 2, 2, 0, overlap=overlap, clip_norm=1.0).plan()
    for rank in range(plan.num_workers):
        script = script_of(plan, rank, _num_variables(plan), engine_updates(plan))
        for items in script.lanes.values():
            assert all(script.num_waits[item] or script.earlier[item] for item in items)
