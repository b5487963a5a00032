"""Published throughputs of training on one device, and what they are predicted to be."""

from __future__ import annotations

import csv
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from autosync.specs.profile.device_rates import DeviceRate
from autosync.specs.profile.known_devices import ClassShares, KnownDevice
from autosync.specs.profile.operations import CLASSES
from benchmarks.device_rates.counts import Counts, counts_of

HERE = Path(__file__).parent
TablePrecision = Literal["fp32", "tf32", "mixed"]
PRECISIONS: tuple[TablePrecision, ...] = ("fp32", "tf32", "mixed")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ThroughputPoint:
    """One published throughput, in examples a second. `updates` is the share of steps that end with an update."""

    source: str
    device: KnownDevice
    precision: TablePrecision
    network: str
    batch: int
    throughput: float
    counts: Counts

    @property
    def seconds(self) -> float:
        return self.batch / self.throughput

    @property
    def row(self) -> tuple[str, TablePrecision]:
        """The row of the table of devices that this point tells about."""
        return self.device.name, self.precision

    def error_of_flat(self) -> float:
        """Return the logarithm of the time by a data sheet alone, over the published time."""
        rate = DeviceRate(name="", peak_operations=self.device.fp32.peak, peak_bytes=self.device.bytes)
        counts = self.counts
        rows = zip(counts.kinds.tolist(), counts.operations.tolist(), counts.num_bytes.tolist(), strict=True)
        return math.log(sum(rate.seconds(CLASSES[kind], *row) for kind, *row in rows) / self.seconds)


def shares_of(device: KnownDevice, precision: TablePrecision) -> ClassShares | None:
    """Return the shares of a device in one precision; None if it has no tensor cores for it."""
    found: ClassShares | None = getattr(device, precision)
    return found


def read_points(path: Path, devices: Mapping[str, KnownDevice]) -> list[ThroughputPoint]:
    """Return the points of a table, with the counts of their networks."""
    with path.open(encoding="utf-8", newline="") as file:
        return [_point(row, devices) for row in csv.DictReader(file)]


def _point(row: Mapping[str, str], devices: Mapping[str, KnownDevice]) -> ThroughputPoint:
    counts = counts_of(row["network"], int(row["batch"]))
    # The last operation is the update.
    parts = np.ones(len(counts.num_bytes))
    parts[-1] = float(row["updates"])
    [precision] = [one for one in PRECISIONS if one == row["precision"]]
    return ThroughputPoint(
        source=row["source"],
        device=devices[row["device"]],
        precision=precision,
        network=row["network"],
        batch=int(row["batch"]),
        throughput=float(row["throughput"]),
        counts=Counts(kinds=counts.kinds, operations=counts.operations, num_bytes=counts.num_bytes * parts),
    )
