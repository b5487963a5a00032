"""The memory of ranks: what counts, and that plans which do not fit the stated memory of nodes are refused."""

from __future__ import annotations

from dataclasses import replace

import pytest

from autosync.plan.lowering import lower
from autosync.search.domain import SpaceDomain
from autosync.search.node_memory import NodeMemory, rank_bytes
from autosync.search.stage_memory import stage_rank_bytes
from autosync.search.target import DdpDomain
from autosync.specs.cluster import ClusterSpec, Node
from autosync.specs.model import ModelSpec, OptimizerSpec
from autosync.specs.untrained import Untrained
from autosync.strategy.dividing.divided import divided_strategy
from autosync.strategy.presets import build_preset
from autosync.strategy.representation import Strategy
from autosync.strategy.space import Space
from autosync.strategy.stages import ModelStage, PipelineSchedule
from tests.helpers.staged_models import chain, nodes


@pytest.fixture
def hosts() -> ClusterSpec:
    nodes = tuple(Node(name=f"n{i}", host=f"n{i}", bandwidth_out=1e9, bandwidth_in=1e9) for i in range(4))
    return ClusterSpec(name="hosts", nodes=nodes)


@pytest.fixture
def adam(model: ModelSpec) -> ModelSpec:
    return replace(model, optimizer=OptimizerSpec(name="Adam", state_slots=2))


def test_shards_keep_a_share_of_the_optimizers_state(adam: ModelSpec, hosts: ClusterSpec) -> None:
    size = adam.num_bytes
    whole = rank_bytes(lower(build_preset("all_reduce_per_variable", adam, hosts), adam, hosts), adam)
    # Parameters, gradients and twice the state; each gradient travels as it is.
    assert whole == [4 * size] * 4
    sharded = rank_bytes(lower(build_preset("sharded", adam, hosts), adam, hosts), adam)
    assert all(2 * size < one < 4 * size for one in sharded)


def test_frozen_parameters_are_there_once_on_every_worker(adam: ModelSpec, hosts: ClusterSpec) -> None:
    frozen = (Untrained(name="frozen", shape=(100, 10), reason="frozen"),)
    plan = lower(build_preset("ddp", adam, hosts), adam, hosts)
    expected = [one + 4000.0 for one in rank_bytes(plan, adam)]
    assert rank_bytes(plan, replace(adam, untrained=frozen)) == expected
    chained, cluster = chain(4, batch_size=4), nodes(1, 1)
    stages = [ModelStage(before=0, ranks=(0,)), ModelStage(before=2, ranks=(1,))]
    plan = lower(divided_strategy(chained, stages, 4), chained, cluster)
    expected = [one + 4000.0 for one in stage_rank_bytes(plan, chained)]
    assert stage_rank_bytes(plan, replace(chained, untrained=frozen)) == expected


def test_a_server_has_what_the_workers_have_not(adam: ModelSpec, hosts: ClusterSpec) -> None:
    spare = Node(name="spare", host="spare", role="server", devices=0, bandwidth_out=1e9, bandwidth_in=1e9)
    cluster = replace(hosts, nodes=(*hosts.nodes, spare))
    *workers, server = rank_bytes(lower(build_preset("ps", adam, cluster), adam, cluster), adam)
    assert server >= 3 * adam.num_bytes
    assert all(one < 4 * adam.num_bytes for one in workers)


def test_what_has_no_room_is_not_in_the_domain(adam: ModelSpec, hosts: ClusterSpec) -> None:
    def limited(share: float) -> ClusterSpec:
        nodes = tuple(replace(node, memory_bytes=int(share * adam.num_bytes)) for node in hosts.nodes)
        return replace(hosts, nodes=nodes)

    strategy = build_preset("all_reduce_per_variable", adam, hosts)
    sharded = build_preset("sharded", adam, hosts)
    assert SpaceDomain(space=Space(model=adam, cluster=limited(4.1))).contains(strategy)
    tight = SpaceDomain(space=Space(model=adam, cluster=limited(3.9)))
    assert not tight.contains(strategy)
    assert tight.contains(sharded)
    assert NodeMemory(adam, hosts).fits(lower(strategy, adam, hosts))
    ddp = build_preset("ddp", adam, hosts)
    assert DdpDomain(model=adam, cluster=limited(6.0)).contains(ddp)
    assert not DdpDomain(model=adam, cluster=limited(1.0)).contains(ddp)


