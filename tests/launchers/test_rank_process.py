"""A rank's process knows the interface that leads to the other nodes, and its place in a job of Slurm."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from autosync.launchers import rank_process
from autosync.launchers.rank_process import RankProcess

INTERFACES = "$GLOO_SOCKET_IFNAME $NCCL_SOCKET_IFNAME"


def _shown(folder: Path, words: str = INTERFACES, **changes: Any) -> str:
    """What a rank finds in its environment: the interfaces for gloo and for NCCL, or other variables."""
    log = folder / "log"
    request: dict[str, Any] = {
        "command": ["sh", "-c", f"echo {words}"],
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


PLACE = "$SLURM_PROCID $SLURM_NTASKS $SLURM_LOCALID $SLURM_NTASKS_PER_NODE $SLURM_NODEID $SLURM_NNODES"


def test_a_rank_in_a_job_of_slurm_has_its_place_in_the_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    of_the_agent = {"PROCID": "0", "NTASKS": "1", "LOCALID": "0", "NODEID": "0", "NNODES": "1"}
    for name, value in of_the_agent.items():
        monkeypatch.setenv(f"SLURM_{name}", value)
    monkeypatch.delenv("SLURM_NTASKS_PER_NODE", raising=False)
    place = {"RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "4"}
    place |= {"GROUP_RANK": "1", "GROUP_WORLD_SIZE": "2"}
    monkeypatch.setenv("SLURM_JOB_ID", "17")
    assert _shown(tmp_path, PLACE, environment=place) == "5 8 1 4 1 2\n"
    (tmp_path / "log").unlink()
    # The user's own word comes first.
    assert _shown(tmp_path, PLACE, environment={**place, "SLURM_PROCID": "9"}).startswith("9 8 ")
    (tmp_path / "log").unlink()
    monkeypatch.delenv("SLURM_JOB_ID")
    assert _shown(tmp_path, "$SLURM_PROCID $SLURM_NTASKS", environment=place) == "0 1\n"
