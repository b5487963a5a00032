"""What the meters of a rank count."""

from __future__ import annotations

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
