"""The parts of a step's time, and the possible gain."""

from dataclasses import replace

import pytest

from autosync.datasets.measured_input import MeasuredInput
from autosync.datasets.schema import Measurement
from autosync.plan.bound import bound
from autosync.search.headroom import Headroom, possible_gain, time_shares, with_loader
from autosync.search.link_times import LinkTime
from autosync.specs.cluster import ClusterSpec, Node
from autosync.specs.model import ModelSpec

TWO = ClusterSpec(
    name="two",
    nodes=(
        Node(name="a", host="a", bandwidth_out=1e6, bandwidth_in=1e6),
        Node(name="b", host="b", bandwidth_out=2e6, bandwidth_in=2e6),
    ),
)


def _measured(seconds: float, num_bytes: int | None = None) -> Measurement:
    counts = None if num_bytes is None else (num_bytes, num_bytes)
    return Measurement(
        step_seconds=((seconds,), (seconds,)),
        median_seconds=seconds,
        low_seconds=seconds,
        high_seconds=seconds,
        num_warmup_steps=4,
        peak_memory_bytes=(1, 1),
        bytes_sent=counts,
        bytes_received=counts,
    )


def test_the_time_of_a_step_is_compute_exposed_communication_and_waiting(model: ModelSpec) -> None:
    assert model.step_seconds == pytest.approx(0.02)
    # 30 ms on the slower link; 20 ms of compute; of 70 ms both together leave 20.
    shares = time_shares(_measured(0.07, 30_000), model, TWO, None)
    assert (shares.compute, shares.exposed, shares.idle) == pytest.approx((0.02, 0.03, 0.02))
    assert shares.link == LinkTime("interface of a, out", pytest.approx(0.03))
    assert str(shares) == (
        "70 ms a step: compute 20 ms, exposed communication 30 ms, waiting with nothing busy 20 ms, "
        "interface of a, out: 43% busy"
    )
    # Processors that are busy for 10 ms of the 70 may have been so in what is left.
    busy = time_shares(replace(_measured(0.07, 30_000), cpu_share=1 / 7), model, TWO, None)
    assert (busy.exposed, busy.idle) == pytest.approx((0.04, 0.01))
    assert busy.busiest == [("interface of a, out", pytest.approx(3 / 7)), ("processors", pytest.approx(1 / 7))]
    # Where they are busier than any link, they come first, and nothing was idle.
    full = time_shares(replace(_measured(0.07, 30_000), cpu_share=0.9), model, TWO, None)
    assert full.idle == 0.0
    assert str(full).endswith("nothing busy 0 s, processors: 90% busy, interface of a, out: 43% busy")
    # What is hidden behind compute is not exposed.
    hidden = time_shares(_measured(0.03, 30_000), model, TWO, None)
    assert (hidden.compute, hidden.exposed, hidden.idle) == pytest.approx((0.02, 0.01, 0.0))


def test_waits_for_input_are_no_communication_where_steps_have_them(model: ModelSpec, cluster: ClusterSpec) -> None:
    before = replace(_measured(0.07), input=MeasuredInput(wait_seconds=(0.03, 0.04)))
    assert time_shares(before, model, cluster, None).exposed == pytest.approx(0.05)
    within = replace(_measured(0.07), input=MeasuredInput(wait_seconds=(0.03, 0.04), in_step=True))
    shares = time_shares(within, model, cluster, None)
    assert (shares.exposed, shares.input) == pytest.approx((0.01, 0.04))
    assert "waiting for input 40 ms" in str(shares)
    limit = bound(model, cluster)
    assert str(possible_gain(within, model, cluster, limit)) == (
        "communication that compute does not hide is 14% of stock DDP's step, and waiting for input, which no "
        "synchronisation shortens, is 57%; no exact strategy on this cluster can be more than 1.17 times as fast "
        "(60 ms: waiting for the loader's batch, forward and backward)"
    )
    # Where tuning chooses the loader's settings, the waits are no limit.
    assert possible_gain(before, model, cluster, limit).bound == limit


def test_no_strategy_is_faster_than_the_loaders_of_a_script(model: ModelSpec, cluster: ClusterSpec) -> None:
    limit = bound(model, cluster)
    assert with_loader(limit, None) == limit
    told = str(possible_gain(_measured(0.07), model, cluster, with_loader(limit, 0.05)))
    assert told.endswith("can be more than 1.40 times as fast (50 ms: in which loaders make a batch)")


def test_without_counted_bytes_nobody_knows_who_waits(model: ModelSpec, cluster: ClusterSpec) -> None:
    for shares in (
        time_shares(_measured(0.05), model, TWO, None),
        time_shares(_measured(0.05, 9), model, cluster, None),
    ):
        assert shares.idle is None
        assert shares.exposed == pytest.approx(0.03)
        assert "nothing busy" not in str(shares)


def test_a_step_that_is_faster_than_its_compute(model: ModelSpec) -> None:
    shares = time_shares(_measured(0.01, 10), model, TWO, None)
    assert (shares.compute, shares.exposed, shares.idle) == pytest.approx((0.01, 0.0, 0.0))


def test_how_much_there_is_to_gain_and_why_no_more(model: ModelSpec, cluster: ClusterSpec) -> None:
    much = possible_gain(_measured(0.05), model, cluster, bound(model, cluster))
    assert much.most == pytest.approx(2.5)
    assert str(much) == (
        "communication that compute does not hide is 60% of stock DDP's step; no exact strategy on this cluster can be "
        "more than 2.50 times as fast (20 ms: forward and backward)"
    )
    little = possible_gain(_measured(0.0202), model, cluster, bound(model, cluster))
    assert str(little) == (
        "communication that compute does not hide is 1% of stock DDP's step, and no exact strategy on this cluster can "
        "be more than 1.0% faster"
    )
    none = possible_gain(_measured(0.0198), model, cluster, bound(model, cluster))
    assert none.most == 1.0
    assert str(none).endswith(": it is as fast as any exact strategy on this cluster can be")


def test_a_step_that_is_shorter_than_the_bound_refutes_it(model: ModelSpec, cluster: ClusterSpec) -> None:
    limit = bound(model, cluster)
    assert "how much is left is not known (autosync cluster probe" in str(
        possible_gain(_measured(0.01), model, cluster, limit)
    )
    assert Headroom(step=0.01, bound=limit).share == pytest.approx(2.0)
    assert str(Headroom(step=0.01, bound=limit)) == (
        "10 ms a step is shorter than the links' rates and the profile allow, so how much is left is not known "
        "(autosync cluster probe measures the rates)"
    )


def test_what_the_wire_needs_bounds_the_gain_too(model: ModelSpec) -> None:
    slow = replace(TWO, nodes=tuple(replace(n, bandwidth_out=1e5, bandwidth_in=1e5) for n in TWO.nodes))
    found = possible_gain(_measured(0.2), model, slow, bound(model, slow))
    assert found.bound.largest.kind != "compute"
    assert found.most < 0.2 / 0.02


def test_how_much_a_winner_leaves(model: ModelSpec, cluster: ClusterSpec) -> None:
    limit = bound(model, cluster)
    some = Headroom(step=0.025, bound=limit)
    assert (some.share, some.most) == pytest.approx((0.8, 1.25))
    assert str(some) == ("0.80 of the bound: at most 1.25 times as fast is left (20 ms: forward and backward)")
    none = Headroom(step=0.0198, bound=limit)
    assert (none.share, none.most) == (1.0, 1.0)
    assert str(none) == "no exact strategy on this cluster can be faster"
