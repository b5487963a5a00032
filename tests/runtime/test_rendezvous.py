"""The place that a rendezvous means."""

from __future__ import annotations

import pytest

from autosync.runtime.serving.rendezvous import open_store, resolve


@pytest.mark.parametrize(
    ("address", "place"),
    [("10.0.0.1", "tcp://10.0.0.1:29500"), ("n0", "tcp://n0:29500"), ("fd00::1", "tcp://[fd00::1]:29500")],
)
def test_the_environment_says_where(address: str, place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MASTER_ADDR", address)
    monkeypatch.setenv("MASTER_PORT", "29500")
    assert resolve("env://") == place


def test_a_store_is_reached_by_ipv6() -> None:
    import torch.distributed as dist

    try:
        made = dist.TCPStore("::1", 0, is_master=True, wait_for_workers=False)
    except RuntimeError as error:
        pytest.skip(f"no IPv6 here: {error}")
    made.set("word", "here")
    assert open_store(resolve(f"tcp://[::1]:{made.port}"), patience_seconds=10).get("word") == b"here"
