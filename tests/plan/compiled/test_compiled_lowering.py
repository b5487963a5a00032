"""The compiled lowering says what the lowering says, of every strategy."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autosync.plan.compiled.data import Plans
from autosync.plan.compiled.lowering import Lowering
from autosync.plan.compiled.tables import numbered, operations_at, tables_at
from autosync.plan.lowering import lower
from autosync.plan.tables import Tables, tables_of
from autosync.plan.types import Local, Plan
from autosync.runtime.local.engine_updates import engine_updates
from autosync.specs.cluster import ClusterSpec
from autosync.specs.model import ModelSpec
from autosync.strategy.codecs import Cast, Int8, PowerSGD, Sign, TopK
from autosync.strategy.parts import Partition
from autosync.strategy.representation import Message, Overlap, Strategy
from autosync.strategy.space import Limits, Space
from autosync.strategy.space.limits import ALL_CODECS
from autosync.strategy.synchronisers.all_reduce import AllReduce
from autosync.strategy.synchronisers.parameter_server import ParameterServer
from tests.helpers.example_plans import cluster_of, examples, model_of
from tests.helpers.random_specs import random_cluster, random_model

WIDE = Limits(
    allow=("lossy", "stale"),
    codecs=(*ALL_CODECS, Int8(block=16), TopK(ratio=0.3), PowerSGD(rank=1), Sign(error_feedback=False)),
    slice_bytes=(1024, 2048, 4096, 65536),
    staleness=(1, 2),
    periods=(2, 3),
    max_parts=6,
    max_priorities=8,
)


def check_all(strategies: Sequence[Strategy], model: ModelSpec, cluster: ClusterSpec) -> None:
    """All at once, each held against its own plan."""
    lowering = Lowering(model, cluster)
    plans = lowering.lower(lowering.encode(strategies))
    for number, strategy in enumerate(strategies):
        plan = lower(strategy, model, cluster)
        tables = tables_at(plans, number, cluster, shapes=lowering.shapes, costs=lowering.costs)
        assert_same(tables, tables_of(plan))
        assert_same_users(plans, number, plan, model)


def assert_same(found: Tables, expected: Tables) -> None:
    for name in ("num_ranks", "num_workers", "num_queues", "costs", "shapes"):
        assert getattr(found, name) == getattr(expected, name), name
    for rows, expected_rows in ((found.operations, expected.operations), (found.gates, expected.gates)):
        for name in rows._fields[:-1]:
            assert_same_column(name, getattr(rows, name), getattr(expected_rows, name))
        for name in rows.after._fields:
            assert_same_column(name, getattr(rows.after, name), getattr(expected_rows.after, name))


def assert_same_column(name: str, found: np.ndarray, expected: np.ndarray) -> None:
    assert (name, found.dtype, found.tolist()) == (name, expected.dtype, expected.tolist())


def assert_same_users(plans: Plans, number: int, plan: Plan, model: ModelSpec) -> None:
    """Whose updates are whose, as the runtime has it."""
    ours = engine_updates(plan)
    updates = [index for index, one in enumerate(plan.operations) if isinstance(one, Local) and one.kind == "update"]
    rows = slice(plans.first_operation[number], plans.first_operation[number + 1])
    assert np.flatnonzero(plans.by_users[rows]).tolist() == [one for one in updates if one not in ours.operations]
    left = [variable.num_elements for variable in model.variables if variable.name not in ours.variables]
    assert plans.users_elements[number] == sum(left)


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_tables_are_those_of_the_plan(seed: int) -> None:
    rng = random.Random(seed)
    model, cluster = random_model(rng), random_cluster(rng)
    space = Space(model=model, cluster=cluster, limits=WIDE)
    strategies = [space.sample(rng) for _ in range(4)]
    strategies.append(space.mutate(strategies[0], rng))
    strategies.append(space.crossover(strategies[1], strategies[2], rng))
    check_all(strategies, model, cluster)


@pytest.mark.parametrize("overlap", ["backward", "forward"])
def test_every_kind_of_message(overlap: Overlap) -> None:
    for one in examples(overlap).values():
        check_all([one.strategy], one.model, one.cluster)


@pytest.mark.parametrize("clip_norm", [None, 1.0])
def test_what_is_written_in_another_order_is_the_same(clip_norm: float | None) -> None:
    """Lanes, priorities, messages and parts in any order; cuts and slices that change nothing; servers beside rings."""
    model, cluster = model_of(clip_norm=clip_norm), cluster_of(2, 2, 0)
    server = ParameterServer(server="n2", local_proxy=True)
    cut = {"linear": Partition(axis=1, sizes=(2, 3)), "table": Partition(sizes=(6,)), "bias": Partition(sizes=(2, 3))}
    strategy = Strategy(
        partitions=cut,
        messages=(
            Message(parts=("table[0]",), synchroniser=AllReduce(hierarchical=True), lane=3, priority=9),
            Message(parts=("bias[1]", "linear[1]"), synchroniser=server, lane=7, priority=2, slice_bytes=1 << 20),
            Message(parts=("linear[0]", "bias[0]"), codec=Cast(dtype="float16"), lane=3, priority=2),
        ),
    )
    joined = replace(
        strategy, messages=(Message(parts=("linear[1]", "bias[1]", "table[0]", "bias[0]", "linear[0]"), lane=5),)
    )
    alone = replace(strategy, overlap="forward", messages=strategy.messages[::-1])
    check_all([strategy, joined, alone], model, cluster)


def test_large_parts_and_rows_are_counted_as_in_plans() -> None:
    """Sizes beyond what a float holds exactly, and halves that must be rounded alike."""
    table = replace(model_of().variables[0], shape=(10**6 + 1, 3), touched_rows=1250.5, max_touched_rows=2001)
    model = replace(model_of(), variables=(table, *model_of().variables[1:]))
    model = replace(model, optimizer=replace(model.optimizer, name="SparseAdam", sparse=True))
    cuts = {"table": Partition(sizes=(500_000, 500_001)), "linear": Partition(sizes=(1, 3))}
    strategies = [
        Strategy(
            partitions=cuts,
            messages=(
                Message(parts=("table[0]",), synchroniser=ParameterServer(server="n0", sparse=True)),
                Message(parts=("table[1]",), codec=codec, slice_bytes=slice_bytes),
                Message(parts=("linear[0]", "linear[1]", "bias")),
            ),
        )
        for codec, slice_bytes in ((TopK(ratio=0.01), 100_003), (Int8(block=256), None), (Sign(), 5000))
    ]
    check_all(strategies, model, cluster_of(1, 1, 1))


def test_a_plan_of_a_batch_is_no_copy() -> None:
    model, cluster = model_of(), cluster_of(1, 1)
    lowering = Lowering(model, cluster)
    strategy = Strategy(messages=(Message(parts=("table", "linear", "bias")),))
    plans = lowering.lower(lowering.encode([strategy, strategy]))
    assert np.shares_memory(operations_at(plans, 1).num_elements, plans.operations.num_elements)
    assert len(lowering.lower(lowering.encode([])).first_operation) == 1


def test_a_server_that_is_not_there_is_refused() -> None:
    lowering = Lowering(model_of(), cluster_of(1, 1))
    strategy = Strategy(messages=(Message(parts=("table",), synchroniser=ParameterServer(server="nowhere")),))
    with pytest.raises(KeyError, match="nowhere"):
        lowering.lower(lowering.encode([strategy]))


def test_numbers_are_given_anew_by_first_appearance() -> None:
    numbers, found = numbered(np.array([7, -1, 2, 7, 0]), 8)
    assert (numbers.tolist(), found.tolist()) == ([0, -1, 1, 0, 2], [7, 2, 0])
