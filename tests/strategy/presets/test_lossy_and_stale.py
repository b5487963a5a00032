"""The rules of the lossy and stale presets, each on a case worked out by hand, or by torch's own decision."""

import itertools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import _should_compress

from autosync.errors import DoesNotApplyError, InputError
from autosync.specs.cluster import ClusterSpec
from autosync.specs.model import ModelSpec, OptimizerSpec, Variable
from autosync.strategy.codecs import Cast, Int8, PowerSGD, Sign, TopK
from autosync.strategy.presets import build_preset
from autosync.strategy.presets.lossy import is_worth_factors
from autosync.strategy.representation import Message
from autosync.strategy.synchronisers.all_reduce import AllReduce
from autosync.strategy.synchronisers.outer_optimizer import OuterOptimizer
from autosync.strategy.synchronisers.parameter_server import ParameterServer
from autosync.strategy.synchronisers.periodic import Periodic
from autosync.strategy.synchronisers.sparse_gather import SparseGather

Models = Callable[..., ModelSpec]
Clusters = Callable[..., ClusterSpec]
Variables = Callable[..., dict[str, Any]]

LOSSY = ("bf16", "dgc", "fp16", "int8", "power_sgd", "sign")
STALE = ("diloco", "local_sgd", "ssp")
MIB_ELEMENTS = 2**18


