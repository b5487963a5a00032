"""Token buckets that limit the rate of an emulated link: the settings of `tc tbf` and of the sender's interface.

Two things keep a rate within a percent. First, frames are large, so headers cost little: of 9014 bytes on the wire,
8948 are payload. Second, a bucket is large enough for the largest packet that a sender hands over. The interface does
the segmentation, so one "packet" has up to 64 kB; a smaller bucket would cut it up frame by frame, which is too slow on
a busy machine. But after a pause a whole bucket of bytes passes at once, at any rate. So senders on slow links have
smaller packets and smaller buckets.
"""

from __future__ import annotations

from dataclasses import dataclass

MTU_BYTES = 9000
QUEUE_BYTES = 64 * 2**20
"""The queue before a link. It is larger than the buffers of all sockets, so senders wait and nothing is dropped."""

_BUCKET_SECONDS = 500e-6
# Two frames with headers (smaller packets would save nothing), and the kernel's limit.
_MIN_PACKET_BYTES = 18_300
_MAX_PACKET_BYTES = 65_000
# The headers of the frames that one packet becomes.
_HEADER_BYTES = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Bucket:
    """One direction of a link: its rate in bytes per second and the bytes that pass at once after a pause."""

    rate: int
    burst_bytes: int

    def __str__(self) -> str:
        """Format the bucket as arguments of `tc`, whose `bps` are bytes per second."""
        return f"tbf rate {self.rate}bps burst {self.burst_bytes} limit {QUEUE_BYTES}"


def packet_bytes(rate: float) -> int:
    """Return the bytes of the largest packet that the sender on a link of this rate may hand to its interface."""
    return int(min(max(rate * _BUCKET_SECONDS, _MIN_PACKET_BYTES), _MAX_PACKET_BYTES))


def bucket(rate: float) -> Bucket:
    """Return the bucket for a rate in bytes per second: the bytes of half a millisecond, but at least one packet."""
    burst = max(packet_bytes(rate) + _HEADER_BYTES, round(rate * _BUCKET_SECONDS))
    return Bucket(rate=max(1, round(rate)), burst_bytes=burst)
