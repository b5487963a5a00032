"""What a process did for its input in some steps, also in the workers of its loaders: sums, and what they say."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from autosync.inputs.measured_batches import BatchTimes
from autosync.inputs.meter import ReadTotals


@dataclass(slots=True, kw_only=True)
class InputSums:
    """Sums over some steps of one process.

    It waited for batches and copied them to its device. Workers of `autosync.loader` read, decoded and collated.
    `hosts` has the bytes that hosts have served, and the seconds of the requests for them.
    """

    num_batches: int = 0
    wait_seconds: float = 0.0
    copy_seconds: float = 0.0
    read_seconds: float = 0.0
    decode_seconds: float = 0.0
    collate_seconds: float = 0.0
    hosts: dict[str, tuple[int, float]] = field(default_factory=dict)

    def add_batch(self, times: BatchTimes) -> None:
        """Add the work on a batch of a loader."""
        self.num_batches += 1
        self.read_seconds += times.read_seconds
        self.decode_seconds += times.decode_seconds
        self.collate_seconds += times.collate_seconds
        for host, totals in times.hosts.items():
            self._add_host(host, totals)

    def _add_host(self, host: str, totals: ReadTotals) -> None:
        num_bytes, seconds = self.hosts.get(host, (0, 0.0))
        self.hosts[host] = num_bytes + totals.num_bytes, seconds + totals.request_seconds

    def to_plain(self) -> dict[str, Any]:
        """Return the sums as fields of JSON."""
        return {name: getattr(self, name) for name in InputSums.__dataclass_fields__ if name != "hosts"} | {
            "hosts": {host: list(sums) for host, sums in self.hosts.items()}
        }


_LOADERS = InputSums()


def note_batch(times: BatchTimes) -> None:
    """Take note of a batch that a loader of this process has delivered."""
    _LOADERS.add_batch(times)


def take_sums(*, wait_seconds: float, copy_seconds: float) -> Mapping[str, Any]:
    """Return this process's sums since the last call, in plain fields, with these waits and copies."""
    global _LOADERS
    sums, _LOADERS = _LOADERS, InputSums()
    sums.wait_seconds, sums.copy_seconds = wait_seconds, copy_seconds
    return sums.to_plain()
