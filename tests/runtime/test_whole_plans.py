"""Whole plans trained in one process and held against the reference: every kind, every codec, random ones."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch

from autosync.plan.types import Transfer
from autosync.specs.model import DType
from autosync.strategy.codecs import Cast, Codec, Int8, PowerSGD, Sign, TopK
from autosync.strategy.parts import Partition
from autosync.strategy.representation import Message, Overlap, Strategy
from autosync.strategy.space import Limits, Space
from autosync.strategy.synchronisers.all_reduce import AllReduce
from autosync.strategy.synchronisers.outer_optimizer import OuterOptimizer
from autosync.strategy.synchronisers.parameter_server import ParameterServer
from autosync.strategy.synchronisers.periodic import Periodic
from autosync.strategy.synchronisers.sharded import Sharded
from tests.helpers.example_plans import ALL, SGD, Example, cluster_of, examples, model_of
from tests.helpers.whole_plans import NUM_STEPS, World, check, reference

RUN_HERE = sorted(set(examples("backward")) - {"factors"})


@pytest.mark.parametrize("overlap", ["backward", "forward"])
@pytest.mark.parametrize("name", RUN_HERE)
def test_every_kind_of_plan_means_what_the_reference_says(name: str, overlap: Overlap) -> None:
    check(examples(overlap)[name])


# What codecs do must not depend on how parts lie: merged, sliced, cut along any axis, alone.
CODECS: dict[str, Codec] = {
    "bfloat16": Cast(),
    "float16 with feedback": Cast(dtype="float16", error_feedback=True),
    "int8": Int8(block=7),
    "int8 with feedback": Int8(block=4, error_feedback=True),
    "top_k": TopK(ratio=0.3, error_feedback=False),
    "top_k with feedback": TopK(ratio=0.2),
    "top_k with momentum": TopK(ratio=0.2, momentum=0.9),
    "sign": Sign(error_feedback=False),
    "sign with feedback": Sign(),
    "power_sgd": PowerSGD(rank=1, error_feedback=False),
    "power_sgd with feedback": PowerSGD(rank=2),
}
WAYS = ("merged", "in parts", "stale", "workers update", "sharded", "hierarchical")
COLUMNS = {"linear": Partition(axis=1, sizes=(2, 3)), "table": Partition(axis=0, sizes=(1, 5))}


def ways_of(codec: Codec) -> tuple[str, ...]:
    """The ways in which a codec can be had."""
    if isinstance(codec, PowerSGD):
        return WAYS[:2]
    return WAYS if isinstance(codec, Cast) else WAYS[:4]


def coded(codec: Codec, way: str, overlap: Overlap) -> Example:
    """An example of a codec in one of the ways in which it can be had."""
    assert way in ways_of(codec), f"{codec} cannot be had {way}"
    is_matrix = isinstance(codec, PowerSGD)
    names = ("table", "linear") if is_matrix else ALL
    others = () if not is_matrix else (Message(parts=("bias",)),)
    devices: tuple[int, ...] = (1, 1, 1)
    partitions: dict[str, Partition] = {}

    def all_of(synchroniser: Any, **settings: Any) -> tuple[Message, ...]:
        return (Message(parts=names, synchroniser=synchroniser, codec=codec, **settings), *others)

    if way == "merged":
        messages = all_of(AllReduce(topology="ring"))
    elif way == "in parts":
        partitions = {"linear": Partition(axis=1, sizes=(2, 3)), "table": Partition(axis=0, sizes=(3, 3))}
        parts = ("linear[0]", "linear[1]", "table[0]", "table[1]")
        settings: dict[str, Any] = {"codec": codec if not is_matrix else PowerSGD(rank=1)}
        messages = (
            Message(parts=parts[:3], **settings),
            Message(parts=parts[3:], lane=1, **settings),
            Message(parts=("bias",)),
        )
    elif way == "stale":
        devices = (1, 1, 0)
        messages = all_of(ParameterServer(server="n2", staleness=2))
    elif way == "workers update":
        messages = all_of(ParameterServer(server="n1", update="worker"))
    elif way == "sharded":
        messages = all_of(Sharded())
    else:
        devices = (2, 2)
        messages = all_of(AllReduce(hierarchical=True))
    strategy = Strategy(partitions=partitions, messages=messages, overlap=overlap)
    return Example(strategy=strategy, model=model_of(), cluster=cluster_of(*devices))


# Each codec in each way with one overlap, in turn; slow is the other one.
CODED = [
    pytest.param(name, way, overlap, marks=pytest.mark.slow if (number + at + place) % 2 else ())
    for number, name in enumerate(CODECS)
    for at, way in enumerate(ways_of(CODECS[name]))
    for place, overlap in enumerate(("backward", "forward"))
]


@pytest.mark.parametrize(("name", "way", "overlap"), CODED)
def test_codecs(name: str, way: str, overlap: Overlap) -> None:
    check(coded(CODECS[name], way, overlap))


# A cast of numbers of half the size casts nothing.
TYPED = [
    (name, dtype)
    for name, codec in CODECS.items()
    for dtype in ("float32", "bfloat16", "float16")
    if dtype == "float32" or not isinstance(codec, Cast)
]


@pytest.mark.parametrize(("name", "dtype"), TYPED)
def test_workers_stay_together_whatever_the_type_of_their_numbers(name: str, dtype: DType) -> None:
    """What is received is rounded alike on all ranks; and stays near to what it would be without rounding."""
    example = coded(CODECS[name], "merged", "backward")
    world = World(example, dtype=dtype)
    first, *others = world.train()
    for variable, expected in reference(world).parameters[0].items():
        found = first.values[variable].double()
        assert all(torch.equal(first.values[variable], other.values[variable]) for other in others)
        assert (found - torch.from_numpy(expected)).norm() < 0.1 * torch.from_numpy(expected).norm()


PERIODIC = {
    "merged": ((Message(parts=ALL, synchroniser=Periodic(every=3)),), {}),
    "staged": (
        (
            Message(parts=("linear[0]", "table[1]"), synchroniser=Periodic(every=2, outer=OuterOptimizer())),
            Message(parts=("linear[1]", "table[0]"), synchroniser=Periodic(every=3, topology="ring"), lane=1),
            Message(parts=("bias",)),
        ),
        COLUMNS,
    ),
    "alone": ((Message(parts=ALL, synchroniser=Periodic(every=2, outer=OuterOptimizer(learning_rate=0.5))),), {}),
    "with a server": (
        (
            Message(parts=("linear", "bias"), synchroniser=Periodic(every=2, outer=OuterOptimizer())),
            Message(parts=("table",), synchroniser=ParameterServer(server="n1", staleness=1), lane=1),
        ),
        {},
    ),
}


@pytest.mark.parametrize("overlap", ["backward", "forward"])
@pytest.mark.parametrize(
    ("name", "clip_norm"),
    [
        (name, clip_norm)
        for name in PERIODIC
        for clip_norm in (None, 0.5)
        if clip_norm is None or name != "with a server"
    ],
)
def test_periodic_averaging(name: str, overlap: Overlap, clip_norm: float | None) -> None:
    messages, partitions = PERIODIC[name]
    strategy = Strategy(partitions=partitions, messages=messages, overlap=overlap)
    where = cluster_of(1) if name == "alone" else cluster_of(1, 1, 1)
    check(Example(strategy=strategy, model=model_of(clip_norm=clip_norm), cluster=where))


@pytest.mark.parametrize("overlap", ["backward", "forward"])
@pytest.mark.parametrize("devices", [(1, 1, 1), (1, 1, 0)])
@pytest.mark.parametrize("staleness", [1, 3])
def test_a_stale_server_holds_nobody_up(staleness: int, devices: tuple[int, ...], overlap: Overlap) -> None:
    """Parameters are kept back until all workers have called the last step that may do without them."""

    def hold(world: World, transfer: Transfer, iteration: int) -> None:
        if transfer.collective == "broadcast" and iteration + staleness < NUM_STEPS:
            for rank in range(world.plan.num_workers):
                world.wait_called(rank, iteration + staleness)

    names = {"merged": (ALL,), "alone": tuple((name,) for name in ALL)}
    for parts in names.values():
        messages = tuple(
            Message(parts=one, synchroniser=ParameterServer(server="n2", staleness=staleness), lane=lane)
            for lane, one in enumerate(parts)
        )
        strategy = Strategy(messages=messages, overlap=overlap)
        check(Example(strategy=strategy, model=model_of(), cluster=cluster_of(*devices)), hold=hold)


@pytest.mark.parametrize("overlap", ["backward", "forward"])
def test_rows_and_a_cast_come_late_each_by_its_own_lag(overlap: Overlap) -> None:
    messages = (
        Message(parts=("table",), synchroniser=ParameterServer(server="n0", sparse=True, staleness=3)),
        Message(parts=("linear",), synchroniser=ParameterServer(server="n1", staleness=1), codec=Int8(block=3)),
        Message(parts=("bias",), synchroniser=ParameterServer(server="n1")),
    )
    strategy = Strategy(messages=messages, overlap=overlap)
    for seed in range(3):
        check(Example(strategy=strategy, model=model_of(optimizer=SGD), cluster=cluster_of(1, 1, 1)), seed=seed)


def test_more_iterations_may_be_under_way_than_options_are_kept_for_otherwise() -> None:
    def hold(world: World, transfer: Transfer, iteration: int) -> None:
        if transfer.collective == "reduce" and iteration + 20 < 24:
            world.wait_called(1, iteration + 20)

    messages = (Message(parts=ALL, synchroniser=ParameterServer(server="n0", staleness=20)),)
    check(
        Example(strategy=Strategy(messages=messages), model=model_of(), cluster=cluster_of(1, 1)),
        hold=hold,
        num_steps=24,
    )


LIMITS = Limits(
    allow=("lossy", "stale"),
    synchronisers=("all_reduce", "parameter_server", "sharded", "sparse_gather", "periodic"),
    periods=(2, 3),
    codecs=(*[codec for codec in CODECS.values() if codec != PowerSGD(rank=2)],),
    max_parts=3,
)


@pytest.mark.parametrize("count", [3, pytest.param(12, marks=pytest.mark.slow)])
@pytest.mark.parametrize("devices", [(1, 1, 1), (2, 2), (1, 1, 0), (2, 1)])
@pytest.mark.parametrize("clip_norm", [pytest.param(None, marks=pytest.mark.slow), 0.5])
@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
def test_random_strategies_of_all_classes(
    devices: tuple[int, ...], clip_norm: float | None, optimizer: str, count: int
) -> None:
    model = model_of(clip_norm=clip_norm, **({"optimizer": SGD} if optimizer == "sgd" else {}))
    where = cluster_of(*devices)
    space, rng = Space(model=model, cluster=where, limits=LIMITS), random.Random(str((devices, clip_norm, optimizer)))
    for seed in range(count):
        strategy = space.sample(rng)
        try:
            check(Example(strategy=strategy, model=model, cluster=where), seed=seed)
        except Exception as error:
            error.add_note(f"{strategy}")
            raise
