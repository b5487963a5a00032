"""Links that carry several transfers at a time: each transfer gets a fair share of every link on its way.

Shares are max-min fair: the most loaded link divides its rate evenly among its transfers, then the next one what is
left. A transfer that is limited to less takes its limit. Shares change only when a transfer begins or ends.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(slots=True)
class _Flow:
    left: float
    links: tuple[int, ...]
    limit: float
    rate: float = 0.0


class FluidLinks:
    """Transfers under way at a time. `rates` are bytes a second of each link."""

    def __init__(self, rates: Sequence[float]) -> None:
        self._rates = rates
        self._flows: dict[int, _Flow] = {}
        self._now = 0.0

    def begin(self, key: int, num_bytes: float, links: tuple[int, ...], now: float, *, limit: float = math.inf) -> None:
        """Begin a transfer over some links, which gets at most `limit` bytes a second."""
        self._advance(now)
        self._flows[key] = _Flow(num_bytes, links, limit)
        self._share()

    def next_end(self) -> tuple[float, int] | None:
        """Return the time at which the next transfer ends, and its key; None if none is under way."""
        ends = [
            (self._now + (flow.left / flow.rate if flow.rate > 0 else 0.0), number, key)
            for number, (key, flow) in enumerate(self._flows.items())
        ]
        if not ends:
            return None
        end, _, key = min(ends, key=lambda one: one[:2])
        return end, key

    def end(self, key: int, now: float) -> None:
        """End a transfer."""
        self._advance(now)
        del self._flows[key]
        self._share()

    def _advance(self, now: float) -> None:
        for flow in self._flows.values():
            flow.left = max(0.0, flow.left - flow.rate * (now - self._now))
        self._now = now

    def _share(self) -> None:
        """Compute the rates of all transfers."""
        waiting = dict(self._flows)
        left: dict[int, float] = {}
        for flow in waiting.values():
            flow.rate = flow.limit
            left.update((link, self._rates[link]) for link in flow.links)
        while waiting:
            counts = _counts(waiting)
            if not counts:
                return
            tightest = min(counts, key=lambda link: (left[link] / counts[link], link))
            share = left[tightest] / counts[tightest]
            limited = [key for key, flow in waiting.items() if flow.limit < share]
            for key in limited or [key for key, flow in waiting.items() if tightest in flow.links]:
                flow = waiting.pop(key)
                flow.rate = min(share, flow.limit)
                for link in flow.links:
                    left[link] = max(0.0, left[link] - flow.rate)


def _counts(flows: Mapping[int, _Flow]) -> dict[int, int]:
    counts: dict[int, int] = {}
    for flow in flows.values():
        for link in flow.links:
            counts[link] = counts.get(link, 0) + 1
    return counts
