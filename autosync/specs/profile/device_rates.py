"""Devices by name: the rates of their data sheets, and the shares of these rates that training sustains.

Computed times are no measurements, and every spec made from them says so. They are for devices that are not available:
the proportions between modules come from operation counts, the scale from the data sheet.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from autosync.errors import InputError, UnknownNameError


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceRate:
    """The peak rates of a device, and the shares of these that training sustains.

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

    def seconds(self, operations: float, num_bytes: float) -> float:
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


# Data sheets: float32 without tensor cores, and the memory's bandwidth.
RATES: Mapping[str, DeviceRate] = {
    rate.name: rate
    for rate in (
        DeviceRate(name="NVIDIA TITAN X (Pascal)", peak_operations=10.97e12, peak_bytes=480e9),
        DeviceRate(name="NVIDIA T4", peak_operations=8.1e12, peak_bytes=320e9),
        DeviceRate(name="NVIDIA V100", peak_operations=15.7e12, peak_bytes=900e9),
        DeviceRate(name="NVIDIA A100", peak_operations=19.5e12, peak_bytes=1555e9),
        DeviceRate(name="NVIDIA H100", peak_operations=66.9e12, peak_bytes=3350e9),
    )
}
DEFAULT_RATE = "NVIDIA T4"


def device_rate(name: str) -> DeviceRate:
    """Return the device of that name; `T4` also names `NVIDIA T4`."""
    wanted = name.casefold()
    found = [
        rate for known, rate in RATES.items() if wanted in (known.casefold(), known.casefold().removeprefix("nvidia "))
    ]
    if not found:
        raise UnknownNameError("device", name, RATES)
    return found[0]
