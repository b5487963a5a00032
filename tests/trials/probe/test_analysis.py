"""Samples made by hand, or by a token bucket on paper, into figures."""

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autosync.specs.cluster import ClusterSpec
from autosync.trials.probe import analysis
from autosync.trials.probe.request import (
    BatchSamples,
    CollectiveSamples,
    FlowSamples,
    Interface,
    ProbeSettings,
    RankAnswer,
    TripSamples,
)

MB = 1_000_000.0
SETTINGS = ProbeSettings(stream_seconds=0.4, settle_seconds=0.1, num_windows=3)


def flow(
    rate: float, *, chunk_bytes: int = 10_000, until: float = 0.6, start: float = 0.0, **facts: object
) -> FlowSamples:
    """A flow that gets this rate from some moment on."""
    seconds = chunk_bytes / rate
    known: dict[str, object] = {"kind": "out", "subject": "n0", "round": 0, "source": 0, "destination": 1}
    arrivals = tuple(start + seconds * (i + 1) for i in range(int((until - start) / seconds)))
    return FlowSamples(chunk_bytes=chunk_bytes, arrival_seconds=arrivals, **(known | facts))  # type: ignore[arg-type]


def test_an_estimate_is_the_median_within_its_interval() -> None:
    found = analysis.estimate([3.0, 1.0, 2.0, 2.0, 100.0])
    assert found.value == 2.0
    assert 1.0 <= found.low <= 2.0 <= found.high <= 100.0


def test_flows_of_a_stream_add_up_whoever_gets_how_much() -> None:
    flows = [flow(7 * MB), flow(2 * MB), flow(1 * MB)]
    rates = analysis.window_rates(flows, begin=0.1, end=0.5, num_windows=4)
    assert rates == pytest.approx([10 * MB] * 4, rel=0.03)


def test_flows_one_after_another_are_not_taken_for_flows_at_once() -> None:
    # Each has the whole link for half of the time.
    first, second = flow(10 * MB, until=0.25), flow(10 * MB, start=0.25, until=0.5)
    second = replace(second, arrival_seconds=(0.25, *second.arrival_seconds), chunk_bytes=10_000)
    rates = analysis.window_rates([first, second], begin=0.05, end=0.2, num_windows=3)
    assert rates == pytest.approx([10 * MB] * 3, rel=0.05)


def test_what_arrives_before_the_flows_have_settled_does_not_count() -> None:
    burst = flow(50 * MB, until=0.05)
    steady = flow(5 * MB, start=0.05)
    both = replace(burst, arrival_seconds=burst.arrival_seconds + steady.arrival_seconds)
    assert analysis.window_rates([both], begin=0.1, end=0.5, num_windows=2) == pytest.approx([5 * MB] * 2, rel=0.02)


def _bucket_seconds(num_bytes: int, *, burst: float, rate: float, latency: float) -> float:
    return latency + max(0.0, num_bytes - burst) / rate


@given(
    rate=st.floats(1 * MB, 1000 * MB),
    share=st.floats(0.0, 0.7),
    latency=st.floats(1e-5, 1e-2),
    jitter=st.lists(st.floats(0.0, 1e-5), min_size=9, max_size=9),
)
def test_the_burst_of_a_token_bucket_is_found(rate: float, share: float, latency: float, jitter: list[float]) -> None:
    large = max(int(rate * 0.002), 65536)
    sizes = (8, 4096, 16384, large, 2 * large, 4 * large)
    burst = share * large
    trips = {
        size: [_bucket_seconds(size, burst=burst, rate=rate, latency=latency) + late for late in jitter]
        for size in sizes
    }
    found = analysis.estimate(analysis.burst_samples(trips, rate))
    # The smallest message fits into the bucket or waits for it, 8 bytes either way; and a late reply is no burst.
    assert found.value == pytest.approx(burst, abs=10 + 1e-5 * rate)


def test_sizes_that_a_burst_hides_tell_nothing() -> None:
    trips = {size: [0.001] * 5 for size in (8, 100_000, 200_000, 400_000)}
    assert analysis.burst_samples(trips, 100 * MB) == []


def _batch(num_messages: int, seconds: tuple[float, ...], cpu_seconds: tuple[float, ...]) -> BatchSamples:
    return BatchSamples(subject="n0", num_messages=num_messages, seconds=seconds, cpu_seconds=cpu_seconds)


def test_each_message_more_costs_the_slope() -> None:
    # The first repetition of the longest batch was disturbed.
    batches = [_batch(n, (1e-3 + n * 2e-5,) * 3, (n * 1e-5,) * 3) for n in (1, 16, 64)]
    batches.append(_batch(128, (0.5, 1e-3 + 128 * 2e-5, 1e-3 + 128 * 2e-5), (128e-5,) * 3))
    taken = analysis.seconds_per_message(batches, cpu=False)
    assert len(taken) == 3
    assert analysis.estimate(taken).value == pytest.approx(2e-5)
    assert analysis.seconds_per_message(batches, cpu=True) == pytest.approx([1e-5] * 3)
    assert analysis.seconds_per_message(batches[:1], cpu=False) == []


