"""The fit of the table of known devices: its derivatives, what it finds again, and the figures that it rests on."""

import csv
from dataclasses import replace

import numpy as np
import pytest

from autosync.specs.profile.known_devices import SHARES, known_devices, read_devices
from autosync.specs.profile.operations import CLASSES
from benchmarks.device_rates.counts import Counts, counts_of
from benchmarks.device_rates.device_rates import HEADER, entry, figures, table_of
from benchmarks.device_rates.fit import SharesFit, error_of
from benchmarks.device_rates.networks import NETWORKS
from benchmarks.device_rates.points import HERE, ThroughputPoint, shares_of

DEVICES = tuple(known_devices()[name] for name in ("NVIDIA V100", "NVIDIA T4", "NVIDIA Quadro RTX 8000"))


def point(number: int, rng: np.random.Generator, device: int = 0) -> ThroughputPoint:
    size = len(CLASSES)
    counts = Counts(kinds=np.arange(size), operations=rng.uniform(0, 1e13, size), num_bytes=rng.uniform(0, 3e11, size))
    return ThroughputPoint(
        source="drawn",
        device=DEVICES[device],
        precision=("fp32", "mixed")[number % 2],
        network=str(number),
        batch=8,
        throughput=float(rng.uniform(1, 50)),
        counts=counts,
    )


def drawn(count: int) -> list[ThroughputPoint]:
    rng = np.random.default_rng(3)
    return [point(number, rng, number // 2 % 2) for number in range(count)]


def test_slopes_are_the_differences_of_residuals() -> None:
    fit = SharesFit(drawn(6), DEVICES)
    rng = np.random.default_rng(1)
    size = len(SHARES) * sum(fit._sizes)
    at = rng.normal(-1.5, 0.3, size) * (np.arange(size) < 3 * len(SHARES))
    slopes = fit._slopes(at)
    for place in range(0, size, 5):
        step = np.zeros(size)
        step[place] = 1e-6
        assert slopes[:, place] == pytest.approx(
            (fit._residuals(at + step) - fit._residuals(at - step)) / 2e-6, abs=1e-4
        )


def test_points_are_predicted_as_they_were_published() -> None:
    shares = dict(zip(SHARES, np.linspace(0.2, 0.8, len(SHARES)), strict=True))
    known = np.array(list(shares.values()))
    points = [replace(one, throughput=one.throughput * np.exp(error_of(one, known)) ** -1) for one in drawn(60)]
    found = SharesFit(points, DEVICES).shares()
    assert max(abs(error_of(one, found[one.row])) for one in points) < 0.05


def test_a_device_without_points_is_like_its_family() -> None:
    rng = np.random.default_rng(5)
    fast = [replace(point(0, rng, 2), throughput=1e3) for _ in range(8)]
    fast = [replace(one, throughput=one.throughput * np.exp(error_of(one, np.full(len(SHARES), 0.8)))) for one in fast]
    found = SharesFit(fast, DEVICES).shares()
    # The Quadro is of Turing, as the T4 is.
    assert np.all(found["NVIDIA T4", "fp32"] >= found["NVIDIA V100", "fp32"])


def test_the_shipped_table_counts_the_published_figures() -> None:
    with (HERE / "throughputs.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert {row["network"] for row in rows} == set(NETWORKS)
    for device in known_devices().values():
        for precision in ("fp32", "tf32", "mixed"):
            shares = shares_of(device, precision)  # type: ignore[arg-type]
            count = sum((row["device"], row["precision"]) == (device.name, precision) for row in rows)
            assert (0 if shares is None else shares.points) == count
    readme = (HERE / "README.md").read_text(encoding="utf-8")
    assert all(f"| `{row['source']}` |" in readme for row in rows)


@pytest.mark.parametrize(
    ("name", "precision", "network", "batch", "throughput"),
    [
        ("NVIDIA V100", "fp32", "resnet50", 112, 367),
        ("NVIDIA T4", "fp32", "vgg16", 32, 74.9),
        ("NVIDIA RTX 3090", "mixed", "resnet18", 512, 2764.22),
        ("NVIDIA A100 80GB", "tf32", "efficientnet_b0", 256, 1078),
    ],
)
def test_published_throughputs_are_met(name: str, precision: str, network: str, batch: int, throughput: float) -> None:
    device = known_devices()[name]
    shares = shares_of(device, precision)  # type: ignore[arg-type]
    assert shares is not None
    one = ThroughputPoint(
        source="",
        device=device,
        precision=precision,  # type: ignore[arg-type]
        network=network,
        batch=batch,
        throughput=throughput,
        counts=counts_of(network, batch),
    )
    assert abs(error_of(one, np.array([getattr(shares, share) for share in SHARES]))) < 0.1
    assert abs(error_of(one, np.array([getattr(shares, share) for share in SHARES]))) < abs(one.error_of_flat())


def test_the_table_is_written_as_it_is_read(tmp_path: object) -> None:
    from pathlib import Path

    file = Path(str(tmp_path)) / "devices.yaml"
    fitted = table_of(DEVICES, drawn(6), SharesFit(drawn(6), DEVICES).shares())
    file.write_text(HEADER + "".join(map(entry, fitted)), encoding="utf-8")
    assert read_devices(file) == fitted


def test_figures_are_of_relative_errors() -> None:
    found = figures([np.log(1.1), np.log(1.2), np.log(0.5)])
    assert found == {"median": 0.2, "nine_of_ten": 0.44, "bias": 0.1}
