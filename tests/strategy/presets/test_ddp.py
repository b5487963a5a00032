"""The buckets of DDP, written out by hand and held against what the real Reducer logs."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from autosync.specs.cluster import ClusterSpec
from autosync.specs.model import ModelSpec
from autosync.strategy.presets import build_preset
from autosync.strategy.synchronisers.all_reduce import AllReduce
from autosync.strategy.synchronisers.sparse_gather import SparseGather
from tests.helpers.forks import Forked

MIB = 1024 * 1024
SCRIPT = Path(__file__).with_name("reducer_log.py")
TIMEOUT_SECONDS = 100

ROWS = {"kind": "embedding", "touched_rows": 2.0, "max_touched_rows": 3}

Models = Callable[..., ModelSpec]
Clusters = Callable[..., ClusterSpec]
Variables = Callable[..., dict[str, Any]]


def _buckets(model: ModelSpec, cluster: ClusterSpec, name: str = "ddp", **options: Any) -> list[tuple[str, ...]]:
    return [message.parts for message in build_preset(name, model, cluster, **options).messages]


@pytest.fixture
def six(model: Models, variable: Variables) -> ModelSpec:
    """Six variables in floats of 4 bytes; the gradient of `e` is ready before that of `f`."""
    sizes = {"a": 600_000, "b": 7_000_000, "c": 100, "d": 6_000_000, "e": 262_143, "f": 1}
    ready = {"a": 5, "b": 4, "c": 3, "d": 2, "e": 0, "f": 1}
    return model(*(variable(name, size, ready=ready[name]) for name, size in sizes.items()))


def test_rebuilt_buckets(six: ModelSpec, cluster: Clusters) -> None:
    # e is four bytes short of 1 MiB and f closes the small bucket; d is short of 25 MiB and b overshoots.
    assert _buckets(six, cluster([1, 1])) == [("e", "f"), ("d", "c", "b"), ("a",)]


def test_first_buckets_are_one(six: ModelSpec, cluster: Clusters) -> None:
    assert _buckets(six, cluster([1, 1]), rebuilt=False) == [("a", "b", "c", "d", "e", "f")]


def test_with_find_unused_the_small_bucket_is_of_the_variables_declared_first(
    six: ModelSpec, cluster: Clusters
) -> None:
    buckets = _buckets(six, cluster([1, 1]), find_unused_parameters=True)
    assert buckets == [("a",), ("b",), ("c", "d", "e", "f")]


def test_an_explicit_cap_drops_the_small_bucket(six: ModelSpec, cluster: Clusters) -> None:
    assert _buckets(six, cluster([1, 1]), "ddp_cap") == [("e", "f", "d", "c", "b"), ("a",)]
    assert _buckets(six, cluster([1, 1]), "ddp_cap", cap_bytes="1 MiB") == [("e", "f"), ("d",), ("c", "b"), ("a",)]
    assert _buckets(six, cluster([1, 1]), "ddp_cap", cap_bytes=1) == [("e",), ("f",), ("d",), ("c",), ("b",), ("a",)]


def test_each_dtype_has_its_own_buckets_and_its_own_small_one(
    model: Models, variable: Variables, cluster: Clusters
) -> None:
    spec = model(
        variable("a", MIB // 8, dtype="float16"),
        variable("b", MIB // 4),
        variable("c", MIB // 2, dtype="float16"),
        variable("d", MIB // 8),
        variable("e", MIB // 8),
    )
    # From the end: e and d are 1 MiB of float32, c is 1 MiB of float16; a and b are what is left.
    assert _buckets(spec, cluster([1, 1])) == [("e", "d"), ("c",), ("b",), ("a",)]


def test_sparse_gradients_stand_alone(
    model: Models, variable: Variables, cluster: Clusters, optimizers: dict[str, Any]
) -> None:
    def variables(*, sparse: bool) -> tuple[dict[str, Any], ...]:
        return variable("front", 8), variable("table", 100, 4, sparse=sparse, **ROWS), variable("back", 8)

    strategy = build_preset("ddp", model(*variables(sparse=True)), cluster([1, 1]))
    assert [(m.parts, m.synchroniser) for m in strategy.messages] == [
        (("table",), SparseGather()),
        (("back", "front"), AllReduce()),
    ]
    together = [("back", "table", "front")]
    for preset in ("ddp", "ddp_cap"):
        assert _buckets(model(*variables(sparse=True)), cluster([1, 1]), preset) == [("table",), ("back", "front")]
        assert _buckets(model(*variables(sparse=False)), cluster([1, 1]), preset) == together
        # Where rows cannot travel the gradient is dense.
        sparse = variables(sparse=True)
        assert _buckets(model(*sparse, optimizer=optimizers["adam"]), cluster([1, 1]), preset) == together
        assert _buckets(model(*sparse, clip_norm=1.0), cluster([1, 1]), preset) == together
        assert _buckets(model(*sparse), cluster([1, 1], backend="nccl"), preset) == together


def test_one_lane_and_overlap_with_the_backward_pass_only(six: ModelSpec, cluster: Clusters) -> None:
    strategy = build_preset("ddp", six, cluster([1, 1]))
    assert strategy.overlap == "backward"
    assert {(m.lane, m.priority, m.slice_bytes, m.codec) for m in strategy.messages} == {(0, 0, None, None)}


# The real Reducer.

CASES = {
    "residual": ("ddp", {}),
    "residual, cap of 2 MiB": ("ddp_cap", {"cap_bytes": 2 * MIB}),
    "residual, cap of 25 MiB": ("ddp_cap", {"cap_bytes": 25 * MIB}),
    "residual, find unused": ("ddp", {"find_unused_parameters": True}),
    "mixed": ("ddp", {}),
    "mixed, cap of 1 MiB": ("ddp_cap", {"cap_bytes": MIB}),
    "tied": ("ddp", {}),
    "sparse": ("ddp", {}),
    "sparse, cap of 1 MiB": ("ddp_cap", {"cap_bytes": MIB}),
    "dense tables": ("ddp", {}),
    "wide": ("ddp", {}),
}


@cache
def _reducer_logs(world_size: int) -> dict[str, dict[str, Any]]:
    """What the real DDP logged on rank 0, by case."""
    environment = os.environ | {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    with TemporaryDirectory() as folder:
        processes = [
            Forked(
                [sys.executable, SCRIPT, str(rank), str(world_size), folder],
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=environment,
            )
            for rank in range(world_size)
        ]
        try:
            results = [process.communicate(timeout=TIMEOUT_SECONDS) for process in processes]
        finally:
            for process in processes:
                process.kill()
                process.wait()
    for process, (_, errors) in zip(processes, results, strict=True):
        assert process.returncode == 0, errors
    logs = [json.loads(line) for line in results[0][0].splitlines()]
    return {log["case"]: log for log in logs}


def _spec_of(log: dict[str, Any], model: Models, variable: Variables) -> ModelSpec:
    """The model spec of a module, from the names, shapes and ready order that were logged."""
    ready = {index: position for position, index in enumerate(log["ready"])}
    variables = []
    for index, parameter in enumerate(log["parameters"]):
        fields = {"dtype": parameter["dtype"], "ready": ready[index], **(ROWS if parameter["embedding"] else {})}
        fields |= {"sparse": True} if parameter["sparse"] else {}
        variables.append(variable(parameter["name"], *parameter["shape"], **fields))
    return model(*variables)


def _check(log: dict[str, Any], model: Models, variable: Variables, cluster: Clusters) -> None:
    spec, two = _spec_of(log, model, variable), cluster([1, 1])
    names = [parameter["name"] for parameter in log["parameters"]]
    preset, options = CASES[log["case"]]
    strategy = build_preset(preset, spec, two, **options)
    ours = [list(message.parts) for message in strategy.messages]
    if options.get("find_unused_parameters"):
        assert log["rebuilt"] == [], "never rebuilt"
        used = reversed(_by_declaration(ours, names))
        assert [_num_bytes(spec, bucket) for bucket in used] == log["first_bucket_sizes"]
        return
    theirs = [[names[index] for index in bucket] for bucket in log["rebuilt"]]
    # Buckets that are left open at the end come in the order of a hash table there: which of them is first is no rule.
    assert sorted(ours) == sorted(theirs)
    if len({parameter["dtype"] for parameter in log["parameters"]}) == 1:
        assert ours == theirs
    if preset == "ddp":
        first = [list(m.parts) for m in build_preset("ddp", spec, two, rebuilt=False).messages]
        used = reversed(_by_declaration(first, names))
        assert [_num_bytes(spec, bucket) for bucket in used] == log["first_bucket_sizes"]


def _by_declaration(buckets: list[list[str]], names: list[str]) -> list[list[str]]:
    return sorted(buckets, key=lambda bucket: min(names.index(name) for name in bucket))


def _num_bytes(model: ModelSpec, bucket: list[str]) -> int:
    return sum(model.variable(name).num_bytes for name in bucket)


@pytest.mark.parametrize("case", CASES)
def test_the_buckets_are_those_of_the_real_reducer(
    case: str, model: Models, variable: Variables, cluster: Clusters
) -> None:
    _check(_reducer_logs(1)[case], model, variable, cluster)


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_the_buckets_are_those_of_the_real_reducer_on_two_ranks(
    case: str, model: Models, variable: Variables, cluster: Clusters
) -> None:
    _check(_reducer_logs(2)[case], model, variable, cluster)


def test_the_cases_try_what_they_claim() -> None:
    logs = _reducer_logs(1)
    residual = logs["residual"]
    assert residual["ready"] != sorted(residual["ready"], reverse=True), "norms are used before they are declared"
    assert len(residual["rebuilt"]) > 1
    assert {parameter["dtype"] for parameter in logs["mixed"]["parameters"]} == {"float32", "float64"}
    assert [p["name"] for p in logs["tied"]["parameters"]].count("output.weight") == 0
    tables = {name: [p for p in logs[name]["parameters"] if p["embedding"]] for name in ("sparse", "dense tables")}
    assert [p["sparse"] for p in tables["sparse"]] == [True, True]
    assert [p["sparse"] for p in tables["dense tables"]] == [False, False]
    assert len(logs["wide"]["rebuilt"]) == 3
