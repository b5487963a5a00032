"""Each rule of legality has a strategy that breaks it, with the place, the mistake and the rule."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from autosync.errors import DoesNotApplyError, format_path
from autosync.specs.cluster import ClusterSpec
from autosync.specs.model import ModelSpec, OptimizerSpec
from autosync.strategy import legality
from autosync.strategy.codecs import Cast, Int8, PowerSGD, Sign, TopK
from autosync.strategy.parts import Partition
from autosync.strategy.representation import Message, Overlap, Strategy, all_parts
from autosync.strategy.shapes.trees import TreeShare
from autosync.strategy.synchronisers.all_reduce import AllReduce
from autosync.strategy.synchronisers.parameter_server import ParameterServer
from autosync.strategy.synchronisers.periodic import Periodic
from autosync.strategy.synchronisers.sharded import Sharded
from autosync.strategy.synchronisers.sparse_gather import SparseGather
from autosync.strategy.synchronisers.sufficient_factors import SufficientFactors

LAMB = OptimizerSpec(name="LAMB", elementwise=False, per_variable=True)
ADAM = OptimizerSpec(name="Adam", state_slots=2)
MakeStrategy = Callable[..., Strategy]


@dataclass(frozen=True, kw_only=True)
class Case:
    """A strategy that breaks one rule: its messages, what the model and the cluster are, and the problem in words."""

    messages: tuple[Message, ...] = ()
    partitions: Mapping[str, Partition] = field(default_factory=dict)
    model: Mapping[str, Any] = field(default_factory=dict)
    backend: str = "gloo"
    overlap: Overlap = "backward"
    problem: str


def _on(part: str, synchroniser: Any = None, **fields: Any) -> tuple[Message, ...]:
    return (Message(parts=(part,), synchroniser=synchroniser or AllReduce(), **fields),)


BROKEN = {
    "unknown variable": Case(
        partitions={"fc.wieght": Partition(sizes=(8, 8))},
        problem="partitions.fc.wieght: unknown variable 'fc.wieght' (known: table, fc.weight, fc.bias, half, scale); "
        "did you mean 'fc.weight'?",
    ),
    "axis": Case(
        partitions={"fc.bias": Partition(axis=1, sizes=(8, 8))},
        problem="partitions.fc.bias.axis: fc.bias has no axis 1 (its axes: 0 to 0)",
    ),
    "scalar": Case(
        partitions={"scale": Partition(sizes=(1,))},
        problem="partitions.scale.axis: scale has no axis 0 (its axes: none, it is a scalar)",
    ),
    "sum of sizes": Case(
        partitions={"fc.weight": Partition(sizes=(8, 9))},
        problem="partitions.fc.weight.sizes: the parts of fc.weight make 17 along axis 0 "
        "(they must make its size there, 16)",
    ),
    "cut without elementwise optimizer": Case(
        partitions={"fc.weight": Partition(sizes=(8, 8))},
        messages=_on("fc.weight[0]") + _on("fc.weight[1]"),
        model={"optimizer": LAMB},
        problem="partitions.fc.weight: fc.weight is partitioned "
        "(parts are updated apart, which needs an elementwise optimizer; LAMB is none)",
    ),
    "overlap forward with an optimizer over all": Case(
        overlap="forward",
        model={"optimizer": OptimizerSpec(name="Prodigy", elementwise=False, per_variable=False)},
        problem="overlap: overlap forward (messages are updated one by one, which needs an optimizer that updates each "
        "variable by itself; Prodigy updates all of them together)",
    ),
    "overlap forward with an optimizer that nobody has tried": Case(
        overlap="forward",
        model={"optimizer": OptimizerSpec(name="Own", elementwise=False)},
        problem="overlap: overlap forward (messages are updated one by one, which needs an optimizer that updates each "
        "variable by itself; Own was not tried for that (profile the model again))",
    ),
    "two dtypes": Case(
        messages=(Message(parts=("half", "scale")),),
        problem="messages[0].parts: parts of float16 and float32 (a message has one dtype)",
    ),
    "unknown server": Case(
        messages=_on("fc.bias", ParameterServer(server="bb")),
        problem="messages[0].synchroniser.server: unknown node 'bb' (known: a, b, c, s; did you mean 'b'?)",
    ),
    "server without device": Case(
        messages=_on("fc.bias", ParameterServer(server="s")),
        backend="nccl",
        problem="messages[0].synchroniser.server: s has no device (nccl runs on devices only)",
    ),
    "server update": Case(
        messages=_on("fc.bias", ParameterServer(server="a")),
        model={"optimizer": LAMB},
        problem="messages[0].synchroniser: updates at a server with LAMB (needs an elementwise optimizer)",
    ),
    "sharded update": Case(
        messages=_on("fc.bias", Sharded()),
        model={"optimizer": LAMB},
        problem="messages[0].synchroniser: sharded updates with LAMB (needs an elementwise optimizer)",
    ),
    "halving among three": Case(
        messages=_on("fc.bias", Sharded(topology="halving_doubling")),
        problem="messages[0].synchroniser.topology: halving_doubling on 3 workers "
        "(reduce-scatter by halving needs a power of two)",
    ),
    "staleness with clipping": Case(
        messages=_on("fc.bias", ParameterServer(server="a", staleness=1)),
        model={"clip_norm": 1.0},
        problem="messages[0].synchroniser.staleness: staleness in a task that clips or scales "
        "(clipping and loss scaling need every gradient of the step before the first update)",
    ),
    "staleness with scaling": Case(
        messages=_on("fc.bias", ParameterServer(server="a", staleness=1)),
        model={"loss_scaling": True},
        problem="messages[0].synchroniser.staleness: staleness in a task that clips or scales "
        "(clipping and loss scaling need every gradient of the step before the first update)",
    ),
    "averages with scaling": Case(
        messages=_on("fc.bias", Periodic(every=2)),
        model={"loss_scaling": True},
        problem="messages[0].synchroniser: periodic averaging in a task that scales its loss "
        "(a worker whose own gradients overflow would leave out the step alone)",
    ),
    "averages of weighed steps": Case(
        messages=_on("fc.bias", Periodic(every=2)),
        model={"weighs": True},
        problem="messages[0].synchroniser: periodic in a task that weighs its batches "
        "(each rank trains alone, and nothing says how much a rank's own steps are worth)",
    ),
    "codec with scaling": Case(
        messages=_on("fc.bias", codec=Cast()),
        model={"loss_scaling": True},
        problem="messages[0].codec: cast in a task that scales its loss "
        "(scaled gradients overflow now and then, and no codec takes infinities)",
    ),
    "several parts as rows": Case(
        messages=(Message(parts=("table", "fc.bias"), synchroniser=SparseGather()),),
        problem="messages[0].parts: several parts travel as rows (rows travel alone: one part in the message)",
    ),
    "rows of a dense variable": Case(
        messages=_on("fc.bias", ParameterServer(server="a", sparse=True)),
        problem="messages[0].synchroniser: fc.bias is dense (rows need an embedding)",
    ),
    "rows without sparse optimizer": Case(
        messages=_on("table", SparseGather()),
        model={"optimizer": ADAM},
        problem="messages[0].synchroniser: rows with Adam (needs an optimizer that takes sparse gradients)",
    ),
    "rows with clipping": Case(
        messages=_on("table", SparseGather()),
        model={"clip_norm": 1.0},
        problem="messages[0].synchroniser: rows in a task that clips or scales "
        "(clipping and scaling are for dense gradients)",
    ),
    "rows in slices": Case(
        messages=_on("table", SparseGather(), slice_bytes=1024),
        problem="messages[0].slice_bytes: rows in slices (rows are not sliced: their number is known at run time only)",
    ),
    "several parts as factors": Case(
        messages=(Message(parts=("fc.weight", "fc.bias"), synchroniser=SufficientFactors()),),
        problem="messages[0].parts: several parts travel as factors (factors travel alone: one part in the message)",
    ),
    "factors of a dense variable": Case(
        messages=_on("fc.bias", SufficientFactors()),
        problem="messages[0].synchroniser: fc.bias is dense "
        "(factors need a linear variable: a matrix that is used once a step and not tied)",
    ),
    "factors with accumulation": Case(
        messages=_on("fc.weight", SufficientFactors()),
        model={"accumulation_steps": 2},
        problem="messages[0].synchroniser: factors with gradient accumulation "
        "(factors of several microsteps do not add up)",
    ),
    "factors in slices": Case(
        messages=_on("fc.weight", SufficientFactors(), slice_bytes=1024),
        problem="messages[0].slice_bytes: factors in slices (factors are not sliced: both are needed to rebuild)",
    ),
    "codec of rows": Case(
        messages=_on("table", SparseGather(), codec=Sign()),
        problem="messages[0].codec: sign with sparse_gather (codecs encode dense gradients)",
    ),
    "codec of sparse server": Case(
        messages=_on("table", ParameterServer(server="a", sparse=True), codec=Cast()),
        problem="messages[0].codec: cast with sparse parameter_server (codecs encode dense gradients)",
    ),
    "codec of averages": Case(
        messages=_on("fc.bias", Periodic(every=2), codec=Cast()),
        problem="messages[0].codec: cast with periodic (codecs encode dense gradients)",
    ),
    "no sum of codes in shards": Case(
        messages=_on("fc.bias", Sharded(), codec=Int8()),
        problem="messages[0].codec: int8 where sums are passed on (only a codec whose results can be summed: cast)",
    ),
    "no sum of codes in nodes": Case(
        messages=_on("fc.bias", AllReduce(hierarchical=True), codec=TopK()),
        problem="messages[0].codec: top_k where sums are passed on (only a codec whose results can be summed: cast)",
    ),
    "no sum of codes at a proxy": Case(
        messages=_on("fc.bias", ParameterServer(server="a", local_proxy=True), codec=Sign()),
        problem="messages[0].codec: sign where sums are passed on (only a codec whose results can be summed: cast)",
    ),
    "no tree for what is gathered": Case(
        messages=_on("fc.bias", AllReduce(topology="tree"), codec=Sign()),
        problem="messages[0].synchroniser.topology: tree with sign (what cannot be summed is gathered: native or ring)",
    ),
    "no local proxy for rows": Case(
        messages=_on("table", ParameterServer(server="a", sparse=True, local_proxy=True)),
        problem=(
            "messages[0].synchroniser.local_proxy: a local proxy for rows "
            "(rows of a node's ranks are not merged on the way: each rank sends its own)"
        ),
    ),
    "cast of halves": Case(
        messages=_on("half", codec=Cast()),
        problem="messages[0].codec: float16 cast to bfloat16 (a cast must make numbers smaller)",
    ),
    "power_sgd at a server": Case(
        messages=_on("fc.weight", ParameterServer(server="a"), codec=PowerSGD()),
        problem="messages[0].codec: power_sgd with parameter_server (its factors are summed by all: all_reduce only)",
    ),
    "power_sgd in slices": Case(
        messages=_on("fc.weight", codec=PowerSGD(), slice_bytes=1024),
        problem="messages[0].slice_bytes: power_sgd in slices (a factor needs its whole matrix)",
    ),
    "rank too high": Case(
        messages=_on("fc.weight", codec=PowerSGD(rank=8)),
        problem="messages[0].codec: rank 8 for fc.weight of shape [16, 8] (rank below both sides)",
    ),
    "levels without tags": Case(
        messages=_on("fc.bias", Sharded(topology="levels")),
        backend="nccl",
        problem="messages[0].synchroniser.topology: levels on nccl (no tags: native, or levels of an all-reduce)",
    ),
    "levels under a codec that gathers": Case(
        messages=_on("fc.bias", AllReduce(topology="levels"), codec=Sign()),
        problem="messages[0].synchroniser.topology: levels with sign "
        "(what cannot be summed is gathered: native or ring)",
    ),
    "levels and hierarchical": Case(
        messages=_on("fc.bias", AllReduce(topology="levels", hierarchical=True)),
        problem="messages[0].synchroniser.hierarchical: hierarchical with levels (levels and trees have nodes already)",
    ),
    "trees for others": Case(
        messages=_on("fc.bias", AllReduce(topology="trees", trees=(TreeShare(up=(0, 0)),))),
        problem="messages[0].synchroniser.trees: trees over 2 ranks (three has 3 workers, and trees name each of them)",
    ),
    "a worker is absent": Case(
        messages=_on("fc.bias", AllReduce(topology="trees", trees=(TreeShare(up=(0, 0, -1)),))),
        problem="messages[0].synchroniser.trees: rank 2 is absent in a tree (only servers may be absent)",
    ),
    "shards on servers": Case(
        messages=_on("fc.bias", Sharded(topology="trees", trees=(TreeShare(up=(3, 3, 3, 3)),))),
        problem="messages[0].synchroniser.trees: servers in trees of shards (workers alone own shards and pass them "
        "on)",
    ),
    "topology without tags": Case(
        messages=_on("fc.bias", AllReduce(topology="ring")),
        backend="nccl",
        problem="messages[0].synchroniser.topology: ring on nccl (no tags: native, or levels of an all-reduce)",
    ),
    "priority in a static order": Case(
        messages=_on("fc.bias", priority=1),
        backend="nccl",
        problem="messages[0].priority: priority 1 on nccl (it runs a communicator in one static order: priority 0)",
    ),
    "too many lanes": Case(
        messages=_on("fc.bias", lane=8),
        backend="nccl",
        problem="messages[0].lane: lane 8 on nccl (0 to 7)",
    ),
}


@pytest.mark.parametrize("case", BROKEN.values(), ids=BROKEN.keys())
def test_each_rule(case: Case, model: ModelSpec, cluster: ClusterSpec, make_strategy: MakeStrategy) -> None:
    strategy = replace(make_strategy(*case.messages, partitions=case.partitions), overlap=case.overlap)
    found = legality.problems(strategy, replace(model, **case.model), replace(cluster, backend=case.backend))
    assert [str(problem) for problem in found] == [case.problem]


def test_on_one_worker_no_momentum_is_lost_and_nothing_weighs(
    model: ModelSpec, make_cluster: Callable[..., ClusterSpec], make_strategy: MakeStrategy
) -> None:
    alone, encoded = make_cluster(1), make_strategy(Message(parts=("fc.bias",), codec=TopK(momentum=0.9)))
    (problem,) = legality.problems(encoded, model, alone)
    what = "messages[0].codec: top_k with momentum on one worker"
    assert str(problem) == f"{what} (its momentum would be lost: nothing is sent)"
    plain = make_strategy(Message(parts=("fc.bias",), codec=TopK()))
    averaged = make_strategy(Message(parts=("fc.bias",), synchroniser=Periodic(every=2)))
    for cluster, strategy, weighing in (
        (make_cluster(2), encoded, False),
        (alone, plain, False),
        (alone, averaged, True),
        (make_cluster(2), make_strategy(Message(parts=("fc.bias",), synchroniser=Periodic(every=1))), True),
    ):
        assert legality.problems(strategy, replace(model, weighs=weighing), cluster) == []


def test_too_many_parts(model: ModelSpec, cluster: ClusterSpec, make_strategy: MakeStrategy) -> None:
    long = replace(model.variables[2], shape=(legality.MAX_PARTS + 1,))
    model = replace(model, variables=(*model.variables[:2], long, *model.variables[3:]))
    strategy = make_strategy(partitions={"fc.bias": Partition(sizes=(1,) * (legality.MAX_PARTS + 1))})
    (problem,) = legality.problems(strategy, model, cluster)
    assert str(problem) == "partitions.fc.bias.sizes: 4097 parts (at most 4096)"


def test_slices_too_small_for_the_model(model: ModelSpec, cluster: ClusterSpec, make_strategy: MakeStrategy) -> None:
    long = replace(model.variables[2], shape=(1024 * legality.MAX_SLICES,))
    model = replace(model, variables=(*model.variables[:2], long, *model.variables[3:]))
    smallest = legality.smallest_slice_bytes(model)
    assert smallest == -(-model.num_bytes // 65_536) > 4096
    message = Message(parts=("scale",), slice_bytes=smallest)
    assert not legality.problems(make_strategy(message), model, cluster)
    (problem,) = legality.problems(make_strategy(replace(message, slice_bytes=smallest - 1)), model, cluster)
    what = f"messages[0].slice_bytes: slices of {smallest - 1} B"
    assert str(problem) == f"{what} ({smallest} B or more: a model of {model.num_bytes} B in 65536 slices)"


def test_each_part_is_in_one_message(model: ModelSpec, cluster: ClusterSpec) -> None:
    messages = (Message(parts=("fc.bias", "scale")), Message(parts=("fc.bias", "fc.weigth")))
    found = legality.problems(Strategy(messages=messages), model, cluster)
    assert [str(problem) for problem in found] == [
        "messages[1].parts[0]: fc.bias is in messages[0] already (each part is in one message)",
        (
            "messages[1].parts[1]: unknown part 'fc.weigth' (known: table, fc.weight, fc.bias, half, scale); "
            "did you mean 'fc.weight'?"
        ),
        "messages: table, fc.weight, half in no message (each part is in one message)",
    ]


def test_many_missing_parts_are_counted(model: ModelSpec, cluster: ClusterSpec) -> None:
    (problem,) = legality.problems(Strategy(messages=(Message(parts=("scale",)),)), model, cluster)
    assert problem.what == "table, fc.weight, fc.bias and 1 more in no message"


def test_parts_of_a_cut_variable_have_numbers(
    model: ModelSpec, cluster: ClusterSpec, make_strategy: MakeStrategy
) -> None:
    strategy = make_strategy(Message(parts=("fc.bias",)), partitions={"fc.bias": Partition(sizes=(8, 8))})
    found = legality.problems(strategy, model, cluster)
    assert [format_path(problem.path) for problem in found] == ["messages[0].parts[0]", "messages"]


def test_all_mistakes_are_told_at_once(model: ModelSpec, cluster: ClusterSpec, make_strategy: MakeStrategy) -> None:
    strategy = make_strategy(
        Message(parts=("table",), synchroniser=ParameterServer(server="x", sparse=True), slice_bytes=2048, lane=64)
    )
    with pytest.raises(DoesNotApplyError) as caught:
        legality.check(strategy, replace(model, clip_norm=1.0), cluster)
    places = [format_path(problem.path) for problem in caught.value.problems]
    assert places == [
        "messages[0].synchroniser.server",
        "messages[0].synchroniser",
        "messages[0].slice_bytes",
        "messages[0].lane",
    ]


LEGAL = {
    "all reduce": Message(parts=("fc.weight", "fc.bias"), synchroniser=AllReduce(topology="ring"), codec=Int8()),
    "server": Message(parts=("fc.weight", "fc.bias"), synchroniser=ParameterServer(server="s", staleness=3)),
    "worker update": Message(parts=("fc.bias",), synchroniser=ParameterServer(server="b", update="worker")),
    "sharded": Message(parts=("fc.weight",), synchroniser=Sharded(topology="ring"), codec=Cast(), slice_bytes=1024),
    "rows": Message(parts=("table",), synchroniser=SparseGather()),
    "rows at a server": Message(parts=("table",), synchroniser=ParameterServer(server="a", sparse=True)),
    "factors": Message(parts=("fc.weight",), synchroniser=SufficientFactors()),
    "averages": Message(parts=("half",), synchroniser=Periodic(every=4), priority=7, lane=63),
    "power_sgd": Message(parts=("fc.weight",), codec=PowerSGD(rank=7)),
}


@pytest.mark.parametrize("message", LEGAL.values(), ids=LEGAL.keys())
def test_legal_messages(message: Message, model: ModelSpec, cluster: ClusterSpec, make_strategy: MakeStrategy) -> None:
    strategy = make_strategy(message)
    assert legality.problems(strategy, model, cluster) == []
    legality.check(strategy, model, cluster)
    parts = all_parts(strategy, model)
    assert legality.message_problems(message, [parts[name] for name in message.parts], model, cluster) == []


def test_the_order_of_writing_has_no_part_in_it(
    model: ModelSpec, cluster: ClusterSpec, make_strategy: MakeStrategy
) -> None:
    strategy = make_strategy(Message(parts=("half",), codec=Cast()), Message(parts=("table",), lane=99))
    whats = sorted(problem.what for problem in legality.problems(strategy, model, cluster))
    messages = list(strategy.messages)
    random.Random(0).shuffle(messages)
    found = legality.problems(replace(strategy, messages=tuple(messages)), model, cluster)
    assert sorted(problem.what for problem in found) == whats
