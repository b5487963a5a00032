"""Checks that a proposer keeps its contract on any model and cluster; for our proposers and those of third parties.

A proposer proposes new strategies of the domain with their right ids. The same call gives the same proposals, whatever
was called before. After failed trials it goes on proposing. If too few strategies are left, it proposes fewer.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace

from autosync.datasets.schema import Failure, Measurement, Record
from autosync.search.candidates import STOCK_DDP, Candidate, known_candidates
from autosync.search.domain import PoolDomain, SpaceDomain
from autosync.search.proposers.interface import Ground, Proposer
from autosync.simulators.interface import Prediction
from autosync.specs.cluster import ClusterSpec
from autosync.specs.model import ModelSpec
from autosync.strategy.canonical import strategy_id
from autosync.strategy.files import dump_strategy
from autosync.strategy.representation import Strategy
from autosync.strategy.space import Limits, Space

Build = Callable[[Ground], Proposer]

NUM_SIMULATED = 40
NUM_ROUNDS = 3
POOL_SIZE = 9


class MessageCounter:
    """A simulator for tests: each message and each lane makes a step a little longer."""

    name = "message_counter"

    def predict(self, strategies: Sequence[Strategy]) -> list[Prediction]:
        """Return one prediction for each strategy."""
        return [Prediction(seconds=message_counter_seconds(strategy)) for strategy in strategies]

    def learn(self, records: Sequence[Record]) -> None:
        """Do nothing: this simulator does not learn."""


def message_counter_seconds(strategy: Strategy) -> float:
    """Return the step time that `MessageCounter` predicts."""
    lanes = {message.lane for message in strategy.messages}
    shift = 0.05 if strategy.overlap == "forward" else 0.0
    return 0.1 + 0.002 * len(strategy.messages) + 0.001 * len(lanes) - shift


def ground_of(
    model: ModelSpec, cluster: ClusterSpec, *, pool: Sequence[Strategy] = (), is_screened: bool = False
) -> Ground:
    """Return a ground for a proposer: the whole space or a pool of strategies, with `MessageCounter` as simulator.

    With `is_screened`, `MessageCounter` is also the screen.
    """
    limits = Limits()
    space = Space(model=model, cluster=cluster, limits=limits)
    domain = PoolDomain(space, pool) if pool else SpaceDomain(space=space)
    return Ground(
        model=model,
        cluster=cluster,
        domain=domain,
        limits=limits,
        known=tuple(known_candidates(model, cluster, domain.contains)),
        simulator=MessageCounter(),
        num_simulated=NUM_SIMULATED,
        screen=MessageCounter() if is_screened else None,
        num_screened=2 * NUM_SIMULATED,
    )


def record_of(
    number: int, candidate: Candidate, ground: Ground, *, seconds: float | None = None, memory_bytes: int = 1_000_000
) -> Record:
    """Return the record of a trial with steps of `seconds`, or of a failed trial if `seconds` is None."""
    measurement = None
    if seconds is not None:
        measurement = Measurement(
            step_seconds=((seconds,),),
            median_seconds=seconds,
            low_seconds=seconds,
            high_seconds=seconds,
            num_warmup_steps=1,
            peak_memory_bytes=(memory_bytes,),
        )
    strategy = candidate.strategy
    return Record(
        study="conformance",
        trial=number,
        origin=candidate.origin,
        model_name=ground.model.name,
        model_fingerprint=ground.model.fingerprint(),
        cluster_name=ground.cluster.name,
        cluster_fingerprint=ground.cluster.fingerprint(),
        strategy=None if strategy is None else dump_strategy(strategy),
        strategy_id=None if strategy is None else candidate.strategy_id,
        classes=("exact",),
        measurement=measurement,
        failure=None if measurement else Failure(kind="raised", message="no luck"),
        environment={},
        compute="replayed",
        network="emulated",
        started="2026-01-31T12:00:00+00:00",
    )


def check_proposer(build: Build, model: ModelSpec, cluster: ClusterSpec) -> None:
    """Check all of this module's rules for a proposer; raise AssertionError if one does not hold."""
    ground = ground_of(model, cluster)
    proposer = build(ground)
    assert proposer.name, "a proposer has a name"
    assert proposer.round_size >= 1, f"{proposer.name} likes to be asked for {proposer.round_size} (1 or more)"
    _play(build, ground_of(model, cluster, is_screened=True), num_rounds=2)
    history = _play(build, ground, num_rounds=NUM_ROUNDS)
    _check_that_failures_are_no_end(build, ground, history)
    _check_exhaustion(build, ground, history)


