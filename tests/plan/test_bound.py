"""The bound: its terms in numbers, and that no exact strategy moves fewer bytes than it says."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from autosync.plan.bound import bound
from autosync.plan.bound_terms import Bound, Rates, Term
from autosync.specs.cluster import ClusterSpec, Node, Rack
from autosync.specs.model import ModelSpec, OptimizerSpec, Segment, Timeline, Variable
from autosync.specs.use_sample import UseSample

MEGABYTE = 1_000_000
RATE = 1e8


def worker(name: str, *, devices: int = 1, rate: float = RATE, into: float = 0, rack: str | None = None) -> Node:
    return Node(name=name, host=name, devices=devices, bandwidth_out=rate, bandwidth_in=into or rate, rack=rack)


def server(name: str, *, rate: float = RATE) -> Node:
    return Node(name=name, host=name, role="server", devices=0, bandwidth_out=rate, bandwidth_in=rate)


def cluster_of(*nodes: Node, racks: Sequence[Rack] = ()) -> ClusterSpec:
    return ClusterSpec(name="test", nodes=nodes, racks=tuple(racks))


def model_of(
    *variables: Variable,
    forward: Sequence[tuple[float, tuple[str, ...]]] = (),
    backward: Sequence[tuple[float, tuple[str, ...]]] = (),
    accumulation_steps: int = 1,
    clip_norm: float | None = None,
) -> ModelSpec:
    def segments(given: Sequence[tuple[float, tuple[str, ...]]]) -> tuple[Segment, ...]:
        return tuple(Segment(module="m", seconds=seconds, variables=names) for seconds, names in given)

    return ModelSpec(
        name="test",
        accumulation_steps=accumulation_steps,
        clip_norm=clip_norm,
        optimizer=OptimizerSpec(name="SGD", sparse=True),
        variables=variables,
        timeline=Timeline(
            device="none",
            source="computed",
            forward=segments(forward),
            backward=segments(backward),
            optimizer=(Segment(module="m", seconds=100.0),),
        ),
    )


def dense(name: str = "w", num_elements: int = MEGABYTE, *, use: int = 0, ready: int = 0) -> Variable:
    return Variable(name=name, shape=(num_elements,), use=use, ready=ready)


def term(found: Bound, kind: str, subject: str = "") -> Term:
    (chosen,) = [one for one in found.terms if one.kind == kind and one.subject == subject]
    return chosen


def test_equal_hosts_are_bound_by_all_interfaces_together() -> None:
    cluster = cluster_of(*(worker(f"n{index}") for index in range(4)))
    found = bound(model_of(dense()), cluster)
    assert found.largest == term(found, "total")
    assert found.seconds == pytest.approx(2 * 3 * 4 * MEGABYTE / (4 * RATE))
    assert term(found, "node_out", "n2").num_bytes == 4 * MEGABYTE
    assert term(found, "node_in", "n2").seconds == pytest.approx(4 * MEGABYTE / RATE)


def test_servers_add_their_interfaces() -> None:
    workers = [worker(f"n{index}") for index in range(4)]
    found = bound(model_of(dense()), cluster_of(*workers, server("s", rate=2 * RATE)))
    assert term(found, "total").seconds == pytest.approx(2 * 3 * 4 * MEGABYTE / ((4 + 2 * 2 / 3) * RATE))
    assert not [one for one in found.terms if one.subject == "s"]


def test_beside_servers_both_directions_count_together() -> None:
    workers = [worker(f"n{index}") for index in range(3)]
    found = bound(model_of(dense()), cluster_of(*workers, server("s"), server("t")))
    assert found.largest == term(found, "both_ways")
    assert found.seconds == pytest.approx(12 / 11 * 4 * MEGABYTE / RATE)
    assert term(found, "total").seconds < found.seconds
    assert "leave and enter all interfaces" in str(found.largest)


def test_rows_beside_servers_count_as_in_one_direction() -> None:
    found = bound(model_of(embedding()), cluster_of(*(worker(f"n{index}") for index in range(3)), server("s")))
    assert term(found, "both_ways").num_bytes == pytest.approx(2 * term(found, "total").num_bytes * 2 / 3)


def test_uplinks_of_racks_without_workers_count_in_both_directions_together() -> None:
    racks = [Rack(name=name, uplink_out=RATE, uplink_in=RATE) for name in "abcd"]
    nodes = [worker(name, rate=9 * RATE, rack=name) for name in "abc"]
    spare = replace(server("s", rate=9 * RATE), rack="d")
    found = bound(model_of(dense()), cluster_of(*nodes, spare, racks=racks))
    assert found.largest == term(found, "rack_both_ways")
    assert found.seconds == pytest.approx(4 * 2 / (2 * (3 + 1 / 3)) * 4 * MEGABYTE / RATE)


def test_the_narrower_direction_bounds_the_total() -> None:
    cluster = cluster_of(worker("a", rate=RATE, into=RATE / 2), worker("b", rate=RATE, into=RATE / 2))
    assert term(bound(model_of(dense()), cluster), "total").seconds == pytest.approx(2 * 4 * MEGABYTE / RATE)


def test_a_slow_node_bounds() -> None:
    cluster = cluster_of(*(worker(f"n{index}", rate=RATE if index else RATE / 10) for index in range(8)))
    found = bound(model_of(dense()), cluster)
    assert found.largest == term(found, "node_out", "n0")
    assert found.seconds == pytest.approx(10 * 4 * MEGABYTE / RATE)


def test_ranks_of_one_node_speak_with_one_voice() -> None:
    one_each = bound(model_of(dense()), cluster_of(worker("a"), worker("b")))
    eight_each = bound(model_of(dense()), cluster_of(worker("a", devices=8), worker("b", devices=8)))
    assert one_each == eight_each


def test_who_is_alone_needs_nothing() -> None:
    model = model_of(dense(), forward=[(1.0, ("w",))], backward=[(2.0, ("w",))])
    found = bound(model, cluster_of(worker("a", devices=4), server("s")))
    assert [one.kind for one in found.terms] == ["compute"]
    assert found.seconds == 3.0


def test_compute_counts_every_microstep_and_no_update() -> None:
    model = model_of(dense(), forward=[(1.0, ("w",))], backward=[(2.0, ("w",))], accumulation_steps=4)
    assert term(bound(model, cluster_of(worker("a"), worker("b"))), "compute").seconds == 12.0


def linear(*, rows: int, factor_rows: int) -> Variable:
    return Variable(name="fc", shape=(rows, rows), kind="linear", factor_rows=factor_rows, use=0, ready=0)


def test_factors_where_they_are_fewer() -> None:
    """A node of two ranks sends two factor pairs, and hears four; 1000 x 1000 numbers are 4 MB, a pair is 80 kB."""
    pair = 10 * 2000 * 4
    cluster = cluster_of(worker("a", devices=2), worker("b", devices=2), worker("c", devices=2))
    found = bound(model_of(linear(rows=1000, factor_rows=10)), cluster)
    assert term(found, "node_out", "a").num_bytes == 2 * pair
    assert term(found, "node_in", "a").num_bytes == 4 * pair
    assert term(found, "total").num_bytes == 2 * 6 * pair
    assert term(found, "use_to_use", "fc").num_bytes == pair


def test_each_term_takes_the_least() -> None:
    """With 300 rows a pair is 2.4 MB: one rank's is less than dense, the two others' together are more."""
    pair = 300 * 2000 * 4
    found = bound(model_of(linear(rows=1000, factor_rows=300)), cluster_of(worker("a"), worker("b"), worker("c")))
    assert term(found, "node_out", "a").num_bytes == pair
    assert term(found, "node_in", "a").num_bytes == 4 * MEGABYTE
    assert term(found, "total").num_bytes == 2 * 3 * pair


def test_factors_of_microsteps_do_not_add_up() -> None:
    model = model_of(linear(rows=1000, factor_rows=10), accumulation_steps=2)
    assert term(bound(model, cluster_of(worker("a"), worker("b"))), "node_out", "a").num_bytes == 4 * MEGABYTE


def embedding() -> Variable:
    return Variable(
        name="table",
        shape=(10_000, 16),
        kind="embedding",
        touched_rows=50.5,
        max_touched_rows=100,
        use=0,
        ready=0,
    )


def test_touched_rows_without_their_indices() -> None:
    found = bound(model_of(embedding()), cluster_of(worker("a"), worker("b", devices=3), worker("c")))
    assert term(found, "node_out", "b").num_bytes == 50.5 * 64
    assert term(found, "node_in", "a").num_bytes == 50.5 * 64
    assert term(found, "total").num_bytes == 2 * 2 * 50.5 * 64


def test_rows_that_are_drawn_evenly_have_a_union_and_indices() -> None:
    """Of 10,000 rows one rank touches 50.5, two 100.7 together, four 200.5; with its index a row has 72 bytes."""
    cluster = cluster_of(worker("a"), worker("b", devices=2), worker("c"))
    found = bound(model_of(embedding()), cluster, even_rows=True)
    one, two, three, all_ranks = (10_000 * (1 - (1 - 0.00505) ** count) for count in (1, 2, 3, 4))
    assert term(found, "node_out", "a").num_bytes == pytest.approx(one * 72)
    assert term(found, "node_out", "b").num_bytes == pytest.approx(two * 72)
    assert term(found, "node_in", "a").num_bytes == pytest.approx(three * 72)
    assert term(found, "total").num_bytes == pytest.approx((one + two + one + all_ranks) * 72)


def test_of_rows_that_nearly_all_are_touched_the_table_is_less() -> None:
    """With indices all 10,000 rows would be 720 kB, of which the whole table is 640."""
    table = Variable(
        name="table", shape=(10_000, 16), kind="embedding", touched_rows=9000.0, max_touched_rows=10_000, use=0, ready=0
    )
    found = bound(model_of(table), cluster_of(worker("a"), worker("b")), even_rows=True)
    assert term(found, "node_in", "a").num_bytes == pytest.approx(640_000 * 9000 / 9900)


def test_uplinks_together_bound_what_three_racks_exchange() -> None:
    """Two of three racks send all that they know before one knows everything, and it must tell both."""
    racks = [Rack(name=name, uplink_out=RATE / 4, uplink_in=RATE / 2) for name in "xyz"]
    cluster = cluster_of(*[worker(f"{home}{one}", rack=home) for home in "xyz" for one in (1, 2)], racks=racks)
    found = bound(model_of(dense()), cluster)
    assert term(found, "rack_total").seconds == pytest.approx(4 / 3 * 4 * 4 * MEGABYTE / RATE)
    assert found.largest == term(found, "rack_total")
    fewer = cluster_of(*[worker(f"{home}{one}", rack=home) for home in "xy" for one in (1, 2)], racks=racks[:2])
    assert not [one for one in bound(model_of(dense()), fewer).terms if one.kind == "rack_total"]


def test_a_task_that_clips_sends_tables_whole() -> None:
    found = bound(model_of(embedding(), clip_norm=1.0), cluster_of(worker("a"), worker("b")))
    assert term(found, "node_out", "a").num_bytes == 10_000 * 64


def test_racks() -> None:
    racks = [Rack(name="east", uplink_out=RATE / 4, uplink_in=RATE / 8), Rack(name="empty", uplink_out=1, uplink_in=1)]
    cluster = cluster_of(worker("a", rack="east"), worker("b", rack="east"), worker("c"), racks=racks)
    found = bound(model_of(dense()), cluster)
    assert term(found, "rack_out", "east").seconds == pytest.approx(4 * 4 * MEGABYTE / RATE)
    assert term(found, "rack_in", "east").seconds == pytest.approx(8 * 4 * MEGABYTE / RATE)
    assert found.largest == term(found, "rack_in", "east")
    assert not [one for one in found.terms if one.subject == "empty"]


def test_from_use_to_next_use() -> None:
    """The last gradient to be ready is that of the first module: its transfer stands between two steps."""
    model = model_of(
        dense("first", use=0, ready=1),
        dense("second", use=1, ready=0),
        forward=[(1.0, ("first",)), (2.0, ("second",))],
        backward=[(4.0, ("second",)), (8.0, ("first",))],
    )
    found = bound(model, cluster_of(worker("a"), worker("b")))
    wire = 4 * MEGABYTE / RATE
    assert term(found, "use_to_use", "first").seconds == pytest.approx(15 + wire)
    assert term(found, "use_to_use", "second").seconds == pytest.approx(6 + wire)
    assert found.largest == term(found, "use_to_use", "first")


def test_on_faster_devices_all_times_of_compute_are_shorter() -> None:
    """All nodes compute twice as fast as the profiled device, which makes all times of compute half as long."""
    model = model_of(
        dense("first", use=0, ready=1),
        dense("second", use=1, ready=0),
        forward=[(1.0, ("first",)), (2.0, ("second",))],
        backward=[(4.0, ("second",)), (8.0, ("first",))],
    )
    found = bound(model, cluster_of(*(replace(worker(name), compute=2.0) for name in "ab")))
    wire = 4 * MEGABYTE / RATE
    assert found.terms[0].seconds == pytest.approx(15 / 2)
    assert term(found, "use_to_use", "first").seconds == pytest.approx(15 / 2 + wire)
    assert term(found, "use_to_use", "second").seconds == pytest.approx(6 / 2 + wire)


def test_gradients_that_must_pass_between_the_same_two_moments_wait_for_one_another() -> None:
    """The first two modules' gradients, both of them 4 MB, pass between second's gradient and its next use."""
    model = model_of(
        dense("first", use=0, ready=2),
        dense("second", use=1, ready=1),
        dense("third", use=2, ready=0, num_elements=10),
        forward=[(0.01, ("first",)), (0.02, ("second",)), (0.5, ("third",))],
        backward=[(0.5, ("third",)), (0.01, ("second",)), (0.02, ("first",))],
    )
    found = bound(model, cluster_of(worker("a"), worker("b")))
    wire = 4 * MEGABYTE / RATE
    window = term(found, "window", "first and 1 more")
    assert window.seconds == pytest.approx(1.04 - 0.01 + 2 * wire)
    assert window.num_bytes == 8 * MEGABYTE
    assert found.largest == window
    assert str(window) == "1.11 s: from the gradients to the next uses of first and 1 more (8 MB)"


def test_a_window_lasts_until_the_last_of_its_uses() -> None:
    """From the first gradient of the two on, and up to the second module's use; one variable alone has no window."""
    model = model_of(
        dense("first", use=0, ready=1),
        dense("last", use=1, ready=0),
        forward=[(0.01, ("first",)), (0.02, ("last",))],
        backward=[(0.5, ("last",)), (0.01, ("first",))],
    )
    found = bound(model, cluster_of(worker("a"), worker("b")))
    wire = 4 * MEGABYTE / RATE
    assert term(found, "window", "first and 1 more").seconds == pytest.approx(0.53 - 0.01 + 2 * wire)
    assert not [
        one for one in bound(model_of(dense()), cluster_of(worker("a"), worker("b"))).terms if one.kind == "window"
    ]


