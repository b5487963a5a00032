"""Horovod's tensor fusion, worked out by hand from its rule."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autosync.errors import InputError
from autosync.specs.cluster import ClusterSpec
from autosync.specs.model import DType, ModelSpec, Segment, Timeline, Variable
from autosync.strategy.presets import build_preset
from autosync.strategy.presets.horovod import fuse
from autosync.strategy.representation import Message, Strategy
from autosync.strategy.synchronisers.all_reduce import AllReduce
from autosync.strategy.synchronisers.sparse_gather import SparseGather
from tests.helpers.random_specs import models

Models = Callable[..., ModelSpec]
Clusters = Callable[..., ClusterSpec]
Variables = Callable[..., dict[str, Any]]

ROWS = {"kind": "embedding", "touched_rows": 2.0, "max_touched_rows": 3}


def _timed(spec: ModelSpec, *milliseconds: float) -> ModelSpec:
    """The last module first, each variable's gradient at the end of a segment of so many milliseconds."""
    ready = sorted(spec.variables, key=lambda variable: variable.ready)
    backward = tuple(
        Segment(module=variable.name, seconds=time / 1000, variables=(variable.name,))
        for variable, time in zip(ready, milliseconds, strict=True)
    )
    return replace(spec, timeline=replace(spec.timeline, backward=backward))


def _groups(strategy: Strategy) -> list[tuple[str, ...]]:
    return [message.parts for message in strategy.messages]


@pytest.fixture
def six(model: Models, variable: Variables) -> ModelSpec:
    """Of 400 bytes each; gradients of f, e … a are ready after 0.4, 0.9, 1.1, 1.7, 4.6 and 4.7 ms."""
    return _timed(model(*(variable(name, 100) for name in "abcdef")), 0.4, 0.5, 0.2, 0.6, 2.9, 0.1)


def test_what_is_ready_in_one_cycle_is_fused(six: ModelSpec, cluster: Clusters) -> None:
    strategy = build_preset("horovod_fusion", six, cluster([1, 1]))
    # Cycles end after 1, 2, 3, 4 and 5 ms.
    assert _groups(strategy) == [("f", "e"), ("d", "c"), ("b", "a")]
    assert strategy.overlap == "backward"
    assert {message.synchroniser for message in strategy.messages} == {AllReduce()}
    longer = build_preset("horovod_fusion", six, cluster([1, 1]), cycle_time="3 ms")
    assert _groups(longer) == [("f", "e", "d", "c"), ("b", "a")]
    shorter = build_preset("horovod_fusion", six, cluster([1, 1]), cycle_time="300 us")
    assert _groups(shorter) == [("f",), ("e",), ("d",), ("c",), ("b", "a")]
    at_once = build_preset("horovod_fusion", six, cluster([1, 1]), cycle_time="0 s")
    assert _groups(at_once) == [("f",), ("e",), ("d",), ("c",), ("b",), ("a",)]


def test_slow_motion_leaves_less_to_a_cycle(six: ModelSpec, cluster: Clusters) -> None:
    strategy = build_preset("horovod_fusion", six.dilated(4), cluster([1, 1]))
    # 1.6, 3.6, 4.4, 6.8, 18.4 and 18.8 ms.
    assert _groups(strategy) == [("f",), ("e",), ("d",), ("c",), ("b", "a")]


def test_gradients_of_one_segment_are_ready_together(model: Models, variable: Variables, cluster: Clusters) -> None:
    spec = model(variable("a", 10), variable("b", 10), variable("c", 10))
    backward = (
        Segment(module="m", seconds=1.0, variables=("c", "b")),
        Segment(module="a", seconds=1.0, variables=("a",)),
    )
    timed = replace(spec, timeline=Timeline(device="none", source="computed", forward=(), backward=backward))
    assert _groups(build_preset("horovod_fusion", timed, cluster([1, 1]))) == [("c", "b"), ("a",)]
    assert _groups(build_preset("horovod_fusion", spec, cluster([1, 1]))) == [("c", "b", "a")], "no timeline: at once"


