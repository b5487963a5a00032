"""Predicts how long ranks would wait with buckets of other sizes. Pure functions.

Buckets are transferred one after the other. A transfer begins when the bucket's last gradient is ready and the bucket
before it is done. It takes the time of a small message, plus a time for each byte. Both are timed alone after the last
step. During steps, processors have other work, and all messages take longer by a factor. It is measured: on the rank
that had a message ready last, the message waits only for the messages before it.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from autosync.doctor.evidence import Evidence, ReadyGradient, WatchedMessage
from autosync.doctor.timing import synchronised

MIB = 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketTimes:
    """The gradients of a pass, each with the time when it is ready, and the times of messages.

    Times count in seconds from the start of the pass. `present` holds the sizes of the current buckets in bytes.
    `num_passes` is the number of synchronised passes in a step.
    """

    gradients: tuple[ReadyGradient, ...]
    backward_end: float
    present: tuple[int, ...]
    num_passes: int
    seconds_per_message: float
    seconds_per_byte: float

    def packed(self, cap_mb: float | None) -> tuple[int, ...]:
        """Return the sizes of DDP's buckets with this `bucket_cap_mb`. A bucket closes when it reaches the cap."""
        caps = [MIB, 25 * MIB] if cap_mb is None else [int(cap_mb * MIB)]
        sizes: list[int] = []
        size = 0
        for gradient in self.gradients:
            size += gradient.num_bytes
            if size >= caps[min(len(sizes), len(caps) - 1)]:
                sizes.append(size)
                size = 0
        return (*sizes, size) if size else tuple(sizes)


def predicted_wait(times: BucketTimes, sizes: Sequence[int]) -> float:
    """Return how long a rank waits after its backward pass if the gradients travel in buckets of these sizes."""
    ready = iter(times.gradients)
    filled, done, last = 0, 0.0, 0.0
    wanted = 0
    for size in sizes:
        wanted += size
        while filled < wanted and (gradient := next(ready, None)) is not None:
            filled += gradient.num_bytes
            last = max(last, gradient.ready)
        done = max(done, last) + times.seconds_per_message + size * times.seconds_per_byte
    return max(done - times.backward_end, 0.0)


def bucket_times(evidence: Evidence) -> BucketTimes | None:
    """Return the input of the prediction, from a typical step of rank 0; None if that rank noted no gradients."""
    steps = evidence.ranks[0].steps
    usual = statistics.median(step.seconds for step in steps)
    step = min(steps, key=lambda one: abs(one.seconds - usual))
    passes = [one for one in synchronised(step) if one.gradients]
    if not passes or evidence.ranks[0].small_message_seconds is None:
        return None
    chosen = passes[-1]
    costs = _message_costs(evidence, evidence.ranks[0].small_message_seconds)
    if costs is None:
        return None
    gradients = tuple(
        ReadyGradient(num_bytes=one.num_bytes, ready=one.ready - chosen.begin)
        for one in sorted(chosen.gradients, key=lambda one: one.ready)
    )
    return BucketTimes(
        gradients=gradients,
        backward_end=chosen.backward_end - chosen.begin,
        present=tuple(message.num_bytes for message in chosen.messages),
        num_passes=len(synchronised(step)),
        seconds_per_message=costs[0],
        seconds_per_byte=costs[1],
    )


def _message_costs(evidence: Evidence, small_seconds: float) -> tuple[float, float] | None:
    """Return the time of a message without its bytes, and the time of a byte; None if no bytes were sent."""
    sent = [
        one
        for same in zip(*(one.steps for one in evidence.ranks), strict=True)
        for passes in zip(*(synchronised(step) for step in same), strict=False)
        for one in _transfers([one.messages for one in passes])
    ]
    num_bytes = sum(size for size, _ in sent)
    if not num_bytes:
        return None
    latency = max(small_seconds, 0.0)
    first = evidence.ranks[0]
    if first.large_message_seconds is None or not first.large_message_bytes:
        return latency, sum(max(seconds - latency, 0.0) for _, seconds in sent) / num_bytes
    per_byte = max(first.large_message_seconds - latency, 0.0) / first.large_message_bytes
    alone = sum(latency + size * per_byte for size, _ in sent)
    factor = sum(seconds for _, seconds in sent) / alone if alone else 0.0
    return factor * latency, factor * per_byte


def _transfers(messages: Sequence[Sequence[WatchedMessage]]) -> list[tuple[int, float]]:
    """Return the bytes and seconds of each message of a pass, as noted by the rank that had it ready last."""
    found = []
    for number, same in enumerate(zip(*messages, strict=False)):
        rank = min(range(len(same)), key=lambda r: same[r].done - same[r].ready)
        before = messages[rank][number - 1].done if number else same[rank].ready
        begun = max(same[rank].ready, min(before, same[rank].done))
        found.append((same[rank].num_bytes, same[rank].done - begun))
    return found