def test_the_next_use_of_a_variable_that_some_steps_do_not_use_may_be_far() -> None:
    model = model_of(
        dense("first", use=0, ready=1),
        dense("second", use=1, ready=0),
        forward=[(1.0, ("first",)), (2.0, ("second",))],
        backward=[(4.0, ("second",)), (8.0, ("first",))],
    )
    rarely = UseSample(groups=(("first",),), steps=(("0", "0"), ("1", "1")))
    found = bound(replace(model, use_sample=rarely), cluster_of(worker("a"), worker("b")))
    assert [one.subject for one in found.terms if one.kind in ("use_to_use", "window")] == ["second"]
    assert term(found, "node_out", "a").num_bytes == 6 * MEGABYTE


def test_uplinks_are_on_the_way_to_who_is_not_in_the_rack() -> None:
    racks = [Rack(name=name, uplink_out=RATE / 4, uplink_in=RATE) for name in ("east", "west")]
    nodes = [worker("a", rack="east"), worker("b", rack="east")]
    wire = 4 * MEGABYTE / RATE
    across = bound(model_of(dense()), cluster_of(*nodes, worker("c", rack="west"), racks=racks))
    assert term(across, "use_to_use", "w").seconds == pytest.approx(4 * wire)
    within = bound(model_of(dense()), cluster_of(*nodes, racks=racks))
    assert term(within, "use_to_use", "w").seconds == pytest.approx(wire)


