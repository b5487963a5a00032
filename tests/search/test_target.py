"""The domain of stock DDP: every move stays in it, and every strategy in it can be emitted."""

import random
from dataclasses import replace

import pytest

from autosync.search.target import DdpDomain, ddp_limits
from autosync.specs.cluster import ClusterSpec, Node
from autosync.specs.model import ModelSpec
from autosync.specs.model_file import load_model
from autosync.strategy.canonical import strategy_id
from autosync.strategy.codecs import Cast, PowerSGD
from autosync.strategy.emit.ddp import buckets_under, settings_for
from autosync.strategy.presets import build_preset
from autosync.strategy.space import Space

NODES = tuple(Node(name=f"n{i}", host=f"h{i}", bandwidth_out=1e8, bandwidth_in=1e8) for i in range(3))
THREE = ClusterSpec(name="three", nodes=NODES)


@pytest.fixture(scope="module")
def resnet() -> ModelSpec:
    return load_model("resnet18")


def test_every_move_stays_in_the_domain_and_is_another_mostly(resnet: ModelSpec) -> None:
    domain = DdpDomain(model=resnet, cluster=THREE)
    rng = random.Random(0)
    strategy, other = domain.sample(rng), domain.sample(rng)
    seen = set()
    for _ in range(60):
        strategy = domain.mutate(strategy, rng)
        crossed = domain.crossover(strategy, other, rng)
        other = domain.sample(rng)
        for one in (strategy, crossed, other):
            assert domain.contains(one)
            settings = settings_for(one, resnet, THREE)
            built = {frozenset(v.name for v in bucket) for bucket in buckets_under(settings, resnet, THREE)}
            assert built == {frozenset(message.parts) for message in one.messages}
            seen.add(strategy_id(one, resnet, THREE))
    assert len(seen) > 90


def test_the_same_seed_draws_the_same(resnet: ModelSpec) -> None:
    def drawn() -> list[object]:
        domain, rng = DdpDomain(model=resnet, cluster=THREE), random.Random(7)
        found = [domain.sample(rng)]
        for _ in range(9):
            found.append(domain.mutate(found[-1], rng))
        return list(found)

    assert drawn() == drawn()


def test_sizes_are_spread_over_orders_of_magnitude(resnet: ModelSpec) -> None:
    domain, rng = DdpDomain(model=resnet, cluster=THREE), random.Random(1)
    counts = sorted(len(domain.sample(rng).messages) for _ in range(100))
    assert counts[0] <= 2
    assert counts[-1] >= 20


def test_codecs_only_where_they_are_allowed(resnet: ModelSpec) -> None:
    exact, lossy = DdpDomain(model=resnet, cluster=THREE), DdpDomain(model=resnet, cluster=THREE, allow=("lossy",))
    rng = random.Random(0)
    drawn = [lossy.sample(rng) for _ in range(40)]
    kinds = {message.codec for one in drawn for message in one.messages}
    assert None in kinds
    assert Cast(dtype="float16") in kinds
    assert any(isinstance(kind, PowerSGD) for kind in kinds)
    assert Cast() not in kinds, "torch casts to bfloat16 on NCCL only"
    assert all(lossy.contains(one) for one in drawn)
    assert [exact.contains(one) for one in drawn] == [one.is_exact for one in drawn]
    on_nccl = DdpDomain(model=resnet, cluster=replace(THREE, backend="nccl"), allow=("lossy",))
    assert any(m.codec == Cast() for _ in range(40) for m in on_nccl.sample(rng).messages)


def test_where_rows_are_gathered_no_strategy_has_a_codec() -> None:
    model, rng = load_model("ncf_small"), random.Random(3)
    domain = DdpDomain(model=model, cluster=THREE, allow=("lossy",))
    encoded = build_preset("fp16", model, THREE)
    assert not domain.contains(encoded)
    for _ in range(20):
        for one in (domain.sample(rng), domain.mutate(encoded, rng), domain.crossover(encoded, encoded, rng)):
            assert domain.contains(one)
            assert one.is_exact


@pytest.mark.parametrize("preset", ["ps", "sharded", "p3", "all_reduce_chunks", "ddp"])
def test_whatever_is_near_is_in_the_domain(preset: str, resnet: ModelSpec) -> None:
    domain = DdpDomain(model=resnet, cluster=THREE)
    strategy = build_preset(preset, resnet, THREE)
    near = domain.nearest(strategy)
    assert domain.contains(near)
    assert (near == strategy) == domain.contains(strategy)


def test_moves_start_from_any_strategy_of_the_space(resnet: ModelSpec) -> None:
    domain, rng = DdpDomain(model=resnet, cluster=THREE), random.Random(2)
    space = Space(model=resnet, cluster=THREE)
    for _ in range(10):
        strategy = space.sample(rng)
        assert domain.contains(domain.mutate(strategy, rng))
        assert domain.contains(domain.crossover(strategy, space.sample(rng), rng))


def test_its_limits_make_a_space(resnet: ModelSpec) -> None:
    space = Space(model=resnet, cluster=THREE, limits=ddp_limits(("lossy", "stale")))
    assert space.limits.allow == ("lossy",)
    strategy = space.sample(random.Random(0))
    assert {message.synchroniser.kind for message in strategy.messages} == {"all_reduce"}
