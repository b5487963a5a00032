"""Every preset, on models and clusters of every kind, is legal or refused with a reason."""

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autosync.errors import DoesNotApplyError, InputError, UnknownNameError
from autosync.specs.cluster import ClusterSpec
from autosync.specs.model import ModelSpec
from autosync.strategy import legality
from autosync.strategy.presets import build_preset, preset_names, preset_options, preset_summary
from autosync.strategy.presets.pipelines import PIPELINES
from tests.helpers.random_specs import clusters, models, random_cluster, random_model

NAMES = (
    "all_reduce_chunks",
    "all_reduce_per_variable",
    "bf16",
    "byteps",
    "bytescheduler",
    "caramel",
    "ddp",
    "ddp_cap",
    "dgc",
    "diloco",
    "fp16",
    "fsdp",
    "gpipe",
    "hierarchical",
    "horovod_fusion",
    "int8",
    "interleaved_1f1b",
    "local_sgd",
    "p3",
    "parallax",
    "partitioned_all_reduce",
    "pipedream",
    "pipedream_2bw",
    "pipedream_flush",
    "poseidon",
    "power_sgd",
    "ps",
    "ps_load_balanced",
    "ps_partitioned",
    "ps_uneven_partitioned",
    "rack_levels",
    "random_axis_partitioned_all_reduce",
    "sharded",
    "sign",
    "ssp",
    "tictac",
    "uneven_batches",
)

LOSSY = ("bf16", "dgc", "fp16", "int8", "power_sgd", "sign")
STALE = ("diloco", "local_sgd", "ssp")
CUTTING = (
    "fsdp",
    "partitioned_all_reduce",
    "ps_partitioned",
    "ps_uneven_partitioned",
    "random_axis_partitioned_all_reduce",
    "sharded",
    "tictac",
)

# What a refusal may say; anything else would be a preset that builds what is not legal.
NOT_ENCODED = ("no gradient that is encoded", "scales its loss")
REASONS = {
    **dict.fromkeys(("bf16", "fp16", "int8", "power_sgd", "sign"), NOT_ENCODED),
    **dict.fromkeys(("byteps", "bytescheduler", "p3"), ("static order",)),
    "dgc": (*NOT_ENCODED, "keeps a state of its own", "clips its gradients", "has one worker"),
    **dict.fromkeys(("diloco", "local_sgd"), ("scales its loss",)),
    **dict.fromkeys(
        PIPELINES,
        (
            "has no cuts",
            "has one worker",
            "scales its loss",
            "accumulates",
            "clips sparse gradients",
            "weighs its batches",
            "updates all variables together",
            "stages on nccl",
        ),
    ),
    "hierarchical": ("one node", "one rank on every node"),
    "rack_levels": ("has workers in one rack", "fitted trees on nccl"),
    "poseidon": ("no linear variable", "accumulates"),
    **dict.fromkeys(CUTTING, ("no elementwise optimizer",)),
    "sharded": ("no elementwise optimizer", "is on nccl", "has one worker"),
    "uneven_batches": ("compute at the same speed", "cannot be divided", "too few for shares"),
    "ssp": ("no elementwise optimizer", "clips its gradients or scales its loss"),
}

