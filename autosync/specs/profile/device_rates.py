"""Devices that times are computed for: how long an operation takes, by its class.

Computed times are no measurements, and every spec made from them says so. They are for devices that are not available.
`known_devices` has the devices of the table; a `DeviceRate` describes another one by two rates.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

from autosync.errors import InputError
from autosync.specs.profile.operations import OperationClass


class OperationRate(Protocol):
    """The device that times are computed for."""

    @property
    def name(self) -> str: ...

    def seconds(self, kind: OperationClass, operations: float, num_bytes: float) -> float:
        """Return the time of one operation of a class, with its operations of arithmetic and its bytes of memory."""

    def describe(self) -> str:
        """Return the note that a timeline gives about its computed times."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceRate:
    """A device of which only a data sheet is known: its peak rates, and one share of each for all operations.

    `peak_operations` is for float32 without tensor cores, `peak_bytes` for the memory; both are per second.
    """

    name: str
    peak_operations: float
    peak_bytes: float
    operations_share: float = 0.45
    bytes_share: float = 0.7

    def __post_init__(self) -> None:
        for rate in (self.peak_operations, self.peak_bytes):
            if not (math.isfinite(rate) and rate > 0):
                raise InputError(f"{rate} is no rate", rule="finite and above 0")
        for share in (self.operations_share, self.bytes_share):
            if not 0 < share <= 1:
                raise InputError(f"{share} is no share", rule="above 0, at most 1")

    def seconds(self, kind: OperationClass, operations: float, num_bytes: float) -> float:  # noqa: ARG002 - all classes have the same shares
        """Return the time of an operation: of its arithmetic or of its memory access, whichever is longer."""
        return max(
            operations / (self.peak_operations * self.operations_share),
            num_bytes / (self.peak_bytes * self.bytes_share),
        )

    def describe(self) -> str:
        """Return the note that a timeline gives about its computed times."""
        return (
            "computed, not measured: per operation the larger of its floating-point operations at "
            f"{self.operations_share:.0%} of {self.peak_operations / 1e12:g} TFLOP/s and its bytes at "
            f"{self.bytes_share:.0%} of {self.peak_bytes / 1e9:g} GB/s"
        )


ZOO_RATE = DeviceRate(name="NVIDIA T4", peak_operations=8.1e12, peak_bytes=320e9)
"""The device of the shipped model specs. Records and benchmarks rest on their times, so its shares stay as they are."""
