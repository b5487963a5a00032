"""What the meters of a rank count."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from autosync.specs.cluster import ClusterSpec
from autosync.trials import meters


def test_bytes_of_an_interface_are_those_of_gloo(cluster: ClusterSpec, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "eth7")
    assert meters.counted_interface(cluster) == "eth7"
    on_gpus = meters.counted_interface(replace(cluster, backend="nccl"))
    assert on_gpus is None
    assert meters.read_meters(on_gpus).sent_bytes is None
    assert meters.read_meters(on_gpus).received_bytes is None


def test_an_interface_is_quiet_once_hardly_any_bytes_arrive(monkeypatch: pytest.MonkeyPatch) -> None:
    arrived = iter([0, 10**6, 2 * 10**6, 2 * 10**6 + 100, 10**9])
    monkeypatch.setattr(meters, "_bytes_of", lambda _: (0, next(arrived)))
    meters.wait_until_quiet("eth7")
    assert next(arrived) == 10**9


def test_a_wait_for_a_quiet_interface_ends_in_any_case(monkeypatch: pytest.MonkeyPatch) -> None:
    # Nothing is known about loopback.
    meters.wait_until_quiet("lo")
    meters.wait_until_quiet(None)
    arrived = itertools.count(0, 10**6)
    monkeypatch.setattr(meters, "_bytes_of", lambda _: (0, next(arrived)))
    monkeypatch.setattr(meters, "_MOST_QUIET_WAIT", 0.2)
    meters.wait_until_quiet("eth7")
    assert 1 < next(arrived) / 10**6 < 10
