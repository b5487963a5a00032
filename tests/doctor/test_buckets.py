"""Buckets are packed as DDP packs them, and their predicted cost fits the measured one."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autosync.doctor.buckets import MIB, BucketTimes, bucket_times, predicted_wait
from autosync.doctor.evidence import ReadyGradient
from autosync.doctor.timing import timing_of


def _times(sizes: list[int], latency: float = 0.001, per_byte: float = 1e-9) -> BucketTimes:
    gradients = tuple(ReadyGradient(num_bytes=size, ready=0.01 * number) for number, size in enumerate(sizes, 1))
    return BucketTimes(
        gradients=gradients,
        backward_end=0.01 * len(sizes),
        present=tuple(sizes),
        num_passes=1,
        seconds_per_message=latency,
        seconds_per_byte=per_byte,
    )


@given(sizes=st.lists(st.integers(1, 30 * MIB), min_size=1, max_size=30), cap=st.none() | st.floats(0.1, 100))
def test_buckets_hold_everything_and_close_at_the_cap(sizes: list[int], cap: float | None) -> None:
    found = _times(sizes).packed(cap)
    assert sum(found) == sum(sizes)
    assert all(size > 0 for size in found)
    for number, size in enumerate(found[:-1]):
        least = (MIB if number == 0 else 25 * MIB) if cap is None else int(cap * MIB)
        assert least <= size < least + max(sizes)


@given(sizes=st.lists(st.integers(1, 30 * MIB), min_size=1, max_size=30), cap=st.floats(0.1, 100))
def test_no_bucket_is_done_before_its_bytes_have_passed(sizes: list[int], cap: float) -> None:
    times = _times(sizes)
    packed = times.packed(cap)
    assert predicted_wait(times, packed) >= times.seconds_per_message + packed[-1] * times.seconds_per_byte - 1e-9


@given(
    sizes=st.lists(st.integers(1000, 30 * MIB), min_size=1, max_size=8),
    late=st.sampled_from([0, 0.03, 0.1]),
    alone=st.floats(0.2, 2) | st.none(),
)
def test_the_prediction_fits_the_measured_wait(
    work: Any, ranks: Any, sizes: list[int], late: float, alone: float | None
) -> None:
    works = [work(forward=0.05 + late), work(), work()]
    trained = ranks(works=works, message_bytes=sizes, rate=1e8, alone=alone or 1, times_large=alone is not None)
    evidence = trained.evidence()
    times = bucket_times(evidence)
    assert times is not None
    assert predicted_wait(times, times.present) == pytest.approx(timing_of(evidence).exposed, rel=0.02, abs=1e-4)


@given(alone=st.floats(0.2, 1))
def test_messages_that_the_steps_slow_down_keep_their_share_of_the_cost(work: Any, ranks: Any, alone: float) -> None:
    times = bucket_times(ranks(works=[work()] * 2, message_bytes=[2000] * 50, latency=0.005, alone=alone).evidence())
    assert times is not None
    assert times.seconds_per_message == pytest.approx(0.005)
    assert times.seconds_per_byte == pytest.approx(1e-9)


def test_without_gradients_nothing_is_predicted(work: Any, ranks: Any) -> None:
    assert bucket_times(ranks(works=[work()], message_bytes=[]).evidence()) is None
