"""What holds for every space: all it draws is legal and within its limits, and the same seed draws the same."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autosync import jsonio
from autosync.documents import to_plain
from autosync.errors import DoesNotApplyError
from autosync.specs.cluster import ClusterSpec, Node
from autosync.specs.cluster_file import load_cluster
from autosync.specs.model import ModelSpec, OptimizerSpec, Timeline, Variable
from autosync.specs.model_file import load_model
from autosync.strategy import legality
from autosync.strategy.canonical import canonical, strategy_id
from autosync.strategy.codecs import TopK
from autosync.strategy.parts import Partition
from autosync.strategy.presets import build_preset, preset_names
from autosync.strategy.representation import Message, Strategy
from autosync.strategy.space import Limits, Space
from autosync.strategy.synchronisers.all_reduce import AllReduce
from autosync.strategy.synchronisers.parameter_server import ParameterServer
from autosync.strategy.synchronisers.periodic import Periodic
from tests.helpers.random_specs import random_cluster, random_model

seeds = st.integers(0, 2**32 - 1)


def _limits(rng: random.Random) -> Limits:
    return Limits(
        allow=rng.choice(((), ("lossy",), ("stale",), ("lossy", "stale"))),
        max_parts=rng.choice((1, 3, 64)),
        uneven_parts=rng.random() < 0.7,
        slice_bytes=rng.choice(((), (1024, 2048))),
        max_lanes=rng.choice((1, 4)),
        max_priorities=rng.choice((1, 3, 256)),
        hierarchical=rng.random() < 0.7,
        local_proxies=rng.random() < 0.7,
        topologies=rng.choice((("native",), ("native", "ring", "tree", "halving_doubling"))),
        overlaps=rng.choice((("backward",), ("backward", "forward"))),
    )


def _space(rng: random.Random) -> Space:
    return Space(model=random_model(rng), cluster=random_cluster(rng), limits=_limits(rng))


@given(seeds)
def test_what_is_drawn_is_in_the_space(seed: int) -> None:
    rng = random.Random(seed)
    space = _space(rng)
    population = [space.sample(rng) for _ in range(3)]
    for _ in range(8):
        population.append(space.mutate(rng.choice(population), rng))
        population.append(space.crossover(rng.choice(population), rng.choice(population), rng))
    for strategy in population:
        assert space.problems(strategy) == []
        assert space.contains(strategy)
        assert set(strategy.classes) - {"exact"} <= set(space.limits.allow)


@given(seeds)
def test_the_canonical_form_of_a_draw_is_in_the_space(seed: int) -> None:
    rng = random.Random(seed)
    # Slices, lanes and priorities only ever get fewer; only one-worker clusters change the kind of synchronisers.
    space = Space(model=random_model(rng), cluster=random_cluster(rng), limits=Limits(slice_bytes=(1024,)))
    assert space.contains(canonical(space.sample(rng), space.model, space.cluster))


@given(seeds)
def test_the_same_seed_draws_the_same(seed: int) -> None:
    def draw() -> list[Strategy]:
        rng = random.Random(seed)
        space = _space(rng)
        first, second = space.sample(rng), space.sample(rng)
        return [first, space.mutate(first, rng), space.crossover(first, second, rng)]

    assert draw() == draw()


_DRAW = """
import random
from autosync import jsonio
from autosync.documents import to_plain
from autosync.strategy.space import Limits, Space
from tests.helpers.random_specs import random_cluster, random_model
drawn = []
for seed in range(20):
    rng = random.Random(seed)
    limits = Limits(allow=("lossy", "stale"), slice_bytes=(1024,))
    space = Space(model=random_model(rng), cluster=random_cluster(rng), limits=limits)
    first, second = space.sample(rng), space.sample(rng)
    third = space.mutate(first, rng)
    drawn += [to_plain(s) for s in (first, second, third, space.crossover(third, second, rng))]
