"""Flows of chunks between ranks at the receiver's pace, so that a slow receiver gets less and delays no other flow.

A receiver sends a credit for each chunk that it wants, a few in advance, and notes the time of each arrival. When its
time is up, it asks for no more chunks, and when all have arrived, it tells the sender. Every message that is sent is
received, so no message is left to disturb the next stream, and all times of a flow are from one clock.
"""

from __future__ import annotations

import datetime as dt
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist

from autosync.trials.probe.schedule import ProbeFlow

# Chunks that are asked for and have not arrived: 40 ms of the link, so that it stays busy if a rank wakes up late.
_WINDOW = 6
_DATA_TAG, _CREDIT_TAG = 1, 2
_MORE, _DONE = 1, 0


def run_flows(
    flows: Sequence[ProbeFlow], *, rank: int, seconds: float, timeout_seconds: float
) -> dict[int, tuple[float, ...]]:
    """Take part in simultaneous flows; return the arrival times of each flow that ends here, by its position."""
    timeout = dt.timedelta(seconds=timeout_seconds)
    arrivals: dict[int, tuple[float, ...]] = {}
    jobs: list[Callable[[], None]] = []
    start = time.perf_counter()
    for position, flow in enumerate(flows):
        if flow.destination == rank:

            def receive(position: int = position, flow: ProbeFlow = flow) -> None:
                arrivals[position] = _receive(flow, position, start, seconds, timeout)

            jobs.append(receive)
        elif flow.source == rank:

            def send(position: int = position, flow: ProbeFlow = flow) -> None:
                _send(flow, position, timeout)

            jobs.append(send)
    _run_all(jobs, timeout_seconds)
    return arrivals


def _run_all(jobs: Sequence[Callable[[], None]], timeout_seconds: float) -> None:
    """Run each job in its own thread; raise the first error of a job, or TimeoutError."""
    errors: list[BaseException] = []

    def guarded(job: Callable[[], None]) -> None:
        try:
            job()
        except Exception as error:  # noqa: BLE001 - raised again by the thread that waits
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(job,), daemon=True) for job in jobs]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + timeout_seconds
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    if errors:
        raise errors[0]
    if any(thread.is_alive() for thread in threads):
        raise TimeoutError(f"a stream was not done within {timeout_seconds:g} s")


def _receive(flow: ProbeFlow, position: int, start: float, seconds: float, timeout: dt.timedelta) -> tuple[float, ...]:
    source, data_tag, credit_tag = flow.source, *_tags(position)
    more = torch.tensor([_MORE])
    asked: list[Any] = []
    expected: deque[tuple[torch.Tensor, Any]] = deque()

    def ask(buffer: torch.Tensor) -> None:
        # The buffer is posted before the chunk is asked for, so the chunk needs no further handshake.
        expected.append((buffer, dist.irecv(buffer, source, None, data_tag)))
        asked.append(dist.isend(more, source, None, credit_tag))

    ask(torch.empty(flow.chunk_bytes, dtype=torch.uint8))
    arrived: list[float] = []
    while expected:
        buffer, work = expected.popleft()
        work.wait(timeout)
        arrived.append(time.perf_counter() - start)
        if arrived[-1] < seconds:
            ask(buffer)
            # The window grows by one chunk each time, so that a link far slower than claimed is not flooded first.
            if len(expected) < _WINDOW:
                ask(torch.empty(flow.chunk_bytes, dtype=torch.uint8))
    asked.append(dist.isend(torch.tensor([_DONE]), source, None, credit_tag))
    for work in asked:
        work.wait(timeout)
    return tuple(arrived)


def _send(flow: ProbeFlow, position: int, timeout: dt.timedelta) -> None:
    destination, data_tag, credit_tag = flow.destination, *_tags(position)
    chunk = torch.zeros(flow.chunk_bytes, dtype=torch.uint8)
    credit = torch.empty(1, dtype=torch.int64)
    sends: list[Any] = []
    while True:
        asked: Any = dist.irecv(credit, destination, None, credit_tag)
        asked.wait(timeout)
        if credit.item() == _DONE:
            break
        sends.append(dist.isend(chunk, destination, None, data_tag))
    for work in sends:
        work.wait(timeout)


def _tags(position: int) -> tuple[int, int]:
    """Return the tags of a flow: they differ by flow, because several flows may be between the same two ranks."""
    return 4 * position + _DATA_TAG, 4 * position + _CREDIT_TAG
