"""Times single messages between two ranks: round trips by size, and batches of small messages."""

from __future__ import annotations

import datetime as dt
import time
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist

from autosync.trials.probe.request import BatchSamples, TripSamples
from autosync.trials.probe.schedule import SMALL_BYTES, Trip

BATCHES = (1, 16, 64, 128)
_MESSAGE_BYTES = 64
_TAG, _REPLY_TAG = 1, 2
# A bucket is full again after a pause as long as the last trip, plus this time.
_PAUSE_SECONDS = 0.002


def run_trips(
    trip: Trip, sizes: Sequence[int], *, rank: int, num_trips: int, timeout_seconds: float
) -> tuple[TripSamples, ...]:
    """Take part in round trips at either end; return the samples on the source. The first of each size is a warm-up."""
    timeout = dt.timedelta(seconds=timeout_seconds)
    samples = []
    for num_bytes in sizes:
        if rank == trip.source:
            seconds = _go(trip.destination, num_bytes, num_trips + 1, timeout)[1:]
            samples.append(
                TripSamples(
                    kind=trip.kind,
                    subject=trip.subject,
                    source=rank,
                    destination=trip.destination,
                    num_bytes=num_bytes,
                    seconds=tuple(seconds),
                )
            )
        elif rank == trip.destination:
            _answer(trip.source, num_bytes, num_trips + 1, timeout)
    return tuple(samples)


def _go(peer: int, num_bytes: int, count: int, timeout: dt.timedelta) -> list[float]:
    message = torch.zeros(num_bytes, dtype=torch.uint8)
    reply = torch.empty(SMALL_BYTES, dtype=torch.uint8)
    taken: list[float] = []
    for _ in range(count):
        time.sleep(_PAUSE_SECONDS + (taken[-1] if taken else 0.0))
        arriving: Any = dist.irecv(reply, peer, None, _REPLY_TAG)
        start = time.perf_counter()
        sending: Any = dist.isend(message, peer, None, _TAG)
        arriving.wait(timeout)
        taken.append(time.perf_counter() - start)
        sending.wait(timeout)
    return taken


def _answer(peer: int, num_bytes: int, count: int, timeout: dt.timedelta) -> None:
    buffer = torch.empty(num_bytes, dtype=torch.uint8)
    reply = torch.zeros(SMALL_BYTES, dtype=torch.uint8)
    arriving: Any = dist.irecv(buffer, peer, None, _TAG)
    for left in reversed(range(count)):
        arriving.wait(timeout)
        if left:
            # The next message's buffer is ready before the message is sent.
            arriving = dist.irecv(buffer, peer, None, _TAG)
        sending: Any = dist.isend(reply, peer, None, _REPLY_TAG)
        sending.wait(timeout)


def run_batches(trip: Trip, *, rank: int, num_batches: int, timeout_seconds: float) -> tuple[BatchSamples, ...]:
    """Take part in batches of small messages at either end; return the samples on the source."""
    timeout = dt.timedelta(seconds=timeout_seconds)
    samples = []
    for num_messages in BATCHES:
        if rank == trip.source:
            taken = [_send_batch(trip.destination, num_messages, timeout) for _ in range(num_batches)]
            samples.append(
                BatchSamples(
                    subject=trip.subject,
                    num_messages=num_messages,
                    seconds=tuple(seconds for seconds, _ in taken),
                    cpu_seconds=tuple(cpu for _, cpu in taken),
                )
            )
        elif rank == trip.destination:
            for _ in range(num_batches):
                _receive_batch(trip.source, num_messages, timeout)
    return tuple(samples)


def _send_batch(peer: int, num_messages: int, timeout: dt.timedelta) -> tuple[float, float]:
    message = torch.zeros(_MESSAGE_BYTES, dtype=torch.uint8)
    signal = torch.empty(SMALL_BYTES, dtype=torch.uint8)
    ready: Any = dist.irecv(signal, peer, None, _REPLY_TAG)
    ready.wait(timeout)
    done: Any = dist.irecv(signal, peer, None, _REPLY_TAG)
    start, cpu = time.perf_counter(), time.process_time()
    sends: list[Any] = [dist.isend(message, peer, None, _TAG) for _ in range(num_messages)]
    for work in sends:
        work.wait(timeout)
    done.wait(timeout)
    return time.perf_counter() - start, time.process_time() - cpu


def _receive_batch(peer: int, num_messages: int, timeout: dt.timedelta) -> None:
    signal = torch.zeros(SMALL_BYTES, dtype=torch.uint8)
    arriving: list[Any] = [
        dist.irecv(torch.empty(_MESSAGE_BYTES, dtype=torch.uint8), peer, None, _TAG) for _ in range(num_messages)
    ]
    ready: Any = dist.isend(signal, peer, None, _REPLY_TAG)
    ready.wait(timeout)
    for work in arriving:
        work.wait(timeout)
    done: Any = dist.isend(signal, peer, None, _REPLY_TAG)
    done.wait(timeout)
