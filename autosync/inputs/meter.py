"""Counts what this process reads, by host: bytes, requests, retries, and the time that requests take."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadTotals:
    """What was read from one host.

    `request_seconds` adds up the times of all requests, so with several requests at a time it passes the wall clock.
    """

    num_bytes: int = 0
    num_requests: int = 0
    num_retries: int = 0
    request_seconds: float = 0.0

    def __add__(self, other: ReadTotals) -> ReadTotals:
        return ReadTotals(
            num_bytes=self.num_bytes + other.num_bytes,
            num_requests=self.num_requests + other.num_requests,
            num_retries=self.num_retries + other.num_retries,
            request_seconds=self.request_seconds + other.request_seconds,
        )


class ReadMeter:
    """The totals of a process since they were last taken. Threads may add at the same time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._hosts: dict[str, ReadTotals] = {}
        self._wait_seconds = 0.0

    def add(self, host: str, totals: ReadTotals) -> None:
        """Add a request to a host."""
        with self._lock:
            self._hosts[host] = self._hosts.get(host, ReadTotals()) + totals

    def add_wait(self, seconds: float) -> None:
        """Add a time during which a reader waited for its requests."""
        with self._lock:
            self._wait_seconds += seconds

    def take(self) -> tuple[float, Mapping[str, ReadTotals]]:
        """Return the wait and the totals by host since the last call."""
        with self._lock:
            taken = self._wait_seconds, self._hosts
            self._wait_seconds, self._hosts = 0.0, {}
        return taken


METER = ReadMeter()
"""The meter of this process. A worker has its own, because it is another process."""
