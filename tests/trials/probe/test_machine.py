"""Speeds of interfaces: those of devices count, and those that virtual interfaces make up do not."""

from __future__ import annotations

from pathlib import Path

import pytest

from autosync.trials.probe.machine import _carries_for_another, _speed


def _interface(folder: Path, name: str, speed: str, *inside: str) -> None:
    (folder / name).mkdir()
    (folder / name / "speed").write_text(f"{speed}\n", encoding="utf-8")
    for one in inside:
        (folder / name / one).mkdir()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """As /sys/class/net shows a machine with containers."""
    _interface(tmp_path, "eth0", "1000", "device")
    _interface(tmp_path, "bond0", "25000", "bonding")
    _interface(tmp_path, "docker0", "10000", "bridge")
    _interface(tmp_path, "veth1", "10000")
    _interface(tmp_path, "ib0", "-1", "device")
    (tmp_path / "bonding_masters").write_text("bond0\n", encoding="utf-8")
    return tmp_path


@pytest.mark.parametrize(
    ("name", "speed"), [("eth0", 125e6), ("bond0", 3.125e9), ("docker0", None), ("veth1", None), ("ib0", None)]
)
def test_devices_and_bonds_have_a_speed(folder: Path, name: str, speed: float | None) -> None:
    assert _speed(name, {"eth0", "bond0", "docker0", "veth1", "ib0"}, folder) == speed


def test_other_interfaces_than_those_of_this_process_say_nothing(folder: Path) -> None:
    assert _speed("eth0", {"eth0"}, folder) is None


def test_a_device_below_another_interface_carries_its_traffic(folder: Path) -> None:
    (folder / "eth0" / "upper_eth0.100").mkdir()
    assert _carries_for_another("eth0", {"eth0": 1050, "eth0.100": 1000}, folder)
    assert not _carries_for_another("eth0", {"eth0": 1050, "eth0.100": 10}, folder)
    assert not _carries_for_another("eth0", {"eth0": 1050}, folder)
    assert not _carries_for_another("bond0", {"bond0": 1050, "eth0.100": 1000}, folder)
    assert not _carries_for_another("lo", {"lo": 0}, folder)