def _play(build: Build, ground: Ground, *, num_rounds: int) -> list[Record]:
    """Play some rounds of a search and return its records; compare each round's proposals with a new proposer's."""
    proposer = build(ground)
    history = [record_of(0, STOCK_DDP, ground, seconds=0.2)]
    noise = random.Random(0)
    for number in range(num_rounds):
        count = (proposer.round_size, 1, 3)[number % 3]
        before = list(history)
        proposed = proposer.propose(history, count, random.Random(number))
        assert history == before, f"{proposer.name} changes the history"
        _check_proposals(proposer.name, proposed, count, ground, {record.strategy_id for record in history})
        again = build(ground).propose(history, count, random.Random(number))
        assert again == proposed, f"{proposer.name} proposes otherwise where it was asked before"
        if proposed:
            taken = {proposed[0].strategy_id}
            others = build(ground).propose(history, count, random.Random(number), taken=taken)
            _check_proposals(proposer.name, others, count, ground, taken)
        for one in proposed:
            assert one.strategy is not None, "checked above"
            seconds = message_counter_seconds(one.strategy) * noise.uniform(0.98, 1.02)
            history.append(record_of(len(history), one, ground, seconds=seconds))
    return history


def _check_proposals(
    name: str, proposed: Sequence[Candidate], count: int, ground: Ground, seen: set[str | None] | set[str]
) -> None:
    assert len(proposed) <= count, f"{name} proposes {len(proposed)} where it was asked for {count}"
    for one in proposed:
        assert one.strategy is not None, f"{name} proposes a baseline, which is not for it to do"
        assert one.origin, f"{name} does not say where {one.strategy_id} comes from"
        found = strategy_id(one.strategy, ground.model, ground.cluster)
        assert one.strategy_id == found, f"{name} calls {found} {one.strategy_id}"
        assert one.strategy_id not in seen, f"{name} proposes {one.strategy_id} again"
        assert ground.domain.contains(one.strategy), f"{name} proposes {one.strategy_id}, which is not in the domain"
    ids = [one.strategy_id for one in proposed]
    assert len(set(ids)) == len(ids), f"{name} proposes a strategy twice at a time"


def _check_that_failures_are_no_end(build: Build, ground: Ground, history: Sequence[Record]) -> None:
    """Check that after failed trials the proposer makes new proposals and repeats none of the failed strategies."""
    failed = [replace(record, measurement=None, failure=Failure(kind="timeout", message="late")) for record in history]
    proposer = build(ground)
    proposed = proposer.propose(failed, 2, random.Random(1))
    _check_proposals(proposer.name, proposed, 2, ground, {record.strategy_id for record in failed})


def _check_exhaustion(build: Build, ground: Ground, history: Sequence[Record]) -> None:
    """Check that all strategies of a small pool are proposed in the end, each once, and then no more."""
    pool: dict[str, Strategy] = {}
    rng = random.Random(2)
    for _ in range(20 * POOL_SIZE):
        strategy = ground.domain.sample(rng)
        if len(pool) < POOL_SIZE and ground.domain.contains(strategy):
            pool[strategy_id(strategy, ground.model, ground.cluster)] = strategy
    small = ground_of(ground.model, ground.cluster, pool=list(pool.values()))
    proposer = build(small)
    tried: list[Record] = [history[0]]
    for number in range(3 * len(pool)):
        proposed = proposer.propose(tried, 2, random.Random(number))
        seen = {record.strategy_id for record in tried}
        _check_proposals(proposer.name, proposed, 2, small, seen)
        if not proposed:
            break
        tried += [
            record_of(len(tried) + index, one, small, seconds=0.1 + 0.01 * index) for index, one in enumerate(proposed)
        ]
    found = {record.strategy_id for record in tried if record.strategy_id}
    assert found == set(pool), f"{proposer.name} finds {len(found)} of the {len(pool)} strategies of a pool"
    assert proposer.propose(tried, 2, random.Random(99)) == [], f"{proposer.name} proposes what is not there"
