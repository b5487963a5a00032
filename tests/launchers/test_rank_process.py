"""A rank's process knows the interface that leads to the other nodes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from autosync.launchers import rank_process
from autosync.launchers.rank_process import RankProcess


def _shown(folder: Path, **changes: Any) -> str:
    """What a rank finds in its environment: the interfaces for gloo and for NCCL."""
    log = folder / "log"
    request: dict[str, Any] = {
        "command": ["sh", "-c", "echo $GLOO_SOCKET_IFNAME $NCCL_SOCKET_IFNAME"],
        "environment": {},
        "folder": str(folder),
        "log": str(log),
        "control": False,
        "addresses": ["10.0.0.1", "10.0.0.2"],
        "nics": 1,
    }
    assert RankProcess({**request, **changes}, {}).process.wait(10) == 0
    return log.read_text()


def test_nccl_is_tied_to_an_interface_only_where_a_node_has_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rank_process, "find_interface", lambda _: "eth7")
    for variable in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
        monkeypatch.delenv(variable, raising=False)
    assert _shown(tmp_path) == "eth7 =eth7\n"
    (tmp_path / "log").unlink()
    assert _shown(tmp_path, nics=2) == "eth7\n"
    (tmp_path / "log").unlink()
    # The node's own environment comes first.
    monkeypatch.setenv("NCCL_SOCKET_IFNAME", "ib0")
    assert _shown(tmp_path) == "eth7 ib0\n"
