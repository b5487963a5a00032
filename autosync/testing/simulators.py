"""Checks that a simulator keeps its contract (see `simulators.interface`); for ours and those of third parties.

    from autosync.testing.simulators import check_simulator

    def test_ours() -> None:
        check_simulator(lambda model, cluster: OurSimulator(model, cluster))

`CHECKS` has the single checks by name. A failed check raises AssertionError with the reason. The accuracy of
predictions is not checked.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from autosync.datasets.schema import Failure, Measurement, Record
from autosync.errors import InputError
from autosync.plan.tables import LOCAL_KINDS
from autosync.simulators.interface import Prediction, Simulator
from autosync.specs.cluster import ClusterSpec, Node
from autosync.specs.costs import Costs, ProcessorCosts, ServerCosts, WithinCosts
from autosync.specs.model import ModelSpec, OptimizerSpec, Segment, Timeline, Variable
from autosync.strategy.canonical import strategy_id
from autosync.strategy.files import dump_strategy
from autosync.strategy.presets import build_preset
from autosync.strategy.representation import Message, Strategy
from autosync.strategy.space import Space

Builder = Callable[[ModelSpec, ClusterSpec], Simulator]

# The relative tolerance of comparisons: a simulator may add numbers in another order.
_SAME = 1e-6
_STARTED = datetime(2026, 1, 1, tzinfo=UTC)
_STRANGER = "nobody.weight"

FREE = Costs(
    transfer_seconds=0.0,
    round_seconds=0.0,
    native_round_seconds=0.0,
    rate_added=1e15,
    local_seconds=0.0,
    local_rates=dict.fromkeys(LOCAL_KINDS, 1e18),
    link_share=1.0,
    payload_share=1.0,
    hop_seconds=0.0,
    processor=ProcessorCosts(
        ask=(0.0, 0.0),
        post=(0.0, 0.0),
        asked=(0.0, 0.0),
        arrived=(0.0, 0.0),
        taken=(0.0, 0.0),
        per_byte=(0.0, 0.0),
        transfer=0.0,
        stock_transfer=0.0,
        local=0.0,
        gradient=0.0,
        stock_gradient=0.0,
        update=0.0,
        step=0.0,
        stock_step=0.0,
    ),
    bytes_ahead=1e6,
    bytes_queued=5.8e6,
    queued_seconds=8e-3,
    stock_threads=2,
    within=WithinCosts(hop_seconds=None, native_round_seconds=None, rate=1.5e9),
    servers=ServerCosts(num_cores=1, update_rate=None),
)
"""Costs for tests that compute times by hand: only bytes on links take time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """The input of the checks: a model on a cluster, with strategies for it and records of trials."""

    model: ModelSpec
    cluster: ClusterSpec
    strategies: tuple[Strategy, ...]
    records: tuple[Record, ...]


def check_simulator(build: Builder, case: Case | None = None) -> None:
    """Run all checks on a simulator, on a small model and cluster unless `case` is given."""
    case = case or small_case()
    for check in CHECKS.values():
        check(build, case)


def two_layers(*, forward: float = 0.01, backward: float = 0.02) -> ModelSpec:
    """Return a model of two variables with 10 MB each; the gradient of the second variable is ready first."""
    variables = tuple(
        Variable(name=name, shape=(2_500_000,), use=use, ready=1 - use) for use, name in enumerate(("first", "second"))
    )
    timeline = Timeline(
        device="none",
        source="computed",
        forward=tuple(Segment(module=v.name, seconds=forward, variables=(v.name,)) for v in variables),
        backward=tuple(Segment(module=v.name, seconds=backward, variables=(v.name,)) for v in reversed(variables)),
    )
    return ModelSpec(name="two", optimizer=OptimizerSpec(name="SGD"), variables=variables, timeline=timeline)


@functools.cache
def small_case(seed: int = 0, *, num_strategies: int = 24) -> Case:
    """Return a case: dense, linear and embedding variables, four unequal hosts, presets and samples of the space."""
    model, cluster = _small_model(), _small_cluster()
    rng = random.Random(seed)
    space = Space(model=model, cluster=cluster)
    presets = [build_preset(name, model, cluster) for name in ("ddp", "all_reduce_per_variable", "ps")]
    drawn = [space.sample(rng) for _ in range(num_strategies - len(presets))]
    strategies = (*presets, *drawn)
    # Step times depend on the strategies: more messages take more time.
    measured = [
        record_of(one, model, cluster, trial=trial, seconds=0.1 + 0.01 * len(one.messages) * rng.uniform(0.9, 1.1))
        for trial, one in enumerate(strategies)
    ]
    failed = dataclasses.replace(
        measured[0], trial=len(measured), measurement=None, failure=Failure(kind="timeout", message="no step ended")
    )
    stock = dataclasses.replace(
        measured[0],
        trial=len(measured) + 1,
        origin="baseline:torch_ddp",
        strategy=None,
        strategy_id=None,
        plan_id=None,
    )
    return Case(model=model, cluster=cluster, strategies=strategies, records=(*measured, failed, stock))


