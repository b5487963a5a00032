"""What strategies mean without a plan: two ways to say it agree, and by hand on small cases."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from autosync.plan.reference import Workload, meaning, single_process
from autosync.plan.reference.optimizers import LEARNING_RATE
from autosync.plan.reference.work import clip_coefficient
from autosync.specs.model import OptimizerSpec
from autosync.strategy.parts import Partition
from autosync.strategy.representation import Message, Strategy
from autosync.strategy.synchronisers.all_reduce import AllReduce
from autosync.strategy.synchronisers.base import Synchroniser
from autosync.strategy.synchronisers.outer_optimizer import OuterOptimizer
from autosync.strategy.synchronisers.parameter_server import ParameterServer
from autosync.strategy.synchronisers.periodic import Periodic
from tests.helpers.example_plans import ADAM, ALL, SGD, model_of

PLAIN = OptimizerSpec(name="SGD")


def all_by(synchroniser: Synchroniser) -> Strategy:
    return Strategy(messages=tuple(Message(parts=(name,), synchroniser=synchroniser) for name in ALL))


@pytest.mark.parametrize(
    "optimizer", [PLAIN, SGD, ADAM, OptimizerSpec(name="LAMB", elementwise=False, per_variable=True, state_slots=2)]
)
@pytest.mark.parametrize("clip_norm", [None, 1.0])
@pytest.mark.parametrize("num_workers", [1, 3])
def test_exact_means_one_process(optimizer: OptimizerSpec, clip_norm: float | None, num_workers: int) -> None:
    workload = Workload(model=model_of(optimizer=optimizer, clip_norm=clip_norm))
    copies = meaning(all_by(AllReduce()), workload, num_workers=num_workers, num_steps=4)
    single = single_process(workload, num_workers=num_workers, num_steps=4)
    assert len(copies) == num_workers
    for copy in copies:
        for name, value in single.items():
            np.testing.assert_allclose(copy[name], value, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("staleness", [0, 1, 3])
def test_staleness_means_late_use(staleness: int) -> None:
    workload = Workload(model=model_of())
    strategy = all_by(ParameterServer(server="n0", staleness=staleness))
    copies = meaning(strategy, workload, num_workers=2, num_steps=5)
    delayed = single_process(workload, num_workers=2, num_steps=5, delays=dict.fromkeys(ALL, staleness))
    for name, value in delayed.items():
        np.testing.assert_allclose(copies[0][name], value, rtol=1e-12, atol=1e-13)
        np.testing.assert_array_equal(copies[0][name], copies[1][name])


def test_nothing_arrives_before_the_staleness_is_over() -> None:
    workload = Workload(model=model_of())
    delayed = single_process(workload, num_workers=2, num_steps=2, delays={"bias": 2})
    variables = {variable.name: variable for variable in workload.model.variables}
    np.testing.assert_array_equal(delayed["bias"], workload.initial(variables["bias"]))
    assert not np.array_equal(delayed["linear"], workload.initial(variables["linear"]))


def test_periodic_averaging_by_hand() -> None:
    workload = Workload(model=model_of(optimizer=PLAIN))
    bias = workload.model.variables[2]
    values = [workload.initial(bias) for _ in range(2)]
    for step in range(3):
        values = [
            value - LEARNING_RATE * workload.gradient(bias, rank, step, value).dense
            for rank, value in enumerate(values)
        ]
        if step == 1:
            values = [(values[0] + values[1]) / 2] * 2
    copies = meaning(all_by(Periodic(every=2)), workload, num_workers=2, num_steps=3)
    for copy, value in zip(copies, values, strict=True):
        np.testing.assert_allclose(copy["bias"], value, rtol=1e-12)
    assert not np.array_equal(copies[0]["bias"], copies[1]["bias"])


def test_an_outer_step_by_hand() -> None:
    outer = OuterOptimizer(learning_rate=0.5, momentum=0.8)
    workload = Workload(model=model_of(optimizer=PLAIN))
    bias = workload.model.variables[2]
    anchor = workload.initial(bias)
    momentum = np.zeros(5)
    for step in range(2):
        ends = [anchor - LEARNING_RATE * workload.gradient(bias, rank, step, anchor).dense for rank in range(2)]
        change = anchor - (ends[0] + ends[1]) / 2
        momentum = 0.8 * momentum + change
        anchor = anchor - 0.5 * (change + 0.8 * momentum)
    copies = meaning(all_by(Periodic(every=1, outer=outer)), workload, num_workers=2, num_steps=2)
    for copy in copies:
        np.testing.assert_allclose(copy["bias"], anchor, rtol=1e-12)


def test_periodic_workers_clip_by_their_own_norm() -> None:
    model = replace(model_of(optimizer=PLAIN, clip_norm=0.5))
    workload = Workload(model=model)
    copies = meaning(all_by(Periodic(every=4)), workload, num_workers=2, num_steps=1)
    for rank, copy in enumerate(copies):
        values = {variable.name: workload.initial(variable) for variable in model.variables}
        gradients = {v.name: workload.gradient(v, rank, 0, values[v.name]).dense for v in model.variables}
        coefficient = clip_coefficient(sum(float(np.sum(g**2)) for g in gradients.values()), 0.5)
        assert coefficient < 1
        for name, gradient in gradients.items():
            np.testing.assert_allclose(copy[name], values[name] - LEARNING_RATE * coefficient * gradient, rtol=1e-12)


def test_parts_of_one_variable_may_differ() -> None:
    workload = Workload(model=model_of(optimizer=PLAIN))
    strategy = Strategy(
        partitions={"linear": Partition(axis=1, sizes=(2, 3))},
        messages=(
            Message(parts=("table", "bias", "linear[0]")),
            Message(parts=("linear[1]",), synchroniser=Periodic(every=9)),
        ),
    )
    first, second = meaning(strategy, workload, num_workers=2, num_steps=3)
    np.testing.assert_array_equal(first["linear"][:, :2], second["linear"][:, :2])
    assert not np.isclose(first["linear"][:, 2:], second["linear"][:, 2:]).any()


def test_a_workload_is_the_same_whenever_asked() -> None:
    model = model_of()
    one, other = Workload(model=model, seed=3), Workload(model=model, seed=3)
    for variable in model.variables:
        value = one.initial(variable)
        np.testing.assert_array_equal(value, other.initial(variable))
        found = one.gradient(variable, 1, 2, value)
        np.testing.assert_array_equal(found.dense, other.gradient(variable, 1, 2, value).dense)
        assert not np.array_equal(found.dense, one.gradient(variable, 0, 2, value).dense)
        assert not np.array_equal(found.dense, one.gradient(variable, 1, 3, value).dense)
        assert not np.array_equal(found.dense, one.gradient(variable, 1, 2, value + 1).dense)
