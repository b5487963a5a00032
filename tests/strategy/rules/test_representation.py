"""The fields of a strategy are checked when it is built; parts have names; classes follow from the messages."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autosync.strategy.codecs import Cast, Int8, PowerSGD, TopK
from autosync.strategy.parts import Partition, PartName, parts_of
from autosync.strategy.representation import Message, Strategy
from autosync.strategy.shapes.trees import TreeShare
from autosync.strategy.synchronisers.all_reduce import AllReduce
from autosync.strategy.synchronisers.outer_optimizer import OuterOptimizer
from autosync.strategy.synchronisers.parameter_server import ParameterServer
from autosync.strategy.synchronisers.periodic import Periodic
from autosync.strategy.synchronisers.sharded import Sharded
from tests.helpers.random_specs import random_model

INVALID: list[tuple[Callable[..., Any], dict[str, Any], str]] = [
    (OuterOptimizer, {"learning_rate": 0.0}, "no outer optimizer"),
    (OuterOptimizer, {"learning_rate": float("nan")}, "no outer optimizer"),
    (OuterOptimizer, {"momentum": 1.0}, "no outer optimizer"),
    (ParameterServer, {"server": "a", "staleness": -1}, "staleness -1 looks ahead (0 or more steps)"),
    (ParameterServer, {"server": "a", "staleness": 1, "update": "worker"}, "a stale server must hold the parameters"),
    (Periodic, {"every": 0}, "every 0 steps is never (1 or more)"),
    (AllReduce, {"topology": "trees"}, "a shape without shares carries nothing (at least one share)"),
    (AllReduce, {"trees": (TreeShare(up=(0, 0)),)}, "trees with topology native (only topology trees has trees)"),
    (Sharded, {"topology": "trees"}, "a shape without shares carries nothing (at least one share)"),
    (Sharded, {"trees": (TreeShare(up=(0, 0)),)}, "trees with topology native (only topology trees has trees)"),
    (Int8, {"block": 0}, "a block of 0 numbers holds none (1 or more)"),
    (TopK, {"ratio": 0.0}, "a ratio of 0.0 sends nothing or more than all (0 < ratio <= 1)"),
    (TopK, {"ratio": 1.5}, "a ratio of 1.5 sends nothing or more than all (0 < ratio <= 1)"),
    (TopK, {"momentum": 1.0}, "1.0 is no momentum (0 <= momentum < 1)"),
    (TopK, {"momentum": -0.1}, "-0.1 is no momentum (0 <= momentum < 1)"),
    (TopK, {"momentum": float("nan")}, "nan is no momentum (0 <= momentum < 1)"),
    (TopK, {"momentum": 0.9, "error_feedback": False}, "momentum needs error_feedback: true"),
    (PowerSGD, {"rank": 0}, "rank 0 approximates nothing (1 or more)"),
    (Partition, {"sizes": ()}, "sizes [] have an empty part (each part has 1 or more)"),
    (Partition, {"sizes": (3, 0)}, "sizes [3, 0] have an empty part (each part has 1 or more)"),
    (Partition, {"sizes": (3,), "axis": -1}, "axis -1 counts from the end (0 or more)"),
    (Message, {"parts": ()}, "a message without parts (at least one)"),
    (Message, {"parts": ("a",), "priority": -1}, "priority and lane count from 0 (0 or more)"),
    (Message, {"parts": ("a",), "lane": -1}, "priority and lane count from 0 (0 or more)"),
    (Message, {"parts": ("a",), "slice_bytes": 1023}, "slices of 1023 B are all overhead (1 KiB or more)"),
]


@pytest.mark.parametrize(("kind", "fields", "message"), INVALID)
def test_a_value_that_cannot_be_is_refused(kind: Callable[..., Any], fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=r".") as caught:
        kind(**fields)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("fc.weight", PartName("fc.weight")),
        ("fc.weight[0]", PartName("fc.weight", 0, whole=False)),
        ("a b/ü[12]", PartName("a b/ü", 12, whole=False)),
    ],
)
def test_part_names_read_back(text: str, name: PartName) -> None:
    assert PartName.parse(text) == name
    assert str(name) == text


@pytest.mark.parametrize("text", ["", "[0]", "a[", "a]", "a[]", "a[-1]", "a[01]", "a[1][2]", "a[x]", "a" * 5000])
def test_what_names_no_part_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="names no part"):
        PartName.parse(text)


@pytest.mark.parametrize(
    ("message", "classes"),
    [
        (Message(parts=("a",)), {"exact"}),
        (Message(parts=("a",), synchroniser=Periodic(every=1)), {"exact"}),
        (Message(parts=("a",), codec=Cast()), {"lossy"}),
        (Message(parts=("a",), synchroniser=ParameterServer(server="n", staleness=1)), {"stale"}),
        (Message(parts=("a",), synchroniser=Periodic(every=2)), {"stale"}),
        (Message(parts=("a",), synchroniser=Periodic(every=1, outer=OuterOptimizer())), {"stale"}),
        (
            Message(parts=("a",), synchroniser=ParameterServer(server="n", staleness=1), codec=Int8()),
            {"lossy", "stale"},
        ),
    ],
)
def test_classes(message: Message, classes: set[str]) -> None:
    strategy = Strategy(messages=(Message(parts=("b",)), message))
    assert strategy.classes == classes
    assert strategy.is_exact == (classes == {"exact"})


@given(st.randoms(use_true_random=False))
def test_parts_cover_a_variable_once(rng: Any) -> None:
    for variable in random_model(rng).variables:
        (whole,) = parts_of(variable, None)
        assert (str(whole.name), whole.shape, whole.num_bytes) == (variable.name, variable.shape, variable.num_bytes)
        for axis, size in enumerate(variable.shape):
            bounds = sorted({0, size, *(rng.randrange(size) for _ in range(3))})
            sizes = tuple(end - begin for begin, end in itertools.pairwise(bounds))
            parts = parts_of(variable, Partition(axis=axis, sizes=sizes))
            assert [part.end for part in parts[:-1]] == [part.begin for part in parts[1:]]
            assert (parts[0].begin, parts[-1].end) == (0, size)
            assert sum(part.num_bytes for part in parts) == variable.num_bytes
            assert [part.shape[axis] for part in parts] == list(sizes)
            assert [str(part.name) for part in parts] == [f"{variable.name}[{i}]" for i in range(len(sizes))]
            assert min(part.order for part in parts) == parts[0].order
