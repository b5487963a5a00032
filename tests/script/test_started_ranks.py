"""A script that starts its ranks itself, although a launcher has started them, is refused by name."""

from __future__ import annotations

import sys

import pytest
import torch.distributed as dist
import torch.multiprocessing
from torch.testing._internal.distributed import fake_pg

from autosync.errors import OperationError
from autosync.script.started_ranks import refused_ranks


def _nothing(_: int) -> None:
    pass


def test_ranks_that_a_script_starts_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "4")
    stock = torch.multiprocessing.start_processes
    with refused_ranks():
        for start in (torch.multiprocessing.spawn, torch.multiprocessing.start_processes):
            with pytest.raises(OperationError, match=r"as rank 1 of 4: the launcher starts the ranks .*strategy=.ddp"):
                start(_nothing, nprocs=2)
    assert torch.multiprocessing.start_processes is stock
    assert sys.modules["torch.multiprocessing.spawn"].start_processes is stock  # type: ignore[attr-defined]


def test_processes_that_are_no_ranks_may_be_started(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "1")
    with refused_ranks():
        dist.init_process_group("fake", store=fake_pg.FakeStore(), rank=0, world_size=1)
        torch.multiprocessing.start_processes(_nothing, nprocs=0)
        dist.destroy_process_group()


def test_a_script_that_no_launcher_has_started_may_start_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RANK", raising=False)
    with refused_ranks():
        torch.multiprocessing.start_processes(_nothing, nprocs=0)
