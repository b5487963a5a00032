"""Invented trials: the timeline's predictions, with an error that depends on the strategy.

They test only whether simulators learn. They say nothing about the accuracy of predictions on a real cluster.
"""

from __future__ import annotations

import dataclasses
import math
import random
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from autosync.datasets.facts import cluster_spec, model_spec
from autosync.datasets.schema import Record
from autosync.datasets.store import RecordStore
from autosync.simulators.timeline.simulator import TimelineSimulator
from autosync.specs.cluster import ClusterSpec, Node
from autosync.specs.model import ModelSpec, OptimizerSpec, Segment, Timeline, Variable
from autosync.strategy.canonical import strategy_id
from autosync.strategy.representation import Strategy
from autosync.strategy.space import Space
from autosync.testing.simulators import record_of

MakeTrials = Callable[..., list[Record]]


def _fault(strategy: Strategy) -> float:
    """How many times as long as the timeline says a strategy is said to take."""
    native = [getattr(message.synchroniser, "topology", None) == "native" for message in strategy.messages]
    forward = strategy.overlap == "forward"
    # Always longer: a step that is faster than its bound is no trial that could be made.
    return math.exp(0.3 * forward + 0.25 * (1 - sum(native) / len(native)) + 0.1 * math.log2(len(native)))


@pytest.fixture(scope="session")
def make_model() -> Callable[[int], ModelSpec]:
    """A small model; another number is another model."""

    def make(number: int) -> ModelSpec:
        rng = random.Random(number)
        count = rng.randint(4, 7)
        variables = tuple(
            Variable(name=f"v{use}", shape=(rng.choice([64, 256, 512]), 256), use=use, ready=count - 1 - use)
            for use in range(count)
        )
        forward = tuple(
            Segment(module=one.name, seconds=rng.uniform(0.001, 0.004), variables=(one.name,)) for one in variables
        )
        backward = tuple(dataclasses.replace(one, seconds=2 * one.seconds) for one in forward[::-1])
        timeline = Timeline(device="none", source="computed", forward=forward, backward=backward)
        optimizer = OptimizerSpec(name="SGD")
        return ModelSpec(name=f"model{number}", optimizer=optimizer, variables=variables, timeline=timeline)

    return make


@pytest.fixture(scope="session")
def make_cluster() -> Callable[[int], ClusterSpec]:
    """A small cluster; another number is another cluster."""

    def make(number: int) -> ClusterSpec:
        rng = random.Random(number)
        nodes = []
        for index in range(rng.randint(2, 4)):
            rate = rng.choice([6e7, 1.25e8])
            nodes.append(Node(name=f"n{index}", host=f"n{index}", bandwidth_out=rate, bandwidth_in=rate))
        return ClusterSpec(name=f"cluster{number}", nodes=tuple(nodes))

    return make


@pytest.fixture(scope="session")
def make_trials() -> MakeTrials:
    """Trials of random strategies of a model on a cluster."""

    def make(model: ModelSpec, cluster: ClusterSpec, count: int, *, seed: int = 0) -> list[Record]:
        rng = random.Random(seed)
        space = Space(model=model, cluster=cluster)
        # Each once: of a strategy that is drawn twice only one trial would teach anything.
        drawn: dict[str, Strategy] = {}
        while len(drawn) < count:
            strategy = space.sample(rng)
            drawn.setdefault(strategy_id(strategy, model, cluster), strategy)
        strategies = list(drawn.values())
        truth = TimelineSimulator(model, cluster).predict(strategies)
        return [
            record_of(strategy, model, cluster, seconds=one.seconds * _fault(strategy), trial=trial, noise=0.005)
            for trial, (strategy, one) in enumerate(zip(strategies, truth, strict=True))
        ]

    return make


@pytest.fixture(scope="session")
def make_store(
    make_model: Callable[[int], ModelSpec], make_cluster: Callable[[int], ClusterSpec], make_trials: MakeTrials
) -> Callable[..., Path]:
    """A store with trials of some models, each on a cluster of its own."""

    def make(path: Path, *, numbers: Iterable[int], count: int) -> Path:
        store = RecordStore(path)
        for number in numbers:
            model, cluster = make_model(number), make_cluster(number)
            of_model, of_cluster = model_spec(model), cluster_spec(cluster)
            store.add_spec(of_model)
            store.add_spec(of_cluster)
            for record in make_trials(model, cluster, count):
                store.append(dataclasses.replace(record, model_spec=of_model.spec_id, cluster_spec=of_cluster.spec_id))
        return path

    return make
