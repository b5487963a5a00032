"""Strategies as columns: they say the same."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autosync.strategy.codecs import Cast
from autosync.strategy.columns import NO_SLICES, OVERLAPS, WHOLE, Numbering
from autosync.strategy.parts import Partition
from autosync.strategy.representation import Message, Strategy
from autosync.strategy.space import Limits, Space
from autosync.strategy.synchronisers.all_reduce import AllReduce
from autosync.strategy.synchronisers.parameter_server import ParameterServer
from tests.helpers.example_plans import model_of
from tests.helpers.random_specs import random_cluster, random_model

STRATEGY = Strategy(
    name="mine",
    overlap="forward",
    partitions={"linear": Partition(axis=1, sizes=(2, 3))},
    messages=(
        Message(parts=("linear[1]", "bias"), codec=Cast(), priority=3, lane=1, slice_bytes=1024),
        Message(parts=("table",), synchroniser=ParameterServer(server="n1")),
        Message(parts=("linear[0]",), synchroniser=AllReduce()),
    ),
)


@given(seed=st.integers(0, 2**32))
def test_strategies_can_be_read_back(seed: int) -> None:
    rng = random.Random(seed)
    model, cluster = random_model(rng), random_cluster(rng)
    space = Space(model=model, cluster=cluster, limits=Limits(allow=("lossy", "stale"), slice_bytes=(1024,)))
    strategies = [space.sample(rng) for _ in range(rng.randrange(4))]
    numbering = Numbering(model)
    assert numbering.decode(numbering.encode(strategies)) == strategies
    # Numbers stay what they are, whatever is met later.
    columns = numbering.encode(strategies[:1])
    numbering.encode([space.sample(rng)])
    assert numbering.decode(columns) == strategies[:1]


def test_every_number_says_one_thing() -> None:
    numbering = Numbering(model_of())
    columns = numbering.encode([STRATEGY, replace(STRATEGY, overlap="backward", messages=STRATEGY.messages)])
    assert [OVERLAPS[number] for number in columns.overlap] == ["forward", "backward"]
    assert columns.first_message.tolist() == [0, 3, 6]
    assert numbering.synchronisers == (AllReduce(), ParameterServer(server="n1"))
    assert columns.synchroniser[:3].tolist() == [0, 1, 0]
    assert [numbering.codecs[number] for number in columns.codec[:3]] == [Cast(), None, None]
    assert columns.priority[:3].tolist() == [3, 0, 0]
    assert columns.lane[:3].tolist() == [1, 0, 0]
    assert columns.slice_bytes[:3].tolist() == [1024, NO_SLICES, NO_SLICES]
    assert columns.first_part[:4].tolist() == [0, 2, 3, 4]
    assert columns.variable[:4].tolist() == [1, 2, 0, 1]
    assert columns.number[:4].tolist() == [1, WHOLE, WHOLE, 0]
    assert list(zip(columns.axis, columns.begin, columns.end, strict=True))[:4] == [
        (1, 2, 5),
        (0, 0, 5),
        (0, 0, 6),
        (1, 0, 2),
    ]


def test_a_strategy_for_another_model_has_no_columns() -> None:
    with pytest.raises(KeyError, match="conv"):
        Numbering(model_of()).encode([Strategy(messages=(Message(parts=("conv",)),))])