def test_variation_is_the_standard_deviation_by_the_mean() -> None:
    assert analysis.variation([9.0, 10.0, 11.0]) == 0.1


@pytest.fixture
def answers() -> list[RankAnswer]:
    """What two ranks on two nodes would tell of links of 10 MB/s out of and 5 MB/s into n0."""

    def trips(kind: str, source: int, destination: int, rate: float) -> tuple[TripSamples, ...]:
        return tuple(
            TripSamples(
                kind=kind,  # type: ignore[arg-type]
                subject="n0",
                source=source,
                destination=destination,
                num_bytes=size,
                seconds=(_bucket_seconds(size, burst=20_000, rate=rate, latency=2e-4),) * 3,
            )
            for size in (8, 100_000, 200_000)
        )

    def collectives(late: float) -> tuple[CollectiveSamples, ...]:
        return tuple(
            CollectiveSamples(algorithm=name, num_bytes=size, seconds=(size * 1e-7 + late,) * 3)
            for size in (4096, 65536)
            for name in ("native", "ring")
        )

    first = RankAnswer(
        rank=0,
        flows=(
            flow(5 * MB, kind="in", source=1, destination=0),
            flow(5 * MB, kind="in", source=1, destination=0, round=1),
            flow(4 * MB, kind="both", source=1, destination=0),
        ),
        trips=trips("out", 0, 1, 10 * MB),
        batches=(_batch(1, (1e-5,), (1e-5,)), _batch(11, (1.1e-4,), (1.1e-4,))),
        collectives=collectives(0.0),
        compute_seconds=(0.001, 0.001),
        step_seconds=(0.1, 0.3),
        interfaces=(Interface(name="eth7", num_bytes=10**9), Interface(name="lo", num_bytes=5)),
    )
    second = RankAnswer(
        rank=1,
        flows=(flow(10 * MB), flow(10 * MB, round=1), flow(8 * MB, kind="both")),
        trips=trips("in", 1, 0, 5 * MB),
        collectives=collectives(0.01),
        compute_seconds=(0.002, 0.002),
        step_seconds=(0.2, 0.2),
    )
    return [first, second]


def test_a_node_has_what_its_streams_trips_and_batches_say(
    answers: list[RankAnswer], make_cluster: Callable[..., ClusterSpec]
) -> None:
    # The other end was measured as well: at these rates it narrows nothing.
    answers[1] = replace(
        answers[1],
        flows=(*answers[1].flows, flow(50 * MB, kind="out", subject="n1"), flow(50 * MB, kind="in", subject="n1")),
    )
    first, second = analysis.calibrate_nodes(make_cluster(10 * MB, 10 * MB), SETTINGS, answers)
    rates = (first.rate_out, first.rate_in, first.rate_out_both, first.rate_in_both)
    assert [rate.value for rate in rates if rate] == pytest.approx([10 * MB, 5 * MB, 8 * MB, 4 * MB], rel=0.02)
    assert first.burst_out_bytes is not None
    assert first.burst_out_bytes.value == pytest.approx(20_000, rel=0.1)
    assert first.burst_in_bytes is not None
    assert first.burst_in_bytes.value == pytest.approx(20_000, rel=0.1)
    assert first.latency_seconds is not None
    assert first.latency_seconds.value == pytest.approx(1e-4)
    assert first.message_seconds is not None
    assert first.message_seconds.value == pytest.approx(1e-5)
    assert first.interface == "eth7"
    assert [rank.value for rank in second.compute_seconds] == [0.002]
    assert second.latency_seconds is None
    assert second.rate_within is None


def test_a_collective_or_step_lasts_as_long_as_on_its_slowest_rank(answers: list[RankAnswer]) -> None:
    curves = {curve.algorithm: curve for curve in analysis.calibrate_curves(answers)}
    assert list(curves) == ["native", "ring"]
    points = {point.num_bytes: point.seconds.value for point in curves["ring"].points}
    assert points == pytest.approx({4096: 0.0104096, 65536: 0.0165536})
    assert analysis.step_samples(answers) == [0.2, 0.3]


def test_nodes_that_only_serve_are_in_no_curve(answers: list[RankAnswer]) -> None:
    server = RankAnswer(rank=2, compute_seconds=(0.001,))
    assert analysis.calibrate_curves([*answers, server]) == analysis.calibrate_curves(answers)
    assert analysis.step_samples([*answers, server]) == [0.2, 0.3]
    assert analysis.calibrate_curves([server]) == ()
