"""Fits the table of known devices to throughputs of training, and judges it on networks that the fit has not seen.

    python benchmarks/device_rates/device_rates.py > device_rates.json
    python benchmarks/device_rates/device_rates.py --write                 # also writes configs/devices.yaml

Each network is left out in turn, on all devices, and its step times are predicted by shares that were fitted to all
others. Then each device is left out in turn, with all networks. *Before* is the rule that knows data sheets alone: 45 %
of a device's peak of float32, and 70 % of its memory's.

Bounds: half of the times are within 20 % in both reports, and the shipped table has the fitted shares. Ends with
1 otherwise.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

sys.path.append(str(Path(__file__).parents[2]))
from autosync.specs.profile.known_devices import (
    SCHEMA_KIND,
    SCHEMA_VERSION,
    SHARES,
    ClassShares,
    KnownDevice,
    devices_file,
    known_devices,
)
from benchmarks.device_rates.fit import Floats, Row, SharesFit, error_of
from benchmarks.device_rates.points import HERE, PRECISIONS, ThroughputPoint, read_points, shares_of
from benchmarks.shared import parser_of, report, run, tell

MOST_MEDIAN_ERROR = 0.2

HEADER = f"""\
# Known devices: peak rates a second by their data sheets (operations without sparsity, and bytes of memory), and the
# shares of these that training sustains, by class of operation. `points` is the number of throughputs of the device
# that the shares were fitted to; without any, they are those of its family. Shares are written by
# benchmarks/device_rates/device_rates.py, which names the sources. `also` are the names that torch gives a device.
schema: autosync.{SCHEMA_KIND}/{SCHEMA_VERSION}
devices:
"""


def main() -> int:
    """Run from the command line."""
    parser = parser_of(__doc__)
    parser.add_argument("--points", type=Path, default=HERE / "throughputs.csv", help="the throughputs")
    parser.add_argument("--write", action="store_true", help="write the fitted shares to the shipped table")
    options = parser.parse_args()
    devices = tuple(known_devices().values())
    tell("counting operations")
    points = read_points(options.points, known_devices())
    tell("fitting")
    fitted = table_of(devices, points, SharesFit(points, devices).shares())
    if options.write:
        devices_file().write_text(HEADER + "".join(map(entry, fitted)), encoding="utf-8")
    left_out = {
        "networks": left_out_errors(points, devices, [point.network for point in points]),
        "devices": left_out_errors(points, devices, [point.device.name for point in points]),
    }
    document = {
        "num_points": len(points),
        "left_out": {name: dict(summaries(points, errors)) for name, errors in left_out.items()},
        "by_network": by_network(points, left_out["networks"]),
        "is_shipped": options.write or fitted == devices,
    }
    medians = [one["all"]["after"]["median"] for one in document["left_out"].values()]
    return report(document, holds=max(medians) <= MOST_MEDIAN_ERROR and document["is_shipped"])


def table_of(
    devices: Sequence[KnownDevice], points: Sequence[ThroughputPoint], shares: dict[Row, Floats]
) -> tuple[KnownDevice, ...]:
    """Return the devices with fitted shares, as the table has them."""
    found = []
    for device in devices:
        changed: dict[str, ClassShares] = {}
        for precision in PRECISIONS:
            known = shares_of(device, precision)
            if known is not None:
                values = zip(SHARES, shares[device.name, precision].tolist(), strict=True)
                count = sum(point.row == (device.name, precision) for point in points)
                rounded = {name: float(f"{value:.3g}") for name, value in values}
                changed[precision] = ClassShares(peak=known.peak, points=count, **rounded)
        found.append(replace(device, **changed))
    return tuple(found)


def entry(device: KnownDevice) -> str:
    """Return a device as the table's file has it."""
    lines = [f"- name: {device.name}"]
    if device.also:
        lines.append(f"  also: [{', '.join(device.also)}]")
    lines += [f"  family: {device.family}", f"  bytes: {device.bytes:.5g}"]
    for precision in PRECISIONS:
        shares = shares_of(device, precision)
        if shares is not None:
            lines += [f"  {precision}:", f"    peak: {shares.peak:.5g}", f"    points: {shares.points}"]
            lines += [f"    {name}: {getattr(shares, name):g}" for name in SHARES]
    return "\n".join(lines) + "\n"


def left_out_errors(
    points: Sequence[ThroughputPoint], devices: Sequence[KnownDevice], groups: Sequence[str]
) -> list[float]:
    """Return the error of each point, predicted by shares that were fitted to the points of all other groups."""
    errors = [math.nan] * len(points)
    for group in sorted(set(groups)):
        tell(f"without {group}")
        others = [point for point, name in zip(points, groups, strict=True) if name != group]
        shares = SharesFit(others, devices).shares()
        for number, (point, name) in enumerate(zip(points, groups, strict=True)):
            if name == group:
                errors[number] = error_of(point, shares[point.row])
    return errors


def summaries(points: Sequence[ThroughputPoint], errors: Sequence[float]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the errors before and after, in each precision and in all."""
    for name in (*PRECISIONS, "all"):
        chosen = [number for number, point in enumerate(points) if name in ("all", point.precision)]
        before = figures([points[number].error_of_flat() for number in chosen])
        yield name, {"points": len(chosen), "before": before, "after": figures([errors[number] for number in chosen])}


def by_network(points: Sequence[ThroughputPoint], errors: Sequence[float]) -> dict[str, dict[str, float]]:
    """Return the figures of each network, by name."""
    found: dict[str, list[float]] = {}
    for point, error in zip(points, errors, strict=True):
        found.setdefault(point.network, []).append(error)
    return {name: figures(found[name]) for name in sorted(found)}


def figures(errors: Sequence[float]) -> dict[str, float]:
    """Return the median size of relative errors, the size that nine of ten are within, and the median error."""
    relative = np.expm1(np.array(errors))
    sizes = np.abs(relative)
    return {
        "median": round(float(np.median(sizes)), 3),
        "nine_of_ten": round(float(np.quantile(sizes, 0.9)), 3),
        "bias": round(float(np.median(relative)), 3),
    }


if __name__ == "__main__":
    run(main)