@pytest.fixture
def spec(model: Models, variable: Variables) -> ModelSpec:
    """Ready last to first: `big` closes the small first bucket, the others are the second; `table` is rows."""
    return model(
        variable("table", 9, 2, kind="embedding", touched_rows=2.0, max_touched_rows=3, sparse=True),
        variable("half", 8, 8, dtype="float16"),
        variable("scale"),
        variable("weight", 16, 3, 3),
        variable("bias", 16),
        variable("big", MIB_ELEMENTS // 4, 4),
    )


@pytest.fixture
def two(cluster: Clusters) -> ClusterSpec:
    return cluster([1, 1])


ROWS = Message(parts=("table",), synchroniser=SparseGather())
REST = ("bias", "weight", "scale")


@pytest.mark.parametrize(("name", "dtype"), [("bf16", "bfloat16"), ("fp16", "float16")])
def test_casts_are_of_ddps_buckets(name: str, dtype: Any, spec: ModelSpec, two: ClusterSpec) -> None:
    codec = Cast(dtype=dtype)
    assert set(build_preset(name, spec, two).messages) == {
        Message(parts=("big",), codec=codec),
        Message(parts=REST, codec=codec),
        Message(parts=("half",)),
        ROWS,
    }


def test_int8_and_sign_are_of_ddps_buckets(spec: ModelSpec, two: ClusterSpec) -> None:
    for name, codec in (("int8", Int8(block=512)), ("sign", Sign())):
        assert set(build_preset(name, spec, two).messages) == {
            Message(parts=("big",), codec=codec),
            Message(parts=REST, codec=codec),
            Message(parts=("half",), codec=codec),
            ROWS,
        }
    assert build_preset("int8", spec, two, block=128).messages[0].codec == Int8(block=128)
    assert Sign().error_feedback
    assert not Int8(block=512).error_feedback


def test_dgc_sends_the_largest_of_all_that_is_no_vector(spec: ModelSpec, two: ClusterSpec) -> None:
    codec = TopK(ratio=0.001, momentum=0.9)
    assert set(build_preset("dgc", spec, two).messages) == {
        Message(parts=("big",), codec=codec),
        Message(parts=("weight",), codec=codec),
        Message(parts=("bias", "scale")),
        Message(parts=("half",), codec=codec),
        ROWS,
    }
    assert codec.error_feedback
    other = build_preset("dgc", spec, two, ratio=0.01, momentum=0)
    assert {message.codec for message in other.messages} == {None, TopK(ratio=0.01)}


def test_dgc_takes_the_place_of_the_optimizers_momentum(spec: ModelSpec, two: ClusterSpec, cluster: Clusters) -> None:
    momentum = replace(spec, optimizer=OptimizerSpec(name="SGD", state_slots=1))
    with pytest.raises(DoesNotApplyError, match=r"SGD keeps a state of its own \(DGC's momentum takes the place"):
        build_preset("dgc", momentum, two)
    assert build_preset("dgc", momentum, two, momentum=0.0).classes == {"lossy"}
    with pytest.raises(DoesNotApplyError, match="small clips its gradients"):
        build_preset("dgc", replace(spec, clip_norm=1.0), two)
    with pytest.raises(DoesNotApplyError, match=r"small has one worker .nothing is sent, so DGC's momentum"):
        build_preset("dgc", spec, cluster([1]))
    assert build_preset("dgc", spec, cluster([1]), momentum=0.0)


def test_power_sgd_compresses_what_gives_enough(spec: ModelSpec, two: ClusterSpec) -> None:
    # big: (65536 + 4) * 1 * 2 < 262144. weight, 16 x 9: 50 < 144. half: 32 < 64.
    codec = PowerSGD(rank=1)
    assert set(build_preset("power_sgd", spec, two).messages) == {
        Message(parts=("big",), codec=codec),
        Message(parts=("weight",), codec=codec),
        Message(parts=("bias", "scale")),
        Message(parts=("half",), codec=codec),
        ROWS,
    }
    # Rank 2. big: 262160 is not below 262144. weight: 100 < 144. half: 64 is not below 64.
    second = build_preset("power_sgd", spec, two, rank=2)
    assert {message.parts: message.codec for message in second.messages} == {
        ("big",): None,
        ("weight",): PowerSGD(rank=2),
        ("bias", "scale"): None,
        ("half",): None,
        ("table",): None,
    }
    with pytest.raises(
        DoesNotApplyError, match=r"no gradient that is encoded \(a matrix of n x m with \(n \+ m\) \* 2"
    ):
        build_preset("power_sgd", spec, two, rank=2, min_compression_rate=100)


@pytest.mark.parametrize("rate", [0.5, 1.0, 2.0, 3.5])
def test_power_sgd_decides_as_torch_does(rate: float) -> None:
    """But where the rank is that of the whole matrix: torch may send it in factors, which loses nothing."""
    sizes = (1, 2, 3, 4, 7, 16, 100, 1001)
    for rows, columns, rank in itertools.product(sizes, sizes, (1, 2, 3, 8)):
        variable = Variable(name="w", shape=(rows, columns), use=0, ready=0)
        theirs, _, _ = _should_compress(rows, columns, min(rows, columns, rank), rate)
        is_whole = min(rows, columns) <= rank
        assert is_worth_factors(variable, rank=rank, rate=rate) == (theirs and not is_whole)
        deeper = replace(variable, shape=(rows, columns, 2, 1))
        flat = replace(variable, shape=(rows, 2 * columns))
        assert is_worth_factors(deeper, rank=rank, rate=rate) == is_worth_factors(flat, rank=rank, rate=rate)
    for shape in ((), (1000,)):
        assert not is_worth_factors(Variable(name="w", shape=shape, use=0, ready=0), rank=1, rate=0.1)


@pytest.mark.parametrize("name", LOSSY)
def test_codecs_are_refused_where_they_have_nothing_to_encode(
    name: str, model: Models, variable: Variables, two: ClusterSpec
) -> None:
    rows = variable("table", 9, 2, kind="embedding", touched_rows=2.0, max_touched_rows=3, sparse=True)
    with pytest.raises(DoesNotApplyError, match="small has no gradient that is encoded"):
        build_preset(name, model(rows), two)
    scaled = model(variable("w", 100, 100), loss_scaling=True)
    with pytest.raises(DoesNotApplyError, match="small scales its loss"):
        build_preset(name, scaled, two)


def test_ssp_is_late_servers_placed_as_others(model: Models, variable: Variables, cluster: Clusters) -> None:
    table = variable("table", 9, 2, kind="embedding", touched_rows=2.0, max_touched_rows=3)
    spec, unequal = model(variable("a", 30), table, variable("b", 10)), cluster([1, 1], gigabits=[1, 3])
    assert build_preset("ssp", spec, unequal, staleness=3).messages == tuple(
        Message(
            parts=(name,),
            synchroniser=ParameterServer(server=f"n{position}", staleness=3, sparse=name == "table"),
            lane=position,
        )
        for name, position in (("a", 1), ("table", 0), ("b", 1))
    )
    assert build_preset("ssp", spec, unequal).messages[0].synchroniser == ParameterServer(server="n1", staleness=1)
    for fields in ({"clip_norm": 1.0}, {"loss_scaling": True}):
        with pytest.raises(DoesNotApplyError, match="small clips its gradients or scales its loss"):
            build_preset("ssp", replace(spec, **fields), unequal)


def test_ssp_needs_an_elementwise_optimizer(
    model: Models, variable: Variables, two: ClusterSpec, optimizers: dict[str, Any]
) -> None:
    with pytest.raises(DoesNotApplyError, match="LAMB is no elementwise optimizer"):
        build_preset("ssp", model(variable("a", 3), optimizer=optimizers["lamb"]), two)


def test_averages_are_of_all_parameters_at_once(spec: ModelSpec, two: ClusterSpec) -> None:
    alike = ("big", *REST, "table")
    for name, options, synchroniser in (
        ("local_sgd", {}, Periodic(every=4)),
        ("local_sgd", {"every": 9}, Periodic(every=9)),
        ("diloco", {}, Periodic(every=500, outer=OuterOptimizer(learning_rate=0.7, momentum=0.9))),
        (
            "diloco",
            {"every": 1, "outer_learning_rate": 1, "outer_momentum": 0},
            Periodic(every=1, outer=OuterOptimizer(learning_rate=1.0, momentum=0.0)),
        ),
    ):
        assert build_preset(name, spec, two, **options).messages == (
            Message(parts=alike, synchroniser=synchroniser),
            Message(parts=("half",), synchroniser=synchroniser),
        )


def test_averages_are_refused_where_a_worker_may_leave_out_a_step(
    model: Models, variable: Variables, two: ClusterSpec
) -> None:
    for name in ("local_sgd", "diloco"):
        with pytest.raises(DoesNotApplyError, match="small scales its loss"):
            build_preset(name, model(variable("w", 2), loss_scaling=True), two)


@pytest.mark.parametrize("name", [*LOSSY, *STALE])
def test_each_is_of_its_class(name: str, spec: ModelSpec, two: ClusterSpec) -> None:
    strategy = build_preset(name, spec, two)
    assert strategy.classes == {"lossy" if name in LOSSY else "stale"}
    assert strategy.overlap == "backward"
    if name in LOSSY:
        assert all(isinstance(m.synchroniser, AllReduce | SparseGather) for m in strategy.messages)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("dgc", {"ratio": 0.0}, r"preset.dgc.ratio: 0.0 is no ratio \(a number above 0, at most 1\)"),
        ("dgc", {"ratio": float("nan")}, "nan is no ratio"),
        ("dgc", {"momentum": 1}, r"1 is no momentum \(a number of 0 or more below 1\)"),
        ("dgc", {"momentum": True}, "True is no momentum"),
        ("int8", {"block": 0}, "0 is no block"),
        ("power_sgd", {"rank": 0}, "0 is no rank"),
        ("power_sgd", {"min_compression_rate": "2"}, "'2' is no min_compression_rate"),
        ("ssp", {"staleness": 0}, "0 is no staleness"),
        ("local_sgd", {"every": 1}, r"1 is no every \(a whole number, 2 or more\)"),
        ("diloco", {"outer_learning_rate": 0}, "0 is no outer_learning_rate"),
        ("diloco", {"outer_momentum": 1.0}, "1.0 is no outer_momentum"),
    ],
)
def test_wrong_options_are_told(
    name: str, options: dict[str, Any], message: str, spec: ModelSpec, two: ClusterSpec
) -> None:
    with pytest.raises(InputError, match=message):
        build_preset(name, spec, two, **options)