def test_with_stages_activations_under_way_count() -> None:
    model = chain(4, batch_size=8)
    cuts = tuple(replace(cut, held_bytes=1000 * cut.before) for cut in model.timeline.cuts)
    model = replace(model, timeline=replace(model.timeline, cuts=cuts))
    stages = [ModelStage(before=0, ranks=(0,)), ModelStage(before=2, ranks=(1,))]
    in_turn, all_first = (
        _stage_bytes(divided_strategy(model, stages, 8, schedule), model) for schedule in ("1f1b", "gpipe")
    )
    # A microbatch has a fourth of the profiled batch, and each layer holds 1000 bytes of that.
    params, own = model.num_bytes, model.variable("w0").num_bytes + model.variable("w1").num_bytes
    # The two examples whose gradients are compared are a microbatch; two gradients of the whole model are there then.
    assert in_turn[0] == max(params + own + 2 * 500, 3 * params + 1000) + 250
    assert all_first[0] == max(params + own + 8 * 500, 3 * params + 1000) + 250
    small = nodes(1, 1)
    small = replace(small, nodes=tuple(replace(node, memory_bytes=params + own + 3000) for node in small.nodes))
    memory = NodeMemory(model, small)
    assert memory.fits(lower(divided_strategy(model, stages, 8), model, small))
    assert not memory.fits(lower(divided_strategy(model, stages, 8, "gpipe"), model, small))


def test_activations_that_are_computed_again_count_once() -> None:
    model = chain(4, batch_size=8, sizes=(10, 10, 10))
    cuts = tuple(replace(cut, held_bytes=1000 * cut.before) for cut in model.timeline.cuts)
    model = replace(model, timeline=replace(model.timeline, cuts=cuts))
    stages = [ModelStage(before=0, ranks=(0,)), ModelStage(before=2, ranks=(1,))]
    kept, again = (
        _stage_bytes(divided_strategy(model, stages, 4, "gpipe", recompute=recompute), model)
        for recompute in (False, True)
    )
    params, own = model.num_bytes, model.variable("w2").num_bytes + model.variable("w3").num_bytes
    # Four microbatches of four examples each.
    assert kept[1] == params + own + 4 * 1000 + 500
    entering = 4 * 10 * 4
    assert again[1] == max(params + own + 4 * entering + 1000, 2 * params + 2000) + 500


def test_without_a_flush_each_version_that_passes_need_has_a_copy() -> None:
    model, cluster = chain(6, batch_size=4), nodes(1, 1, 1)
    cuts = tuple(replace(cut, held_bytes=1000 * cut.before) for cut in model.timeline.cuts)
    model = replace(model, timeline=replace(model.timeline, cuts=cuts))
    stages = [ModelStage(before=2 * number, ranks=(number,)) for number in range(3)]
    own = [sum(model.variable(f"w{name}").num_bytes for name in (2 * n, 2 * n + 1)) for n in range(3)]
    params = model.num_bytes

    def of(schedule: PipelineSchedule, microbatches: int) -> list[float]:
        strategy = divided_strategy(model, stages, microbatches, schedule)
        return stage_rank_bytes(lower(strategy, model, cluster), model)

    def most(copies: tuple[int, int, int], num_examples: int) -> list[float]:
        """Three, two and one microbatch are under way, one less between two steps. Two examples are compared."""
        kept = 2 * 1000 * num_examples / 4
        compared = 3 * kept * 2 / num_examples
        check = max(params + 3 * kept, 2 * params + compared)
        return [
            params
            + max(
                copies[n] * own[n] + (3 - n) * kept, copies[n] * own[n] + (2 - n) * kept + 2 * own[n] + compared, check
            )
            + kept / 2
            for n in range(3)
        ]

    # All twelve examples in one, and copies of as many versions as microbatches are under way.
    assert of("stashing", 1) == pytest.approx(most((1 + 3, 1 + 2, 1), 12))
    # With four microbatches those under way are of two steps, except in the last stage.
    assert of("stashing", 4) == pytest.approx(most((1 + 2, 1 + 2, 1), 3))
    assert of("2bw", 4) == pytest.approx(most((1 + 3, 1 + 3, 1 + 3), 3))


def _stage_bytes(strategy: Strategy, model: ModelSpec) -> list[float]:
    return stage_rank_bytes(lower(strategy, model, nodes(1, 1)), model)