def record_of(
    strategy: Strategy, model: ModelSpec, cluster: ClusterSpec, *, seconds: float, trial: int = 0, noise: float = 0.01
) -> Record:
    """Return the record of a trial whose steps took `seconds`, varied by the share `noise`."""
    steps = tuple([seconds * (1 + noise * step) for step in (-1, 0, 0, 0, 1)])
    measurement = Measurement(
        step_seconds=(steps,) * cluster.num_workers,
        median_seconds=seconds,
        low_seconds=min(steps),
        high_seconds=max(steps),
        num_warmup_steps=3,
        peak_memory_bytes=(100_000_000,) * cluster.num_workers,
        cpu_share=0.2,
    )
    return Record(
        study="made-up",
        trial=trial,
        origin="sampled",
        model_name=model.name,
        model_fingerprint=model.fingerprint(),
        cluster_name=cluster.name,
        cluster_fingerprint=cluster.fingerprint(),
        strategy=dump_strategy(strategy),
        strategy_id=strategy_id(strategy, model, cluster),
        classes=tuple(sorted(strategy.classes)),
        measurement=measurement,
        environment={},
        compute="replayed",
        network="emulated" if cluster.is_emulated else "real",
        started=(_STARTED + timedelta(minutes=trial)).isoformat(),
    )


def check_predictions(build: Builder, case: Case) -> None:
    """Check that each strategy has a prediction with finite seconds above 0 and a finite spread of 0 or more.

    For no strategies, there must be no predictions.
    """
    simulator = build(case.model, case.cluster)
    assert simulator.name, "the simulator has no name"
    assert simulator.predict([]) == [], f"{simulator.name} predicts something for no strategy"
    found = simulator.predict(case.strategies)
    assert len(found) == len(case.strategies), (
        f"{simulator.name} has {len(found)} predictions for {len(case.strategies)} strategies"
    )
    for one in found:
        assert math.isfinite(one.seconds), f"{simulator.name} predicts {one.seconds} seconds"
        assert one.seconds > 0, f"{simulator.name} predicts {one.seconds} seconds"
        assert math.isfinite(one.spread), f"{simulator.name} is unsure by {one.spread}"
        assert one.spread >= 0, f"{simulator.name} is unsure by {one.spread}"


def check_determinism(build: Builder, case: Case) -> None:
    """Check that two simulators of one case predict the same, and that a second call to one predicts the same again."""
    first, second = build(case.model, case.cluster), build(case.model, case.cluster)
    found = first.predict(case.strategies)
    _expect_same(first, found, second.predict(case.strategies), "two simulators of the same differ")
    _expect_same(first, found, first.predict(case.strategies), "what was asked before makes a difference")


def check_batches(build: Builder, case: Case) -> None:
    """Check that a strategy's prediction does not depend on the other strategies of the call, nor on their order."""
    simulator = build(case.model, case.cluster)
    found = simulator.predict(case.strategies)
    one_by_one = [build(case.model, case.cluster).predict([strategy])[0] for strategy in case.strategies[:6]]
    _expect_same(simulator, found[:6], one_by_one, "a strategy alone is predicted otherwise than among others")
    backwards = build(case.model, case.cluster).predict(case.strategies[::-1])
    _expect_same(simulator, found, backwards[::-1], "the order of the strategies makes a difference")


def check_equal_strategies(build: Builder, case: Case) -> None:
    """Check that predictions do not depend on a strategy's name, nor on the order of its messages."""
    simulator = build(case.model, case.cluster)
    written = [
        dataclasses.replace(strategy, name="other", messages=strategy.messages[::-1]) for strategy in case.strategies
    ]
    found = simulator.predict([*case.strategies, *written])
    count = len(case.strategies)
    _expect_same(simulator, found[:count], found[count:], "equal strategies are predicted differently")


