"""Causes in the settings of DDP: buckets, unused parameters, buffers, accumulation."""

from __future__ import annotations

import statistics

from autosync.doctor.buckets import bucket_times, predicted_wait
from autosync.doctor.findings import Abstention, CauseFinding, WatchedCase
from autosync.doctor.timing import Parts, synchronised
from autosync.strategy.wording import count
from autosync.units import format_size, format_time

CAPS: tuple[float | None, ...] = (None, 1, 2, 4, 8, 16, 25, 50, 100)
"""The values of `bucket_cap_mb` to compare. None is DDP's default: a first bucket of 1 MiB, then 25 MiB each."""

_TOLERANCE = 0.3
"""The prediction for the current buckets must match the measured wait within this share. Otherwise it is not used."""


def bucket_sizes(case: WatchedCase) -> CauseFinding | Abstention:
    """Return the time that the best size of buckets would save. It is predicted, if predictions fit measurements."""
    if case.timing.num_ranks < 2:
        return CauseFinding(seconds=0.0, told="one rank sends nothing")
    if case.evidence.settings.own_hook:
        return Abstention(reason=f"the script's own hook {case.evidence.settings.own_hook} sends the gradients")
    times = bucket_times(case.evidence)
    if times is None:
        return Abstention(reason="the first rank did not see its gradients become ready")
    measured = case.timing.exposed / times.num_passes
    now = predicted_wait(times, times.present)
    if abs(now - measured) > _TOLERANCE * measured + 0.02 * case.timing.step_seconds:
        return Abstention(
            reason=f"buckets are predicted to cost {format_time(now)} where {format_time(measured)} were measured"
        )
    waits = {cap: predicted_wait(times, times.packed(cap)) for cap in CAPS}
    best = min(CAPS, key=lambda cap: waits[cap])
    saved = max(now - waits[best], 0.0) * times.num_passes
    words = "its default" if best is None else f"{best:g}"
    told = (
        f"{count(len(times.present), 'bucket')} of up to {format_size(max(times.present))}; "
        f"bucket_cap_mb={words} is predicted to wait {format_time(saved)} less"
    )
    return CauseFinding(seconds=saved, told=told)


def unused_parameters(case: WatchedCase) -> CauseFinding | Abstention:
    """Return the time of the search for unused parameters and of telling its result to the other ranks."""
    settings = case.evidence.settings
    if not settings.find_unused_parameters:
        return CauseFinding(seconds=0.0, told="find_unused_parameters is off")
    if settings.static_graph:
        return CauseFinding(seconds=0.0, told="with static_graph DDP does not search for unused parameters")
    search = case.timing.typical(lambda parts: parts.search)
    telling = case.timing.shortest(lambda parts: parts.handover)
    unused = settings.num_unused
    found = f"{count(unused, 'parameter')} got no gradient" if unused else "every parameter got its gradient"
    told = (
        f"the search takes {format_time(search)}, telling the others {format_time(telling)}; "
        f"{found} in the steps that were watched"
    )
    return CauseFinding(seconds=search + telling, told=told)


def buffer_broadcasts(case: WatchedCase) -> CauseFinding | Abstention:
    """Return the time of broadcasts of buffers before forward passes.

    The other ranks wait for rank 0, which broadcasts. If they wait because its input takes longer, that time does not
    count.
    """
    settings, parts = case.evidence.settings, case.timing.parts
    if not settings.broadcast_buffers or not settings.buffer_bytes or case.timing.num_ranks < 2:
        return CauseFinding(seconds=0.0, told="DDP broadcasts no buffers")

    def cost(first: Parts, other: Parts) -> float:
        return max(other.buffers - max(first.input - other.input, 0.0), 0.0)

    seconds = statistics.median(min(cost(same[0], other) for other in same[1:]) for same in zip(*parts, strict=True))
    told = f"{format_size(settings.buffer_bytes)} of buffers are sent before every forward pass"
    return CauseFinding(seconds=seconds, told=told)


def accumulation(case: WatchedCase) -> CauseFinding | Abstention:
    """Return the time that all but the last synchronisation of a step cost, if a step has several."""
    steps = case.evidence.ranks[0].steps
    number = round(statistics.median(len(synchronised(step)) for step in steps))
    if number < 2:
        return CauseFinding(seconds=0.0, told="a step synchronises once")
    waits = []
    for same in zip(*(one.steps for one in case.evidence.ranks), strict=True):
        passes = [synchronised(step) for step in same]
        if len({len(one) for one in passes}) != 1:
            continue
        waits.append(
            sum(min(one.end - one.backward_end for one in each) for each in list(zip(*passes, strict=True))[:-1])
        )
    if not waits:
        return Abstention(reason="ranks do not synchronise the same passes")
    seconds = statistics.median(waits)
    told = f"{number} of a step's backward passes synchronise, where the last one is enough"
    return CauseFinding(seconds=seconds, told=told)