def test_a_module_used_twice_counts_from_its_first_use() -> None:
    names = ("w",)
    model = model_of(
        dense(), forward=[(1.0, ()), (2.0, names), (4.0, names)], backward=[(8.0, ()), (16.0, names), (32.0, ())]
    )
    found = term(bound(model, cluster_of(worker("a"), worker("b"))), "use_to_use", "w")
    assert found.seconds == pytest.approx(30 + 4 * MEGABYTE / RATE)


def test_measured_rates_stand_for_the_declared() -> None:
    racks = [Rack(name="east", uplink_out=RATE, uplink_in=RATE)]
    cluster = cluster_of(worker("a", rack="east"), worker("b"), racks=racks)
    rates = Rates(nodes={"a": (RATE * 2, RATE * 4)}, racks={"east": (RATE * 8, RATE * 16)})
    found = bound(model_of(dense()), cluster, rates=rates)
    seconds = {(one.kind, one.subject): one.seconds * RATE / (4 * MEGABYTE) for one in found.terms}
    assert seconds == pytest.approx(
        {
            ("compute", ""): 0,
            ("node_out", "a"): 1 / 2,
            ("node_in", "a"): 1 / 4,
            ("node_out", "b"): 1,
            ("node_in", "b"): 1,
            ("total", ""): 2 / 3,
            ("rack_out", "east"): 1 / 8,
            ("rack_in", "east"): 1 / 16,
            ("use_to_use", "w"): 1,
        }
    )


def test_a_term_in_words() -> None:
    found = bound(model_of(dense()), cluster_of(worker("a"), worker("b")))
    assert str(term(found, "node_out", "a")) == "40 ms: what must leave the interface of a (4 MB)"
    assert str(term(found, "compute")) == "0 s: forward and backward"
