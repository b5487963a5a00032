"""Links that carry several transfers at a time: each transfer gets a fair share of every link on its way.

Shares are max-min fair: the most loaded link divides its rate evenly among its transfers, then the next one what is
left. A transfer that is limited to less takes its limit. Shares change only when a transfer begins or ends.

A link may have a token bucket: as long as it carries less than its rate, it saves bytes, up to its burst, and these
pass at once later.
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
    """Transfers under way at a time. `rates` are bytes a second of each link, and `bursts` the most that it saves.

    Links begin with all that they can save. An infinite burst is of a link that never holds a burst up.
    """

    def __init__(self, rates: Sequence[float], bursts: Sequence[float]) -> None:
        self._rates = rates
        self._bursts = bursts
        self._flows: dict[int, _Flow] = {}
        self._now = 0.0
        # What each link has saved, and the rate at which it is used.
        self._saved = list(bursts)
        self._used = [0.0] * len(rates)

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
        for link, burst in enumerate(self._bursts):
            if self._saved[link] < burst:
                unused = max(0.0, self._rates[link] - self._used[link])
                self._saved[link] = min(burst, self._saved[link] + unused * (now - self._now))
        self._now = now

    def _share(self) -> None:
        """Compute the rates of all transfers, after those that links hold up have passed what these have saved."""
        for flow in self._flows.values():
            if flow.rate < flow.limit:
                num_bytes = min(flow.left, *(self._saved[link] for link in flow.links))
                flow.left -= num_bytes
                for link in flow.links:
                    self._saved[link] -= num_bytes
        self._share_rates()
        self._used = [0.0] * len(self._rates)
        for flow in self._flows.values():
            for link in flow.links:
                self._used[link] += flow.rate

    def _share_rates(self) -> None:
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