VARIANTS: list[tuple[str, dict[str, Any]]] = [
    *((name, {}) for name in NAMES),
    ("ddp", {"rebuilt": False}),
    ("ddp", {"find_unused_parameters": True}),
    ("ddp_cap", {"cap_bytes": "1 kB"}),
    ("hierarchical", {"cap_bytes": 500}),
    ("rack_levels", {"cap_bytes": 500}),
    ("rack_levels", {"fitted": True}),
    ("sharded", {"cap_bytes": 500}),
    ("sharded", {"fitted": True}),
    ("ps_load_balanced", {"local_proxy": True}),
    ("ps_partitioned", {"parts": "smallest_divisor", "local_proxy": True}),
    ("ps_partitioned", {"parts": "by_rate", "local_proxy": True}),
    ("parallax", {"chunk_size": 1}),
    ("poseidon", {"pair_bytes": 64}),
    ("bytescheduler", {"slice_bytes": "1 KiB", "num_lanes": 7}),
    ("all_reduce_chunks", {"chunk_size": 2}),
    ("byteps", {"partition_bytes": "1 KiB", "num_lanes": 3}),
    ("caramel", {"round_time": "1 us", "num_lanes": 2}),
    ("fsdp", {"min_parameters": 20}),
    ("horovod_fusion", {"threshold_bytes": 700, "cycle_time": "10 ms"}),
    ("p3", {"slice_parameters": 1024, "num_lanes": 5}),
    ("partitioned_all_reduce", {"chunk_size": 1}),
    ("ps", {"local_proxy": True}),
    ("ps_uneven_partitioned", {"local_proxy": True}),
    ("random_axis_partitioned_all_reduce", {"chunk_size": 1, "seed": 5}),
    ("tictac", {"num_lanes": 1}),
    ("dgc", {"ratio": 0.3, "momentum": 0.0}),
    ("power_sgd", {"rank": 3, "min_compression_rate": 0.4}),
    ("ssp", {"staleness": 5}),
    ("diloco", {"every": 1}),
]


def test_the_names_are_known() -> None:
    assert preset_names() == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_each_preset_says_what_it_is_and_where_it_comes_from(name: str) -> None:
    from autosync.strategy.presets import PRESETS

    summary = preset_summary(name)
    assert 20 < len(summary) <= 120
    assert summary.endswith(".")
    assert "Source: " in PRESETS.get(name).__doc__


@pytest.mark.parametrize(("name", "options"), VARIANTS, ids=str)
@given(model=models(), cluster=clusters())
def test_legal_or_refused_with_a_reason(
    name: str, options: dict[str, Any], model: ModelSpec, cluster: ClusterSpec
) -> None:
    try:
        strategy = build_preset(name, model, cluster, **options)
    except DoesNotApplyError as error:
        (problem,) = error.problems
        assert any(reason in problem.what for reason in REASONS[name]), problem
        assert problem.path[:2] == ("preset", name)
        return
    assert not legality.problems(strategy, model, cluster)
    assert strategy.classes == ({"lossy"} if name in LOSSY else {"stale"} if name in STALE else {"exact"})
    assert strategy.name.partition("(")[0] == name


@given(model=models(), cluster=clusters(), name=st.sampled_from(NAMES))
def test_the_same_input_gives_the_same_strategy(model: ModelSpec, cluster: ClusterSpec, name: str) -> None:
    try:
        first = build_preset(name, model, cluster)
    except DoesNotApplyError:
        with pytest.raises(DoesNotApplyError):
            build_preset(name, model, cluster)
    else:
        assert build_preset(name, model, cluster) == first


def test_each_preset_both_applies_and_is_refused_where_it_can_be() -> None:
    built: Counter[str] = Counter()
    refused: Counter[str] = Counter()
    for seed in range(200):
        model, cluster = random_model(random.Random(seed)), random_cluster(random.Random(seed))
        nodes = tuple(replace(node, compute=1.0 + 0.5 * number) for number, node in enumerate(cluster.nodes))
        for name in NAMES:
            is_uneven = name == "uneven_batches" and seed % 2
            try:
                build_preset(name, model, replace(cluster, nodes=nodes, alike=()) if is_uneven else cluster)
                built[name] += 1
            except DoesNotApplyError:
                refused[name] += 1
    applying = [name for name in NAMES if name not in PIPELINES]
    assert set(built) == set(applying)
    assert set(refused) == set(REASONS)
    # DGC wants plain SGD and matrices that are not clipped: few of these models. Few of these clusters have racks, and
    # few have devices that differ.
    few = ("dgc", "rack_levels", "uneven_batches")
    assert all(built[name] > (5 if name in few else 20) for name in applying), built


