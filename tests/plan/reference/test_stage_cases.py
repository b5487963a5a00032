"""Random strategies with stages: in the reference they train as one process does, and nothing deadlocks."""

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autosync.errors import OperationError
from autosync.plan.lowering import lower
from autosync.plan.reference import Workload, interpret, single_process
from autosync.plan.reference.optimizers import reference_optimizer
from autosync.plan.reference.workload import Array
from autosync.plan.types import Local, Plan, StagePass
from autosync.strategy.dividing.divided import divided_strategy
from autosync.strategy.representation import Strategy
from autosync.strategy.stages import ModelStage, holders_of_variables, stages_of_variables
from tests.helpers.staged_models import chain, nodes, random_division
from tests.helpers.stash_versions import stash_versions
from tests.plan.reference.plan_bytes import check_bytes

NUM_STEPS = 3


def _check(seed: int) -> None:
    rng = random.Random(seed)
    strategy, model, cluster = random_division(rng)
    plan = lower(strategy, model, cluster)
    workload = Workload(model=model, seed=seed % 1000)
    outcome = interpret(plan, workload, num_steps=NUM_STEPS, rng=rng)
    list(check_bytes(plan, cluster, outcome.sent))
    # Each microbatch has the gradient of a worker in data-parallel training.
    if plan.stashes:
        wanted = _stashed(strategy, workload)
    else:
        lag = 0 if plan.flushes else 1
        delays = {variable.name: lag for variable in model.variables}
        wanted = single_process(workload, num_workers=strategy.microbatches, num_steps=NUM_STEPS + lag, delays=delays)
    for name, ranks in holders_of_variables(strategy.stages, model).items():
        for rank in ranks:
            found = outcome.parameters[rank][name]
            np.testing.assert_allclose(found, wanted[name], rtol=1e-9, atol=1e-12, err_msg=f"{name} on rank {rank}")


def _stashed(strategy: Strategy, workload: Workload) -> dict[str, Array]:
    """The parameters after some steps in which each microbatch takes the version that its stage has stashed."""
    versions = stash_versions(strategy.stages, strategy.microbatches, strategy.slack, NUM_STEPS)
    optimizer = reference_optimizer(workload.model.optimizer)
    found = {}
    for variable in workload.model.variables:
        (stage,) = stages_of_variables(strategy.stages, workload.model)[variable.name]
        values = [workload.initial(variable)]
        state = (np.zeros(variable.shape), np.zeros(variable.shape))
        for step in range(NUM_STEPS):
            gradients = [
                workload.gradient(variable, microbatch, step, values[versions[stage][step, microbatch]]).dense
                for microbatch in range(strategy.microbatches)
            ]
            value = values[-1].copy()
            optimizer.update(value, np.asarray(sum(gradients)) / len(gradients), state, step + 1)
            values.append(value)
        found[variable.name] = values[-1]
    return found


@given(seed=st.integers(0, 2**32))
@settings(max_examples=25, deadline=None)
def test_stages_train_as_one_process_does(seed: int) -> None:
    _check(seed)


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_two_thousand_strategies_with_stages() -> None:
    for seed in range(2000):
        _check(seed)


def _without_wait(plan: Plan) -> Plan:
    """The plan in which a forward pass of the second stage waits for nothing."""
    operations = list(plan.operations)
    place = next(
        index
        for index, one in enumerate(operations)
        if isinstance(one, Local)
        and isinstance(one.settings, StagePass)
        and (one.kind, one.settings.stage) == ("forward", 1)
    )
    operations[place] = operations[place]._replace(after=())
    fields = {name: getattr(plan, name) for name in plan.__dataclass_fields__}
    return Plan(**{**fields, "operations": tuple(operations)})


def test_a_pass_that_does_not_wait_is_found() -> None:
    model, cluster = chain(4), nodes(1, 1)
    stages = [ModelStage(before=2 * number, ranks=(number,)) for number in range(2)]
    plan = _without_wait(lower(divided_strategy(model, stages, 4), model, cluster))

    def run() -> None:
        for seed in range(20):
            interpret(plan, Workload(model=model), num_steps=1, rng=random.Random(seed))

    with pytest.raises(OperationError, match="is there"):
        run()
