"""What proposers are made of: vectors of strategies, styles, and the walk of mcmc."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from autosync.search.candidates import STOCK_DDP, candidate
from autosync.search.domain import PoolDomain, SpaceDomain
from autosync.search.proposers.history import TriedStrategy
from autosync.search.proposers.learned import Learned
from autosync.search.proposers.likeness import Likeness
from autosync.search.proposers.mcmc import _walked
from autosync.search.proposers.style import Styles
from autosync.simulators.interface import Prediction
from autosync.simulators.learned.residuals import distances
from autosync.specs.cluster import ClusterSpec
from autosync.specs.model import ModelSpec
from autosync.strategy import legality
from autosync.strategy.presets import build_preset
from autosync.strategy.representation import Message, Strategy
from autosync.strategy.space import Space
from autosync.testing.proposers import MessageCounter, ground_of, record_of


@pytest.fixture
def space(model: ModelSpec, cluster: ClusterSpec) -> Space:
    return Space(model=model, cluster=cluster)


def test_a_strategy_is_nearer_to_its_mutation_than_to_a_stranger(space: Space) -> None:
    likeness = Likeness(space.model, space.cluster)
    rng = random.Random(0)
    nearer = 0
    for _ in range(60):
        one, stranger = space.sample(rng), space.sample(rng)
        mutated = space.mutate(one, rng)
        far = distances(likeness.vectors([one]), likeness.vectors([one, mutated, stranger]))[0]
        assert far[0] == pytest.approx(0.0, abs=1e-6)
        nearer += far[1] < far[2]
    assert nearer > 45


def test_the_order_of_messages_has_no_meaning(space: Space) -> None:
    strategy = next(s for s in (space.sample(random.Random(i)) for i in range(50)) if len(s.messages) > 2)
    turned = replace(strategy, messages=tuple(reversed(strategy.messages)))
    likeness = Likeness(space.model, space.cluster)
    assert np.allclose(likeness.vectors([strategy]), likeness.vectors([turned]))


def test_slices_are_pieces(space: Space) -> None:
    names = tuple(variable.name for variable in space.model.variables)
    whole = Strategy(messages=(Message(parts=names),))
    sliced = Strategy(messages=(Message(parts=names, slice_bytes=1024),))
    likeness = Likeness(space.model, space.cluster)
    assert likeness.num_pieces(whole) == 1
    assert likeness.num_pieces(sliced) == -(-space.model.num_bytes // 1024)


def test_styles_make_legal_strategies_and_are_found_in_them(space: Space) -> None:
    styles = Styles(space)
    rng = random.Random(3)
    same = 0
    for _ in range(80):
        style = styles.sample(rng)
        strategy = styles.strategy(style)
        assert legality.problems(strategy, space.model, space.cluster) == []
        assert strategy == styles.strategy(style)
        found = styles.style(strategy)
        assert (found.overlap, found.way) == (style.overlap, style.way)
        same += styles.strategy(found) == strategy
        changed = styles.changed(style, rng)
        assert legality.problems(styles.strategy(changed), space.model, space.cluster) == []
    assert same > 30


def test_any_strategy_has_a_style(space: Space) -> None:
    styles = Styles(space)
    rng = random.Random(4)
    for strategy in [space.sample(rng) for _ in range(60)] + [build_preset("p3", space.model, space.cluster)]:
        styles.strategy(styles.style(strategy))


def test_a_pool_stands_for_the_space(space: Space) -> None:
    rng = random.Random(5)
    members = [space.sample(rng) for _ in range(12)]
    pool = PoolDomain(space, members)
    stranger = next(s for s in iter(lambda: space.sample(rng), None) if s not in members)
    assert not pool.contains(stranger)
    assert pool.nearest(stranger) in members
    for member in members:
        assert pool.contains(member)
        assert pool.nearest(member) == member
        assert pool.mutate(member, rng) in members
        assert pool.crossover(member, members[0], rng) in members
    drawn = [pool.mutate(members[0], rng) for _ in range(60)]
    assert members[0] not in drawn
    assert len({id(one) for one in drawn}) > 3


def test_the_space_has_what_may_be_tried(space: Space) -> None:
    domain = SpaceDomain(space=space)
    assert domain.contains(build_preset("ddp", space.model, space.cluster))
    lossy = build_preset("fp16", space.model, space.cluster)
    assert not domain.contains(lossy)
    allowed = replace(space.limits, allow=("lossy",))
    assert SpaceDomain(space=replace(space, limits=allowed)).contains(lossy)
    assert not domain.contains(Strategy(messages=(Message(parts=("fc.weight",)),)))


def test_the_walk_goes_on_where_it_is_faster_and_hardly_ever_where_it_is_much_slower(
    model: ModelSpec, cluster: ClusterSpec
) -> None:
    strategy = build_preset("ddp", model, cluster)

    def outcome(name: str, seconds: float | None) -> TriedStrategy:
        return TriedStrategy(strategy=strategy, strategy_id=name, seconds=seconds, memory_bytes=1)

    fast, slow, failed = outcome("fast", 1.0), outcome("slow", 3.0), outcome("failed", None)
    assert _walked([]) is None
    assert _walked([failed]) is None
    assert _walked([slow, failed, fast]) is fast
    assert _walked([fast, slow]) is fast
    little = [outcome(f"slower-{i}", 1.0 + 1e-6) for i in range(40)]
    assert sum(_walked([fast, one]) is one for one in little) > 30


def test_learned_goes_where_measurements_point(model: ModelSpec, cluster: ClusterSpec) -> None:
    """The simulator sees nothing in servers; on this cluster they are twice as fast, and that is found."""
    from autosync.search.proposers.learned import Learned

    ground = ground_of(model, cluster)
    learned = Learned(ground)
    history = [record_of(0, STOCK_DDP, ground, seconds=0.2)]
    rng = random.Random(6)

    def seconds(strategy: Strategy) -> float:
        served = sum(message.synchroniser.kind == "parameter_server" for message in strategy.messages)
        base = ground.simulator.predict([strategy])[0].seconds
        return base * (1.0 - 0.5 * served / len(strategy.messages))

    for preset in ("ps", "ddp", "sharded"):
        one = candidate(f"preset:{preset}", build_preset(preset, model, cluster), model, cluster)
        assert one.strategy is not None
        history.append(record_of(len(history), one, ground, seconds=seconds(one.strategy)))
    for _ in range(3):
        proposed = learned.propose(history, 4, random.Random(rng.random()))
        for one in proposed:
            assert one.strategy is not None
            history.append(record_of(len(history), one, ground, seconds=seconds(one.strategy)))
    last = [one.strategy for one in proposed if one.strategy is not None]
    kinds = [message.synchroniser.kind for strategy in last for message in strategy.messages]
    assert kinds.count("parameter_server") > len(kinds) / 2


def test_learned_asks_the_precise_simulator_about_what_the_quick_one_cannot_tell_apart(
    model: ModelSpec, cluster: ClusterSpec
) -> None:
    """To the screen all of these are the same: they have as many messages."""
    from autosync.search.proposers.learned import Learned

    class BySize(MessageCounter):
        def predict(self, strategies: Sequence[Strategy]) -> list[Prediction]:
            return [Prediction(seconds=1.0 / len(strategy.messages[0].parts)) for strategy in strategies]

    names = tuple(variable.name for variable in model.variables)
    pool = [Strategy(messages=(Message(parts=names[:n]), Message(parts=names[n:]))) for n in (1, 2)]
    ground = replace(ground_of(model, cluster, pool=pool, is_screened=True), known=(), simulator=BySize())
    proposed = Learned(ground).propose([], 2, random.Random(0))
    assert [one.strategy for one in proposed] == [pool[1], pool[0]]


@pytest.mark.parametrize(("slower", "first"), [(1.01, "other"), (1.2, "twin")])
def test_learned_comes_to_what_no_simulator_tells_from_a_measured_one_when_all_else_is_slower(
    model: ModelSpec, cluster: ClusterSpec, slower: float, first: str
) -> None:
    from autosync.search.proposers.learned import Learned

    names = tuple(variable.name for variable in model.variables)
    measured, twin = (Strategy(messages=(Message(parts=names[:n]), Message(parts=names[n:]))) for n in (1, 2))
    other = Strategy(messages=(Message(parts=names),))

    class Blind(MessageCounter):
        def predict(self, strategies: Sequence[Strategy]) -> list[Prediction]:
            return [Prediction(seconds=slower if strategy == other else 1.0) for strategy in strategies]

    ground = ground_of(model, cluster, pool=[measured, twin, other], is_screened=True)
    ground = replace(ground, known=(), simulator=Blind(), screen=Blind())
    history = [record_of(0, candidate("measured", measured, model, cluster), ground, seconds=1.0)]
    (proposed,) = Learned(ground).propose(history, 1, random.Random(0))
    assert proposed.strategy is (twin if first == "twin" else other)


def test_the_first_round_searches_several_times_from_scratch(model: ModelSpec, cluster: ClusterSpec) -> None:
    class Counter(MessageCounter):
        num_predicted = 0

        def predict(self, strategies: Sequence[Strategy]) -> list[Prediction]:
            self.num_predicted += len(strategies)
            return super().predict(strategies)

    def num_predicted(num_starts: int, *, is_first: bool) -> int:
        counter = Counter()
        ground = replace(ground_of(model, cluster, is_screened=True), simulator=counter, num_starts=num_starts)
        known = [one for one in ground.known if one.strategy is not None]
        history = [] if is_first else [record_of(0, known[0], ground, seconds=1.0)]
        Learned(ground).propose(history, 4, random.Random(0))
        return counter.num_predicted

    once, thrice = num_predicted(1, is_first=True), num_predicted(3, is_first=True)
    assert 2.5 * once < thrice < 3.5 * once
    assert num_predicted(3, is_first=False) < 1.5 * once