@pytest.mark.parametrize("name", NAMES)
def test_an_embedding_is_dense_where_the_optimizer_takes_no_rows(
    name: str,
    model: Callable[..., ModelSpec],
    variable: Callable[..., dict[str, Any]],
    cluster: Callable[..., ClusterSpec],
    optimizers: dict[str, Any],
) -> None:
    variables = (
        variable("table", 100, 4, kind="embedding", touched_rows=2.0, max_touched_rows=3),
        variable("fc", 4, 4, kind="linear", factor_rows=2),
    )
    for fields in ({"optimizer": optimizers["adam"]}, {"clip_norm": 1.0}, {"loss_scaling": True}):
        try:
            strategy = build_preset(name, model(*variables, **fields), cluster([2, 2]))
        except DoesNotApplyError:
            needy = (*LOSSY, *STALE, *PIPELINES, "rack_levels", "uneven_batches")
            assert name in needy, "other exact presets need nothing of these"
            continue
        for message in strategy.messages:
            assert message.synchroniser.kind != "sparse_gather"
            assert not getattr(message.synchroniser, "sparse", False)


def test_options_are_named_and_have_defaults() -> None:
    assert preset_options("ddp") == {"rebuilt": True, "find_unused_parameters": False}
    assert preset_options("ddp_cap") == {"cap_bytes": 26214400}


def test_the_name_tells_the_options(
    model: Callable[..., ModelSpec], variable: Callable[..., dict[str, Any]], cluster: Callable[..., ClusterSpec]
) -> None:
    spec = model(variable("w", 2))
    assert build_preset("ddp", spec, cluster([1, 1])).name == "ddp"
    named = build_preset("bytescheduler", spec, cluster([1, 1]), slice_bytes="1 MiB", num_lanes=2).name
    assert named == "bytescheduler(slice_bytes=1 MiB, num_lanes=2)"


def test_an_unknown_preset_lists_the_known(
    model: Callable[..., ModelSpec], variable: Callable[..., dict[str, Any]], cluster: Callable[..., ClusterSpec]
) -> None:
    with pytest.raises(UnknownNameError, match=r"unknown preset 'dpp' \(known: all_reduce_chunks.*did you mean 'ddp'"):
        build_preset("dpp", model(variable("w", 2)), cluster([1, 1]))


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("ddp", {"rebuild": False}, "unknown option of preset ddp 'rebuild'"),
        ("ddp", {"rebuilt": 1}, "preset.ddp.rebuilt: 1 is no rebuilt \\(true or false\\)"),
        ("ddp_cap", {"cap_bytes": 0}, "0 is no cap_bytes \\(a size of 1 B or more"),
        ("ddp_cap", {"cap_bytes": "25 Mbit"}, "'25 Mbit' is no cap_bytes"),
        ("ddp_cap", {"cap_bytes": 1.5}, "1.5 is no cap_bytes"),
        ("ddp_cap", {"cap_bytes": True}, "True is no cap_bytes"),
        ("bytescheduler", {"num_lanes": 0}, "0 is no num_lanes \\(a whole number, 1 or more"),
        ("bytescheduler", {"slice_bytes": 1000}, "1000 is no slice_bytes \\(a size of 1024 B or more"),
        ("ps_partitioned", {"parts": "per_servr"}, "did you mean 'per_server'"),
        ("all_reduce_per_variable", {"topology": "star"}, "'star' is no topology \\(one of native, ring, tree"),
    ],
)
def test_wrong_options_are_told(name: str, options: dict[str, Any], message: str) -> None:
    model, cluster = random_model(random.Random(0)), random_cluster(random.Random(0), backends=("gloo",))
    with pytest.raises(InputError, match=message):
        build_preset(name, model, cluster, **options)


def test_what_the_backend_does_not_allow_is_refused(
    model: Callable[..., ModelSpec], variable: Callable[..., dict[str, Any]], cluster: Callable[..., ClusterSpec]
) -> None:
    spec, on_nccl = model(variable("w", 2)), cluster([1, 1], servers=1, backend="nccl")
    with pytest.raises(DoesNotApplyError, match=r"messages\[0\].synchroniser.topology: ring on nccl"):
        build_preset("all_reduce_per_variable", spec, on_nccl, topology="ring")
    with pytest.raises(DoesNotApplyError, match="nccl runs transfers in one static order"):
        build_preset("bytescheduler", spec, on_nccl)
    many = model(*(variable(f"w{index}", 2) for index in range(70)))
    with pytest.raises(DoesNotApplyError, match="lane 64 on gloo"):
        build_preset("bytescheduler", many, cluster([1, 1]), num_lanes=70)