print(jsonio.content_hash(drawn))
"""


def test_no_draw_depends_on_the_order_of_hashes(tmp_path: Path) -> None:
    def drawn(seed: str) -> str:
        root = str(Path(__file__).parents[3])
        environment = os.environ | {"PYTHONHASHSEED": seed, "PYTHONSAFEPATH": "1", "PYTHONPATH": root}
        command = [sys.executable, "-c", _DRAW]
        return subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=environment, check=True).stdout

    assert drawn("0") == drawn("1")


@given(seeds)
def test_mutants_have_another_id(seed: int) -> None:
    rng = random.Random(seed)
    space = _space(rng)
    before = space.sample(rng)
    after = space.mutate(before, rng)
    ids = [strategy_id(each, space.model, space.cluster) for each in (before, after)]
    if ids[0] == ids[1]:
        # Nothing to change: one form is all that this space can reach from here.
        forms = {strategy_id(space.sample(rng), space.model, space.cluster) for _ in range(20)}
        assert len(forms) == 1


def test_a_space_of_one_strategy_has_no_mutants() -> None:
    timeline = Timeline(device="none", source="computed", forward=(), backward=())
    variable = Variable(name="w", shape=(), use=0, ready=0)
    model = ModelSpec(name="m", optimizer=OptimizerSpec(name="SGD"), variables=(variable,), timeline=timeline)
    cluster = ClusterSpec(name="c", nodes=(Node(name="a", host="a", bandwidth_out=1.0, bandwidth_in=1.0),))
    limits = Limits(overlaps=("backward",), slice_bytes=(), max_lanes=1, max_priorities=1)
    space = Space(model=model, cluster=cluster, limits=limits)
    only = space.sample(random.Random(0))
    assert space.mutate(only, random.Random(1)) == only
    assert space.crossover(only, only, random.Random(1)) == only
    assert space.log10_size() == pytest.approx(0)


# A server has a lane for each band of use, and P3 slices of 160 kB; a lane a server is too many where many serve.
BANDS = {"byteps", "p3"}
LANE_A_SERVER = {"poseidon", "ps_load_balanced", "ps_partitioned", "ps_uneven_partitioned", "tictac"}


@pytest.mark.parametrize("cluster_name", ["4-hosts-2-ranks", "8-hosts-one-slow", "4-hosts-2-servers"])
def test_presets_are_points_of_the_default_space(cluster_name: str) -> None:
    model, cluster = load_model("bert_small"), load_cluster(cluster_name)
    space = Space(model=model, cluster=cluster)
    more = Limits(max_lanes=16, slice_bytes=(*Limits().slice_bytes, 160_000))
    wider = Space(model=model, cluster=cluster, limits=more)
    outside = BANDS | LANE_A_SERVER if cluster_name == "8-hosts-one-slow" else BANDS
    for name in preset_names():
        try:
            preset = build_preset(name, model, cluster)
        except DoesNotApplyError:
            continue
        if preset.is_exact:
            assert bool(space.problems(preset)) == (name in outside)
            assert wider.problems(preset) == []
        else:
            assert "outside the limits" in space.problems(preset)[0].what


def test_some_lossy_and_stale_presets_are_points_of_a_space_that_allows_them() -> None:
    """The others have numbers that the limits have not, and `dgc` a momentum, which is no matter of speed."""
    model, cluster = load_model("ncf"), load_cluster("4-hosts")
    space = Space(model=model, cluster=cluster, limits=Limits(allow=("lossy", "stale")))
    built = {name: build_preset(name, model, cluster) for name in preset_names() if _applies(name, model, cluster)}
    inside = {name for name, preset in built.items() if not preset.is_exact and not space.problems(preset)}
    assert inside == {"bf16", "fp16", "sign", "ssp", "local_sgd", "pipedream", "pipedream_2bw"}
    wider = Limits(allow=("lossy", "stale"), codecs=(TopK(ratio=0.001, momentum=0.9),))
    assert Space(model=model, cluster=cluster, limits=wider).problems(built["dgc"]) == []
    assert {"dgc", "diloco", "int8", "power_sgd"} < built.keys()


def _applies(name: str, model: ModelSpec, cluster: ClusterSpec) -> bool:
    try:
        build_preset(name, model, cluster)
    except DoesNotApplyError:
        return False
    return True


def test_parents_may_come_from_outside_the_limits(model: ModelSpec, cluster: ClusterSpec, strategy: Strategy) -> None:
    space = Space(model=model, cluster=cluster)
    assert not space.contains(strategy)
    rng = random.Random(3)
    for _ in range(200):
        child = space.crossover(space.mutate(strategy, rng), space.sample(rng), rng)
        assert legality.problems(child, model, cluster) == []


def test_children_take_each_variable_from_one_parent(model: ModelSpec, cluster: ClusterSpec) -> None:
    def whole(server: str) -> Strategy:
        ways = [Message(parts=(v.name,), synchroniser=ParameterServer(server=server)) for v in model.variables]
        return Strategy(messages=tuple(ways))

    rng = random.Random(0)
    mixed = 0
    for _ in range(50):
        child = Space(model=model, cluster=cluster).crossover(whole("node-0"), whole("node-1"), rng)
        servers = {str(getattr(message.synchroniser, "server", "")) for message in child.messages}
        assert servers <= {"node-0", "node-1"}
        assert sorted(part for message in child.messages for part in message.parts) == sorted(
            variable.name for variable in model.variables
        )
        mixed += len(servers) == 2
    assert mixed > 25


def test_what_lies_outside_the_limits_is_told(model: ModelSpec, cluster: ClusterSpec, strategy: Strategy) -> None:
    limits = Limits(
        overlaps=("backward",), synchronisers=("all_reduce", "sharded", "parameter_server"), max_parts=3, max_lanes=1
    )
    space = Space(model=model, cluster=cluster, limits=limits)
    found = [str(problem) for problem in space.problems(strategy)]
    assert "overlap: forward is outside the limits (limits: backward)" in found
    assert "partitions.fc2.sizes: 4 parts is outside the limits (limits: up to 3)" in found
    assert "messages[1].codec: cast is outside the limits (limits: None)" in found
    assert "messages[1].lane: 1 is outside the limits (limits: 0 to 0)" in found
    assert "messages[2].synchroniser.staleness: 2 is outside the limits (limits: 0)" in found
    assert "messages[3].slice_bytes: 1024 is outside the limits" in " ".join(found)
    assert any(text.startswith("messages[6].synchroniser: periodic is outside the limits") for text in found)
    assert any(text.startswith("messages[7].synchroniser: sparse_gather is outside the limits") for text in found)


def test_more_limits(model: ModelSpec, cluster: ClusterSpec) -> None:
    def problems(limits: Limits, **fields: object) -> list[str]:
        names = tuple(variable.name for variable in model.variables)
        message = replace(Message(parts=names), **fields)
        space = Space(model=model, cluster=cluster, limits=limits)
        return [str(problem) for problem in space.problems(Strategy(messages=(message,)))]

    proxy = ParameterServer(server="node-0", local_proxy=True)
    assert problems(Limits()) == []
    assert problems(Limits(), synchroniser=proxy) == []
    assert len(problems(Limits(local_proxies=False), synchroniser=proxy)) == 1
    assert len(problems(Limits(server_updates=("worker",)), synchroniser=proxy)) == 1
    assert len(problems(Limits(topologies=("native",)), synchroniser=AllReduce(topology="ring"))) == 1
    assert len(problems(Limits(hierarchical=False), synchroniser=AllReduce(hierarchical=True))) == 1
    assert len(problems(Limits(max_priorities=4), priority=4)) == 1
    assert problems(Limits(allow=("stale",)), synchroniser=Periodic(every=4)) == []
    assert len(problems(Limits(allow=("stale",)), synchroniser=Periodic(every=5))) == 1
    assert len(problems(Limits(allow=("stale",), outer_optimizers=(None,)), synchroniser=Periodic(every=4))) == 0


def test_even_parts_only(model: ModelSpec, cluster: ClusterSpec) -> None:
    def strategy(*sizes: int) -> Strategy:
        parts = [f"bias[{index}]" for index in range(len(sizes))]
        rest = [variable.name for variable in model.variables if variable.name != "bias"]
        messages = (*[Message(parts=(part,)) for part in parts], Message(parts=tuple(rest)))
        return Strategy(partitions={"bias": Partition(sizes=sizes)}, messages=messages)

    space = Space(model=model, cluster=cluster, limits=Limits(uneven_parts=False))
    assert space.contains(strategy(4, 3, 3))
    assert not space.contains(strategy(3, 4, 3))
    assert not space.contains(strategy(6, 4))
    assert Space(model=model, cluster=cluster).contains(strategy(6, 4))


def test_illegal_strategies_are_not_in(model: ModelSpec, cluster: ClusterSpec) -> None:
    space = Space(model=model, cluster=cluster)
    problems = space.problems(Strategy(messages=(Message(parts=("fc1",)),)))
    assert [problem.rule for problem in problems] == ["each part is in one message"]


@pytest.mark.parametrize("kinds", [("sufficient_factors",), ("sparse_gather",), ("periodic",)])
def test_a_space_without_any_strategy_is_refused(
    kinds: tuple[str, ...], model: ModelSpec, cluster: ClusterSpec
) -> None:
    with pytest.raises(DoesNotApplyError, match="no synchroniser within the limits can carry"):
        Space(model=model, cluster=cluster, limits=replace(Limits(), synchronisers=kinds))


def test_a_name_is_not_inherited(model: ModelSpec, cluster: ClusterSpec, strategy: Strategy) -> None:
    space = Space(model=model, cluster=cluster)
    rng = random.Random(0)
    assert {space.mutate(strategy, rng).name for _ in range(100)} == {""}
    assert space.crossover(strategy, strategy, rng).name == ""


def test_drawn_strategies_can_be_hashed(model: ModelSpec, cluster: ClusterSpec) -> None:
    space = Space(model=model, cluster=cluster)
    assert jsonio.content_hash(to_plain(space.sample(random.Random(0))))


def test_slices_too_small_for_the_model_are_not_drawn() -> None:
    model, cluster = load_model("vgg16"), load_cluster("4-hosts")
    smallest = legality.smallest_slice_bytes(model)
    limits = Limits(slice_bytes=(1024, smallest - 1, smallest), topologies=("native",))
    space, rng = Space(model=model, cluster=cluster, limits=limits), random.Random(0)
    first, second = space.sample(rng), space.sample(rng)
    population = [first, second, space.crossover(first, second, rng), *(space.mutate(first, rng) for _ in range(30))]
    population += [space.sample(rng) for _ in range(10)]
    assert {m.slice_bytes for strategy in population for m in strategy.messages} == {None, smallest}
    assert not any(space.problems(strategy) for strategy in population)
    without = Space(model=model, cluster=cluster, limits=replace(limits, slice_bytes=(smallest,)))
    assert space.log10_size() == without.log10_size()
