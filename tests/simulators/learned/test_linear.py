"""The twelve features are those of the original, and their coefficients are found from the order alone."""

from __future__ import annotations

import numpy as np
import pytest

from autosync.simulators.evaluation import Measured, accuracy_of
from autosync.simulators.features.context import scales_of
from autosync.simulators.learned.linear import NAMES, UNTAUGHT, LinearRows, LinearStudent, fit
from autosync.simulators.learned.losses import Targets
from autosync.specs.cluster import ClusterSpec, Node
from autosync.specs.model import ModelSpec, OptimizerSpec, Timeline, Variable
from autosync.strategy.representation import Message, Strategy
from autosync.strategy.synchronisers.all_reduce import AllReduce
from autosync.strategy.synchronisers.parameter_server import ParameterServer

_RATE = 1e8


def _model() -> ModelSpec:
    variables = tuple(Variable(name=f"v{use}", shape=(1000, use + 1), use=use, ready=3 - use) for use in range(4))
    timeline = Timeline(device="none", source="computed", forward=(), backward=())
    return ModelSpec(name="m", optimizer=OptimizerSpec(name="SGD"), variables=variables, timeline=timeline)


def _cluster() -> ClusterSpec:
    nodes = tuple(
        Node(name=f"n{index}", host=f"n{index}", devices=2, bandwidth_out=_RATE, bandwidth_in=_RATE)
        for index in range(3)
    )
    return ClusterSpec(name="c", nodes=nodes)


def test_the_features_are_worked_out_by_hand() -> None:
    model, cluster = _model(), _cluster()
    strategy = Strategy(
        messages=(
            Message(parts=("v0",), synchroniser=ParameterServer(server="n0")),
            Message(parts=("v1",), synchroniser=ParameterServer(server="n1", local_proxy=True)),
            Message(parts=("v2", "v3"), synchroniser=AllReduce()),
        )
    )
    (values,) = LinearStudent(model, cluster).read([strategy]).values
    found = dict(zip(NAMES, values.tolist(), strict=True))
    bound = scales_of(model, cluster).bound
    # v0 has 4 kB: from two other nodes once each, to each of their two ranks; v1 has 8 kB and one answer a node.
    first, second = 2 * 4000 * 3 / _RATE / bound, 2 * 8000 * 2 / _RATE / bound
    assert found["max.server.transmission"] == pytest.approx(max(first, second), rel=1e-5)
    assert found["sum.server.transmission"] == pytest.approx(first + second, rel=1e-5)
    assert found["sum.server.overhead"] == 2 * 2 * 3
    assert found["max.server.latency"] == 2 * 2
    assert found["max.all_reduce.transmission"] == pytest.approx((12000 + 16000) / _RATE / bound, rel=1e-5)
    assert found["sum.all_reduce.overhead"] == 2
    assert found["sum.all_reduce.latency"] == 4


def _case(count: int, seed: int = 0) -> tuple[LinearRows, Targets]:
    rng = np.random.default_rng(seed)
    values = rng.uniform(size=(count, len(NAMES)))
    log_seconds = values @ np.linspace(0.0, 0.3, len(NAMES))
    rows = LinearRows(values=values, bound=np.ones(count), complexity=np.ones(count))
    targets = Targets(
        log_seconds=log_seconds,
        log_low=log_seconds - 0.005,
        log_high=log_seconds + 0.005,
        complexity=rows.complexity,
        group=np.zeros(count, dtype=np.intp),
        weight=np.ones(count),
    )
    return rows, targets


def test_what_is_linear_is_learned() -> None:
    line = fit(*_case(60))
    rows, targets = _case(60, seed=1)
    predicted, spread = line.predict(rows)
    measured = Measured(*map(np.exp, (targets.log_seconds, targets.log_low, targets.log_high)))
    found = accuracy_of(measured, np.exp(predicted))
    assert found.pair_ranking is not None
    assert found.median_error is not None
    assert found.pair_ranking > 0.97
    assert found.median_error < 0.05
    assert (spread == 0).all()


def test_too_few_trials_leave_the_order_and_move_the_level() -> None:
    rows, targets = _case(1)
    line = fit(rows, targets._replace(log_seconds=targets.log_seconds + 5))
    assert (line.coefficients == UNTAUGHT.coefficients).all()
    assert line.predict(rows)[0] == pytest.approx(targets.log_seconds + 5)


def test_ties_are_no_pairs() -> None:
    rows, targets = _case(40)
    vague = targets._replace(log_low=targets.log_low - 10, log_high=targets.log_high + 10)
    assert (fit(rows, vague).coefficients == UNTAUGHT.coefficients).all()
