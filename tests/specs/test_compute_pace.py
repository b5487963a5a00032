"""Paces follow the cluster file's speeds and the shares, by measured sizes where there are some."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autosync.plan.bound import bound
from autosync.specs.batch_times import BatchTime
from autosync.specs.cluster import ClusterSpec, Node
from autosync.specs.compute_pace import Pace, at_pace, compute_seconds, least_passes, paces_of, share_factor
from autosync.specs.model import ModelSpec
from autosync.specs.model_file import load_model

SPEEDS = (1.0, 1.0, 2.0, 4.0)


def _cluster(*speeds: float) -> ClusterSpec:
    nodes = tuple(
        Node(name=f"n{i}", host=f"n{i}", bandwidth_out=1e12, bandwidth_in=1e12, compute=speed)
        for i, speed in enumerate(speeds)
    )
    return ClusterSpec(name="test", nodes=nodes)


@pytest.fixture
def model() -> ModelSpec:
    return replace(load_model("resnet20"), batch_size=8)


def _with_sizes(model: ModelSpec, *seconds: float) -> ModelSpec:
    sizes = tuple(BatchTime(num_examples=count, seconds=one) for count, one in zip((4, 8, 16), seconds, strict=True))
    return replace(model, timeline=replace(model.timeline, sizes=sizes))


def test_without_shares_each_rank_has_the_pace_of_its_node(model: ModelSpec) -> None:
    assert paces_of(model, _cluster(1, 0.5)) == (Pace(), Pace(passes=2, update=2))
    assert compute_seconds(model, _cluster(1, 1)) == model.step_seconds
    assert compute_seconds(model, _cluster(1, 0.5)) == pytest.approx(2 * model.step_seconds)
    assert at_pace(model, Pace()) is model


def test_shares_change_the_passes_and_not_the_update(model: ModelSpec) -> None:
    assert paces_of(model, _cluster(1, 4), (4, 12)) == (Pace(passes=0.5), Pace(passes=0.375, update=0.25))
    paced = at_pace(model, Pace(passes=3, update=2))
    assert paced.num_bytes == model.num_bytes
    assert paced.timeline.forward[0].seconds == pytest.approx(3 * model.timeline.forward[0].seconds)
    assert paced.timeline.optimizer[0].seconds == pytest.approx(2 * model.timeline.optimizer[0].seconds)


def test_measured_sizes_are_interpolated(model: ModelSpec) -> None:
    sized = _with_sizes(model, 6.0, 8.0, 12.0)
    assert [share_factor(sized, count) for count in (4, 6, 8, 12, 16, 24)] == [0.75, 0.875, 1.0, 1.25, 1.5, 2.0]
    assert share_factor(sized, 2) == 0.625
    # Where the line would fall below what the examples take in proportion, that is what they take.
    steep = _with_sizes(model, 1.0, 8.0, 16.0)
    assert share_factor(steep, 2) == pytest.approx(0.5 / 8)


def test_the_bound_divides_the_batch_as_well_as_can_be(model: ModelSpec) -> None:
    assert least_passes(model, _cluster(1, 1, 1)) == 1
    assert least_passes(model, _cluster(*SPEEDS)) == pytest.approx(4 / sum(SPEEDS))
    compute, *_ = bound(model, _cluster(*SPEEDS)).terms
    even, *_ = bound(model, _cluster(1, 1, 1, 1)).terms
    assert compute.seconds == pytest.approx(even.seconds / 2)


@given(seconds=st.lists(st.floats(0.5, 9), min_size=3, max_size=3).map(sorted), speeds=st.permutations(SPEEDS))
def test_no_shares_are_better_than_the_bound_says(seconds: list[float], speeds: list[float]) -> None:
    model, cluster = _with_sizes(replace(load_model("resnet20"), batch_size=8), *seconds), _cluster(*speeds)
    least = least_passes(model, cluster)
    for shares in ((8, 8, 8, 8), (4, 4, 8, 16), (2, 6, 10, 14), (16, 8, 4, 4), (1, 1, 1, 29)):
        slowest = max(pace.passes for pace in paces_of(model, cluster, shares))
        assert slowest >= least * (1 - 1e-9)
