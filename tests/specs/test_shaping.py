"""The token buckets: a whole packet fits, and slow links get small ones."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autosync.specs.shaping import MTU_BYTES, QUEUE_BYTES, bucket, packet_bytes


@pytest.mark.parametrize(
    ("megabits", "burst_bytes"), [(50, 19_300), (250, 19_300), (500, 32_250), (1000, 63_500), (10_000, 625_000)]
)
def test_bursts_by_rate(megabits: int, burst_bytes: int) -> None:
    made = bucket(megabits * 125_000)
    assert (made.rate, made.burst_bytes) == (megabits * 125_000, burst_bytes)


@given(st.floats(min_value=1, max_value=1e11))
def test_a_bucket_takes_the_largest_packet_of_its_own_sender(rate: float) -> None:
    packet = packet_bytes(rate)
    frames = -(-packet // (MTU_BYTES - 52))
    assert packet + frames * 66 <= bucket(rate).burst_bytes < QUEUE_BYTES
    # The kernel takes more than a frame at once only if two fit, and never more than 64 kB.
    assert 2 * MTU_BYTES < packet <= 65_536


@given(st.floats(min_value=0.5, max_value=1e11))
def test_the_rate_is_the_file_s(rate: float) -> None:
    assert bucket(rate).rate == pytest.approx(rate, abs=0.51)
