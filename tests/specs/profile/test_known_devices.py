"""The table of known devices: names, precisions, and the time of an operation by its own formula."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from autosync.errors import InputError, UnknownNameError
from autosync.specs.profile.known_devices import (
    SHARES,
    ClassShares,
    KnownDevice,
    TrainingRate,
    devices_file,
    known_device,
    known_devices,
    read_devices,
    training_rate,
)
from autosync.specs.profile.operations import CLASSES
from autosync.specs.profile.run import _rate


def shares(peak: float, **changed: float) -> ClassShares:
    return ClassShares(peak=peak, points=0, **{**dict.fromkeys(SHARES, 0.5), **changed})


PLAIN = KnownDevice(name="plain", family="none", bytes=100.0, fp32=shares(10.0))
TENSOR = replace(PLAIN, name="tensor", tf32=shares(40.0, convolution=1.0), mixed=shares(80.0, memory=0.25))


def test_devices_go_by_their_names_and_by_those_of_torch() -> None:
    names = {device.name: [device.name, device.name.lower(), *device.also] for device in known_devices().values()}
    for name, others in names.items():
        assert {known_device(other).name for other in others} == {name}
    assert known_device("t4") is known_device("NVIDIA T4")
    with pytest.raises(UnknownNameError, match="NVIDIA V100"):
        known_device("V1000")


def test_no_name_means_two_devices() -> None:
    names = [
        name.casefold()
        for device in known_devices().values()
        for name in {device.name, device.name.removeprefix("NVIDIA "), *device.also}
    ]
    assert len(names) == len(set(names))


def test_an_operation_takes_its_arithmetic_or_its_bytes() -> None:
    rate = training_rate(PLAIN)
    assert rate.seconds("product", 20.0, 1.0) == 20.0 / (10.0 * 0.5)
    assert rate.seconds("product", 1.0, 200.0) == 200.0 / (100.0 * 0.5)
    assert all(rate.seconds(kind, 0.0, 50.0) == 1.0 for kind in CLASSES)


def test_tensor_cores_are_used_where_torch_uses_them() -> None:
    by_default = training_rate(TENSOR)
    assert by_default.seconds("product", 20.0, 0.0) == 20.0 / (10.0 * 0.5)
    assert by_default.seconds("convolution", 20.0, 0.0) == 20.0 / (40.0 * 1.0)
    assert training_rate(TENSOR, tf32_products=True).seconds("batched_product", 20.0, 0.0) == 1.0
    assert training_rate(TENSOR, tf32_convolutions=False).seconds("convolution", 20.0, 0.0) == 4.0
    # A device without tensor cores computes in float32, also if torch allows TF32.
    assert training_rate(PLAIN, tf32_products=True) == training_rate(PLAIN, tf32_convolutions=False)


def test_mixed_precision_moves_half_of_the_bytes() -> None:
    rate = training_rate(TENSOR, "mixed")
    assert rate.seconds("memory", 0.0, 100.0) == 50.0 / (100.0 * 0.25)
    assert rate.seconds("convolution", 80.0, 0.0) == 2.0
    with pytest.raises(InputError, match="plain has no tensor cores"):
        training_rate(PLAIN, "mixed")


def test_the_note_says_the_precision_and_whose_figures() -> None:
    assert "in float32 with convolutions in TF32, at" in training_rate(TENSOR).describe()
    assert "products and convolutions in TF32" in training_rate(TENSOR, tf32_products=True).describe()
    assert "(none of this device, some of similar ones)" in training_rate(PLAIN).describe()
    assert "in mixed precision" in training_rate(TENSOR, "mixed").describe()
    fitted = replace(PLAIN, fp32=replace(PLAIN.fp32, points=3))
    assert "(3 of this device)" in training_rate(fitted).describe()


def test_torchs_settings_choose_the_precision(monkeypatch: pytest.MonkeyPatch) -> None:
    device = known_device("A100")

    def rate() -> TrainingRate:
        found = _rate("A100", "full")
        assert isinstance(found, TrainingRate)
        return found

    assert (rate().products, rate().convolutions) == (device.fp32, device.tf32)
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        assert rate().products == device.tf32
    finally:
        torch.set_float32_matmul_precision(before)


def test_the_shipped_table_is_what_it_says() -> None:
    for device in read_devices(devices_file()):
        peaks = [one.peak for one in (device.fp32, device.tf32, device.mixed) if one is not None]
        assert peaks == sorted(peaks)
        assert 1e11 < device.bytes < 1e13


@pytest.mark.parametrize(
    ("wrong", "message"),
    [("peak: 0", "peak 0.0 is no rate"), ("memory: 3", "memory 3.0 is no share"), ("momery: 1", "unknown key")],
)
def test_a_wrong_table_is_refused_with_its_line(tmp_path: Path, wrong: str, message: str) -> None:
    key = wrong.partition(":")[0].replace("momery", "memory")
    lines = devices_file().read_text(encoding="utf-8").splitlines()
    place = next(number for number, line in enumerate(lines) if line.strip().startswith(f"{key}:"))
    lines[place] = lines[place].partition(key)[0] + wrong
    file = tmp_path / "devices.yaml"
    file.write_text("\n".join(lines), encoding="utf-8")
    with pytest.raises(InputError, match=message) as caught:
        read_devices(file)
    assert "devices.yaml:" in str(caught.value)
