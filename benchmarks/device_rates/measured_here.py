"""Measures the networks on the GPU of this machine, and compares their step times with computed ones.

    python benchmarks/device_rates/measured_here.py > here.json
    python benchmarks/device_rates/measured_here.py --network resnet50 --network bert_base_384

The GPU must be in the table of known devices. Each network trains in float32, in TF32 and under autocast, on random
data, at a batch that the memory holds. A time is the median of ten steps after three, by the GPU's clock. Prints one
JSON document: each point's throughput, its computed time over the measured one, and a summary by precision.
`--csv FILE` adds the points to a table like `throughputs.csv`.
"""

from __future__ import annotations

import contextlib
import csv
import gc
import math
import statistics
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

sys.path.append(str(Path(__file__).parents[2]))
from autosync.specs.profile.clock import clock_of
from autosync.specs.profile.known_devices import KnownDevice, known_device, training_rate
from autosync.specs.profile.operations import CLASSES
from benchmarks.device_rates.counts import Counts, counts_of
from benchmarks.device_rates.device_rates import MOST_MEDIAN_ERROR, figures
from benchmarks.device_rates.networks import NETWORKS, Network
from benchmarks.device_rates.points import PRECISIONS, TablePrecision, shares_of
from benchmarks.shared import parser_of, report, run, tell

MEASURED = [name for name, network in NETWORKS.items() if network.updates == 1]
USUAL_BATCH = 128
MANY_RATINGS = 1_000_000
"""NeuMF's batch; its examples are two numbers each."""
NUM_WARM_STEPS = 3
NUM_STEPS = 10


def main() -> int:
    """Run from the command line."""
    parser = parser_of(__doc__)
    parser.add_argument("--network", action="append", choices=MEASURED, help="this one (may be repeated)")
    parser.add_argument("--precision", action="append", choices=PRECISIONS, help="this one (may be repeated)")
    parser.add_argument("--batch", type=int, help="examples a step, or fewer if the memory holds fewer")
    parser.add_argument("--csv", type=Path, help="add the points to this table")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        parser.error("torch finds no GPU here")
    device = known_device(torch.cuda.get_device_name())
    points: list[dict[str, Any]] = []
    for name in options.network or MEASURED:
        for precision in options.precision or PRECISIONS:
            if shares_of(device, precision) is not None:
                tell(f"{name}, {precision}")
                points.append(_point(device, name, precision, options.batch))
                tell(f"  {points[-1]['throughput']:g} examples a second, {points[-1]['computed_over_measured']:.2f}")
                if options.csv:
                    _add(options.csv, points[-1])
    by_precision = {
        name: _figures([one for one in points if one["precision"] == name])
        for name in dict.fromkeys(one["precision"] for one in points)
    }
    document = {"device": device.name, "torch": torch.__version__, "by_precision": by_precision, "points": points}
    return report(document, holds=_figures(points)["median"] <= MOST_MEDIAN_ERROR)


def _point(device: KnownDevice, name: str, precision: TablePrecision, most: int | None) -> dict[str, Any]:
    usual = MANY_RATINGS if name == "ncf" else USUAL_BATCH
    batch, seconds = _measured(NETWORKS[name], most or usual, precision)
    computed = _computed(device, counts_of(name, batch), precision)
    return {
        "source": "autosync",
        "device": device.name,
        "precision": precision,
        "network": name,
        "batch": batch,
        "throughput": round(batch / seconds, 1),
        "updates": 1,
        "seconds": seconds,
        "computed_over_measured": computed / seconds,
    }


def _measured(network: Network, batch: int, precision: TablePrecision) -> tuple[int, float]:
    """Return a batch, halved until the memory holds it, and the seconds of a step with it."""
    while batch:
        try:
            with _precision(precision):
                return batch, _step_seconds(network, batch, precision)
        except torch.OutOfMemoryError:
            tell(f"  {batch} examples are too many")
            batch //= 2
        finally:
            gc.collect()
            torch.cuda.empty_cache()
    raise SystemExit("the GPU's memory is too small")


def _step_seconds(network: Network, batch: int, precision: TablePrecision) -> float:
    place = torch.device("cuda")
    torch.manual_seed(0)
    with place:
        model = network.build().to(place)
    optimizer: torch.optim.Optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    if network.state_slots == 2:
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-5)
    clock = clock_of(place)

    def step() -> None:
        optimizer.zero_grad()
        with torch.autocast("cuda", torch.float16, enabled=precision == "mixed"):
            loss = network.loss(model, batch)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    return _median_seconds(step, clock)


def _median_seconds(step: Callable[[], None], clock: Any) -> float:
    for _ in range(NUM_WARM_STEPS):
        step()
    marks = [clock.mark()]
    for _ in range(NUM_STEPS):
        step()
        marks.append(clock.mark())
    return statistics.median(clock.seconds(marks))


@contextlib.contextmanager
def _precision(precision: TablePrecision) -> Iterator[None]:
    """Use TF32 everywhere, as mixed precision's float32 operations do, or nowhere."""
    products, convolutions = torch.backends.cuda.matmul, torch.backends.cudnn
    before = products.allow_tf32, convolutions.allow_tf32
    products.allow_tf32 = convolutions.allow_tf32 = precision != "fp32"
    try:
        yield
    finally:
        products.allow_tf32, convolutions.allow_tf32 = before


def _computed(device: KnownDevice, counts: Counts, precision: TablePrecision) -> float:
    rate = training_rate(
        device,
        "mixed" if precision == "mixed" else "full",
        tf32_products=precision == "tf32",
        tf32_convolutions=precision == "tf32",
    )
    rows = zip(counts.kinds.tolist(), counts.operations.tolist(), counts.num_bytes.tolist(), strict=True)
    return sum(rate.seconds(CLASSES[kind], *row) for kind, *row in rows)


def _figures(points: Sequence[dict[str, Any]]) -> dict[str, float]:
    """Return the number of points, and the figures of their computed times' errors."""
    return {"points": len(points), **figures([math.log(one["computed_over_measured"]) for one in points])}


def _add(path: Path, point: dict[str, Any]) -> None:
    """Add a point to a table, with its columns."""
    fields = ("source", "device", "precision", "network", "batch", "throughput", "updates")
    is_new = not path.is_file()
    with path.open("a", encoding="utf-8", newline="") as file:
        table = csv.DictWriter(file, fields, extrasaction="ignore", lineterminator="\n")
        if is_new:
            table.writeheader()
        table.writerow(point)


if __name__ == "__main__":
    run(main)
