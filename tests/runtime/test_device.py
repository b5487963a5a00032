"""Parameters on a GPU, as far as a CPU can prove it: who waits for whom, what travels apart, one order for NCCL.

What needs a GPU is in `test_gpu.py`.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from autosync.errors import OperationError
from autosync.plan.lowering import lower
from autosync.plan.types import Collective, Edge, GateKind
from autosync.runtime.engine.device import Streams
from autosync.runtime.engine.engine import Engine
from autosync.runtime.engine.rank_script import Script, script_of
from autosync.runtime.local.engine_updates import engine_updates
from autosync.runtime.wire.host_staging import Staging, shares
from autosync.specs.cluster import BackendName
from autosync.strategy.representation import Message, Overlap, Strategy
from autosync.strategy.space import Limits, Space
from autosync.strategy.synchronisers.all_reduce import AllReduce
from autosync.strategy.synchronisers.periodic import Periodic
from tests.helpers.example_plans import ADAM, SGD, Example, cluster_of, examples, model_of, plan_of
from tests.helpers.gpu_rehearsals import OrderedCuda, OrderedEvent, OrderedStream, rehearsed
from tests.helpers.whole_plans import LIMIT_SECONDS, Rank, carry_out, check

HERE = Path(__file__).parent
EXACTNESS = HERE.parents[1] / "benchmarks" / "exactness" / "exactness.py"
WITHOUT_FACTORS = sorted(set(examples("backward")) - {"factors"})
# A workload's gradients are no products of factors.
LIMITS = Limits(
    allow=("lossy", "stale"),
    synchronisers=("all_reduce", "parameter_server", "sharded", "sparse_gather", "periodic"),
    periods=(2, 3),
    max_parts=3,
)

# What travels apart.


@given(
    st.sampled_from(["all_reduce", "reduce", "broadcast", "reduce_scatter", "all_gather"]),
    st.integers(2, 5),
    st.integers(0, 12),
    st.integers(0, 99),
)
def test_what_is_not_brought_is_not_needed_and_what_is_not_left_is_not_touched(
    collective: Collective, num_members: int, num_elements: int, seed: int
) -> None:
    drawn = torch.Generator().manual_seed(seed)
    buffers = [torch.randn(num_elements, generator=drawn, dtype=torch.float64) for _ in range(num_members)]
    expected = [buffer.clone() for buffer in buffers]
    transfer = replace_collective(collective, num_members)
    carry_out(transfer, expected)
    hosts = []
    for position, buffer in enumerate(buffers):
        brought, _ = shares(collective, num_elements, num_members=num_members, position=position)
        hosts.append(torch.full_like(buffer, float("nan")))
        hosts[-1][brought] = buffer[brought]
    carry_out(transfer, hosts)
    for position, (host, right) in enumerate(zip(hosts, expected, strict=True)):
        _, left = shares(collective, num_elements, num_members=num_members, position=position)
        torch.testing.assert_close(host[left], right[left], rtol=0, atol=0)
        # Of what is left nothing is missing: elsewhere there is no result.
        nowhere = torch.ones(num_elements, dtype=torch.bool)
        nowhere[left] = False
        if collective in ("reduce", "reduce_scatter"):
            assert right[nowhere].isnan().all()


def replace_collective(collective: Collective, num_members: int) -> Any:
    transfer = plan_of(AllReduce(), *[1] * num_members).operations[0]
    return transfer._replace(collective=collective)  # type: ignore[arg-type]


def test_a_lane_has_one_place_for_all_that_it_sends() -> None:
    staging = Staging(pins=False)
    places = set()
    for size, dtype in ((9, torch.float32), (4, torch.float64), (3, torch.uint8)):
        buffer = torch.arange(size).to(dtype)
        with staging.copied(buffer, "all_reduce", num_members=2, position=0) as host:
            assert host.dtype == dtype
            assert torch.equal(host, buffer)
            places.add(host.data_ptr())
            host.add_(1)
        assert torch.equal(buffer, torch.arange(size).to(dtype) + 1)
    assert len(places) == 1


# Who waits for whom.


class CheckedStreams(Streams):
    """Streams of which every operation is held against the plan: has happened what it waits for?"""

    def __init__(self, rank: Rank, script: Script, cuda: OrderedCuda, *, is_queued: bool) -> None:
        super().__init__(torch.device("cpu"), script, is_queued=is_queued, cuda=cuda)
        self.cuda = cuda
        self.plan = rank.world.plan
        self.script = script
        self.is_queued = is_queued
        self.computes = rank.is_worker
        self.item_of = {index: item for item, index in enumerate(script.operations)}
        self.num_checked = 0

    def begin(self, item: int, iteration: int) -> None:
        super().begin(item, iteration)
        operation = self.plan.operations[self.script.operations[item]]
        known = self.stream.known if self.is_queued else self.cuda.host
        self.expect(self.facts(operation.after, iteration), known)

    def end(self, item: int, iteration: int) -> None:
        # What an operation does is in the stream by now.
        self.stream.known.add(("done", item, iteration))
        super().end(item, iteration)

    @property
    def stream(self) -> OrderedStream:
        stream: OrderedStream = self._stream
        return stream

    def expect(self, facts: set[Any], known: set[Any]) -> None:
        self.num_checked += len(facts)
        assert facts <= known, f"{facts - known} may not have happened yet"

    def facts(self, edges: tuple[Edge, ...], iteration: int) -> set[Any]:
        """What edges ask to have happened, as this rank can know it."""
        found: set[Any] = set()
        for event, target, lag in edges:
            then = iteration - lag
            if then < 0:
                continue
            if event == "grad_ready" and self.computes:
                found.add(("gradient", target, then))
            elif event == "step_called":
                found.add(("step", then))
            elif event == "operation":
                found |= self.of_operation(target, then)
        return found

    def of_operation(self, index: int, iteration: int) -> set[Any]:
        operation, item = self.plan.operations[index], self.item_of.get(index)
        if item is None or (iteration + 1) % operation.every:
            return set()
        if item not in self.script.instant:
            return {("done", item, iteration)}
        # The user's own: what it waits for, and their update.
        is_update = operation.kind == "update"  # type: ignore[union-attr]
        return self.facts(operation.after, iteration) | ({("updated", iteration)} if is_update else set())


class CheckedEngine(Engine):
    """Notes what training does in its stream, and checks what it may rely on where it has waited."""

    checked: CheckedStreams

    def happen(self, fact: Any) -> None:
        self.checked.cuda.current_stream(torch.device("cpu")).known.add(fact)

    def gradient_ready(self, variable: int) -> None:
        self.happen(("gradient", variable, self.iteration))
        super().gradient_ready(variable)

    def step_called(self) -> None:
        self.happen(("step", self.iteration))
        super().step_called()

    def user_updated(self) -> None:
        self.happen(("updated", self.iteration))
        super().user_updated()

    def wait(self, kind: GateKind, variable: int = -1) -> None:
        super().wait(kind, variable)
        edges = [gate.after for gate in self.checked.plan.gates if (gate.kind, gate.variable) == (kind, variable)]
        self.rely_on({fact for after in edges for fact in self.checked.facts(after, self.iteration)})

    def wait_due(self, *, iterations_back: int = 0) -> None:
        super().wait_due(iterations_back=iterations_back)
        last, script = self.iteration - iterations_back, self.checked.script
        due = [
            ("done", item, last - script.lateness[item])
            for item in range(len(script.operations))
            if item not in script.instant
        ]
        self.rely_on({one for one in due if one[2] >= 0 and (one[2] + 1) % script.every[one[1]] == 0})

    def rely_on(self, facts: set[Any]) -> None:
        cuda = self.checked.cuda
        known = cuda.current_stream(torch.device("cpu")).known
        self.checked.expect(facts, known if self.checked.is_queued else known | cuda.host)


def checked_engines(*, is_queued: bool) -> tuple[Callable[..., Engine], list[CheckedStreams]]:
    """Makes engines that check the order; all their streams."""
    made: list[CheckedStreams] = []

    def make(rank: Rank, script: Script, _: Streams | None) -> Engine:
        made.append(CheckedStreams(rank, script, OrderedCuda(), is_queued=is_queued))
        engine = CheckedEngine(
            rank.world.plan,
            script,
            rank.execution,
            rank=rank.number,
            timeout_seconds=LIMIT_SECONDS,
            streams=made[-1],
        )
        engine.checked = made[-1]
        return engine

    return make, made


def in_order(example: Example, *, is_queued: bool) -> None:
    make, made = checked_engines(is_queued=is_queued)
    with rehearsed("one order" if is_queued else None):
        check(example, make_engine=make)
    assert all(one.num_checked for one in made)
    assert not any(one._told for one in made), "what was told is kept until an operation begins, and no longer"


# Each example with both overlaps, queued with one of them and not with the other, in turn; the other half is slow.
IN_TURN = [
    pytest.param(name, overlap, is_queued, marks=pytest.mark.slow if (number + place + is_queued) % 2 else ())
    for number, name in enumerate(WITHOUT_FACTORS)
    for place, overlap in enumerate(("backward", "forward"))
    for is_queued in (False, True)
]


@pytest.mark.parametrize(("name", "overlap", "is_queued"), IN_TURN)
def test_what_needs_something_waits_for_it(name: str, overlap: Overlap, is_queued: bool) -> None:
    in_order(examples(overlap)[name], is_queued=is_queued)


@pytest.mark.parametrize("is_queued", [False, True])
@pytest.mark.parametrize("seed", range(6))
def test_so_does_any_strategy(seed: int, is_queued: bool) -> None:
    in_order(drawn_example(seed, backend="nccl" if is_queued else "gloo"), is_queued=is_queued)


def drawn_example(seed: int, *, backend: BackendName) -> Example:
    rng = random.Random(seed)
    cluster = replace(cluster_of(*rng.choice(((1, 1, 1), (2, 2), (2, 1)))), backend=backend)
    model = model_of(optimizer=rng.choice((ADAM, SGD)))
    strategy = Space(model=model, cluster=cluster, limits=LIMITS).sample(rng)
    return Example(strategy=strategy, model=model, cluster=cluster)


class Forgetful(CheckedStreams):
    """Streams that wait for nothing: what they let through must be found."""

    def tell(self, items: tuple[int, ...], iteration: int) -> None:
        pass


class Careless(CheckedStreams):
    """Streams that let training go on at once."""

    def pass_gate(self, gate: int, iteration: int) -> None:
        pass

    def catch_up(self) -> None:
        pass


@pytest.mark.parametrize("kind", [Forgetful, Careless])
def test_the_check_finds_what_nobody_waits_for(kind: type[CheckedStreams]) -> None:
    made: list[CheckedStreams] = []

    def make(rank: Rank, script: Script, _: Streams | None) -> Engine:
        made.append(kind(rank, script, OrderedCuda(), is_queued=True))
        engine = CheckedEngine(
            rank.world.plan, script, rank.execution, rank=rank.number, timeout_seconds=5.0, streams=made[-1]
        )
        engine.checked = made[-1]
        return engine

    with rehearsed("one order"), pytest.raises((AssertionError, OperationError), match="may not have happened yet"):
        check(examples("forward")["sharded"], make_engine=make)


def test_a_gate_waits_for_its_own_operations_and_not_for_later_ones() -> None:
    """Of two messages the first is updated and used while the second is still on its way."""
    messages = tuple(Message(parts=(name,), lane=lane) for lane, name in enumerate(("table", "linear", "bias")))
    strategy = Strategy(messages=messages, overlap="forward")
    plan = lower(strategy, model_of(), cluster_of(1, 1))
    script = script_of(plan, 0, 3, engine_updates(plan), in_one_order=True)
    cuda = OrderedCuda()
    streams = Streams(torch.device("cpu"), script, is_queued=True, cuda=cuda)
    stream: OrderedStream = streams._stream
    gate = script.gates["before_use", 0]
    awaited = [item for item, followers in enumerate(script.followers) if any(one.item == gate for one in followers)]
    for item in range(len(script.operations)):
        streams.begin(item, 0)
        stream.known.add(item)
        streams.end(item, 0)
    streams.pass_gate(gate, 1)
    training = cuda.current_stream(torch.device("cpu")).known
    assert training == set(range(max(awaited) + 1))
    assert len(training) < len(script.operations)
    streams.catch_up()
    assert len(training) == len(script.operations)


def test_what_training_told_is_waited_for_once_and_only_by_what_needs_it() -> None:
    plan = lower(
        Strategy(messages=(Message(parts=("bias", "linear", "table"), synchroniser=Periodic(every=2)),)),
        model_of(),
        cluster_of(1, 1),
    )
    updates = engine_updates(plan)
    script = script_of(plan, 0, 3, updates)
    assert script.instant, "the user's own update"
    cuda = OrderedCuda()
    streams = Streams(torch.device("cpu"), script, is_queued=True, cuda=cuda)
    stream: OrderedStream = streams._stream
    cuda.current_stream(torch.device("cpu")).known.add("updated")
    streams.tell(script.on_user_updated, 0)
    assert not streams._told, "parameters are averaged in every second step"
    streams.tell(script.on_user_updated, 1)
    (averaging,) = {item for item, _ in streams._told}
    assert plan.operations[script.operations[averaging]].after[0].event == "operation"
    streams.begin(averaging, 1)
    assert stream.known == {"updated"}
    assert not streams._told


def test_events_stand_in_the_order_in_which_they_are_recorded() -> None:
    """The stand-in itself: an event has what its stream knew, and nothing that came after."""
    cuda = OrderedCuda()
    first, second = cuda.Stream(torch.device("cpu")), cuda.Stream(torch.device("cpu"))
    event: OrderedEvent = cuda.Event(blocking=False)
    first.known.add("before")
    event.record(first)
    first.known.add("after")
    second.wait_event(event)
    assert second.known == {"before"}
    event.synchronize()
    assert cuda.host == {"before"}


# One order, and what travels apart, on real ranks.


# What is refused.