def check_learning(build: Builder, case: Case) -> None:
    """Check that learning depends only on the last records, whatever was learned before.

    An empty list of records must change nothing.
    """
    new = build(case.model, case.cluster)
    untaught = new.predict(case.strategies)
    new.learn([])
    _expect_same(new, untaught, new.predict(case.strategies), "no records teach it something")
    first, second = build(case.model, case.cluster), build(case.model, case.cluster)
    first.learn(case.records)
    # A study grows, so its simulators learn from its records again and again.
    second.learn(case.records[:5])
    second.predict(case.strategies)
    second.learn(case.records)
    taught = first.predict(case.strategies)
    _expect_same(first, taught, second.predict(case.strategies), "what it learned earlier makes a difference")
    for one in taught:
        assert math.isfinite(one.seconds), f"{first.name} predicts {one.seconds} seconds when taught"
        assert one.seconds > 0, f"{first.name} predicts {one.seconds} seconds when taught"


def check_inputs_unchanged(build: Builder, case: Case) -> None:
    """Check that a simulator does not change the lists, strategies and records that it is given."""
    strategies, records = list(case.strategies), list(case.records)
    kept = copy.deepcopy((case.model, case.cluster, strategies, records))
    simulator = build(case.model, case.cluster)
    simulator.predict(strategies)
    simulator.learn(records)
    simulator.predict(strategies)
    assert (case.model, case.cluster, strategies, records) == kept, f"{simulator.name} changes what it is given"


def check_refusal(build: Builder, case: Case) -> None:
    """Check that a strategy of another model is refused with an error that names a variable that the model lacks."""
    simulator = build(case.model, case.cluster)
    first, *others = case.strategies[0].messages
    stranger = dataclasses.replace(
        case.strategies[0],
        messages=(Message(parts=(*first.parts, _STRANGER), synchroniser=first.synchroniser), *others),
    )
    refusal = ""
    try:
        simulator.predict([case.strategies[0], stranger])
    except InputError as error:
        refusal = str(error)
    assert refusal, f"{simulator.name} predicts a strategy of another model"
    assert _STRANGER in refusal, f"{simulator.name} does not name the unknown variable: {refusal}"


CHECKS: Mapping[str, Callable[[Builder, Case], None]] = {
    "predictions": check_predictions,
    "determinism": check_determinism,
    "batches": check_batches,
    "equal strategies": check_equal_strategies,
    "learning": check_learning,
    "inputs unchanged": check_inputs_unchanged,
    "refusal": check_refusal,
}


def _expect_same(simulator: Simulator, one: Sequence[Prediction], other: Sequence[Prediction], otherwise: str) -> None:
    for position, (left, right) in enumerate(zip(one, other, strict=True)):
        same = math.isclose(left.seconds, right.seconds, rel_tol=_SAME)
        same = same and math.isclose(left.spread, right.spread, rel_tol=_SAME, abs_tol=_SAME)
        assert same, f"{simulator.name}: {otherwise}: strategy {position}: {left} and {right}"


def _small_model() -> ModelSpec:
    variables = (
        Variable(
            name="words", shape=(500, 64), kind="embedding", use=0, ready=6, touched_rows=40.5, max_touched_rows=64
        ),
        Variable(name="first.weight", shape=(256, 64), use=1, ready=5),
        Variable(name="first.bias", shape=(256,), use=2, ready=4),
        Variable(name="second.weight", shape=(256, 256), kind="linear", use=3, ready=3, factor_rows=16),
        Variable(name="conv.weight", shape=(64, 3, 3, 3), use=4, ready=2),
        Variable(name="last.weight", shape=(10, 256), use=5, ready=1),
        Variable(name="last.bias", shape=(10,), use=6, ready=0),
    )
    passes = [
        tuple([Segment(module=v.name, seconds=seconds, variables=(v.name,)) for v in ordered])
        for seconds, ordered in ((0.002, variables), (0.004, variables[::-1]))
    ]
    timeline = Timeline(device="none", source="computed", forward=passes[0], backward=passes[1])
    optimizer = OptimizerSpec(name="SGD", sparse=True)
    return ModelSpec(name="small", optimizer=optimizer, variables=variables, timeline=timeline)


def _small_cluster() -> ClusterSpec:
    rates = (1.25e8, 1.25e8, 1.25e8, 5e7)
    nodes = tuple(
        Node(name=f"n{index}", host=f"n{index}", devices=1 + (index == 0), bandwidth_out=rate, bandwidth_in=rate)
        for index, rate in enumerate(rates)
    )
    return ClusterSpec(name="small", nodes=nodes)