def test_the_threshold_is_rounded_up_where_nodes_are_alike(
    model: Models, variable: Variables, cluster: Clusters
) -> None:
    # Of 512 bytes 300 and 212 are full to the last; of 1024 all are; where nodes differ nothing is rounded.
    spec = model(variable("a", 75), variable("b", 53), variable("c", 75))
    assert _groups(build_preset("horovod_fusion", spec, cluster([1, 1]), threshold_bytes=100)) == [("c", "b"), ("a",)]
    assert _groups(build_preset("horovod_fusion", spec, cluster([2, 2]), threshold_bytes=600)) == [("c", "b", "a")]
    unlike = build_preset("horovod_fusion", spec, cluster([1, 2]), threshold_bytes=300)
    assert _groups(unlike) == [("c",), ("b",), ("a",)]
    assert _groups(build_preset("horovod_fusion", spec, cluster([2, 2]), threshold_bytes=0)) == [("c",), ("b",), ("a",)]


def test_rows_are_gathered_apart(model: Models, variable: Variables, cluster: Clusters) -> None:
    spec = model(variable("a", 4), variable("table", 9, 2, **ROWS), variable("b", 4))
    assert build_preset("horovod_fusion", spec, cluster([1, 1])).messages == (
        Message(parts=("table",), synchroniser=SparseGather()),
        Message(parts=("b", "a")),
    )


def _variable(name: str, num_bytes: int, dtype: DType = "float32") -> Variable:
    return Variable(name=name, shape=(num_bytes // (2 if dtype == "float16" else 4),), dtype=dtype, use=0, ready=0)


def _fused(*variables: Variable, threshold_bytes: int) -> list[str]:
    return ["".join(variable.name for variable in group) for group in fuse(variables, threshold_bytes)]


def test_a_group_is_full_when_the_next_does_not_fit() -> None:
    sizes = [_variable("a", 40), _variable("b", 60), _variable("c", 4), _variable("d", 200), _variable("e", 8)]
    # Exactly the threshold fits; what is larger goes alone; nothing small overtakes it.
    assert _fused(*sizes, threshold_bytes=100) == ["ab", "c", "d", "e"]


def test_another_dtype_is_passed_over_as_long_as_it_would_fit() -> None:
    mixed = [_variable("a", 12), _variable("h", 30, "float16"), _variable("b", 20), _variable("i", 30, "float16")]
    assert _fused(*mixed, threshold_bytes=100) == ["ab", "hi"]
    # 12 and the 30 passed over do not fit: b is not reached.
    assert _fused(*mixed, threshold_bytes=40) == ["a", "h", "b", "i"]
    # 12 and 30 fit, and with b (32) another 30 passed over makes 92: too much for c to be reached.
    last = _variable("c", 4)
    assert _fused(*mixed, last, threshold_bytes=91) == ["ab", "hi", "c"]
    assert _fused(*mixed, last, threshold_bytes=92) == ["abc", "hi"]


@given(model=models(), threshold_bytes=st.integers(0, 5000))
def test_groups_keep_what_they_are_told(model: ModelSpec, threshold_bytes: int) -> None:
    groups = fuse(model.variables, threshold_bytes)
    assert sorted(v.name for group in groups for v in group) == sorted(v.name for v in model.variables)
    for group in groups:
        assert len({variable.dtype for variable in group}) == 1
        assert len(group) == 1 or sum(variable.num_bytes for variable in group) <= threshold_bytes
        positions = [model.variables.index(variable) for variable in group]
        assert positions == sorted(positions)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"cycle_time": 5}, r"5 is no cycle_time \(a time such as '2.5 ms'\)"),
        ({"cycle_time": "5"}, "'5' is no cycle_time"),
        ({"threshold_bytes": -1}, "-1 is no threshold_bytes"),
    ],
)
def test_wrong_options_are_told(six: ModelSpec, cluster: Clusters, options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        build_preset("horovod_fusion", six, cluster([1, 1]), **options)
