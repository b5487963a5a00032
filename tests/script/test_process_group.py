"""A script whose process group is not the one with which it was started is refused by name."""

from __future__ import annotations

import re

import pytest
import torch.distributed as dist
from torch.distributed import distributed_c10d
from torch.testing._internal.distributed import fake_pg

from autosync.errors import OperationError
from autosync.script.process_group import checked_process_group, refuse_other_ranks

STARTED = {"RANK": "5", "WORLD_SIZE": "8", "LOCAL_WORLD_SIZE": "4"}


@pytest.mark.parametrize(("rank", "num_ranks"), [(-1, -1), (5, 8), (5, -1), (-1, 8)])
def test_the_ranks_that_were_started_are_accepted(rank: int, num_ranks: int) -> None:
    refuse_other_ranks(rank, num_ranks, STARTED)


@pytest.mark.parametrize(("rank", "num_ranks"), [(1, 8), (5, 4), (1, 2), (8, 8)])
def test_other_ranks_are_refused_with_the_arguments_for_lightning(rank: int, num_ranks: int) -> None:
    words = f"as rank {rank} of {num_ranks}, and it was started as rank 5 of 8 (nodes: 2, ranks on each: 4"
    with pytest.raises(OperationError, match=re.escape(words) + r".*num_nodes=2, devices=4"):
        refuse_other_ranks(rank, num_ranks, STARTED)


def test_a_script_that_no_launcher_has_started_may_number_its_ranks() -> None:
    refuse_other_ranks(3, 4, {})


def test_a_group_after_the_first_one_is_the_scripts_own(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in STARTED:
        monkeypatch.setenv(name, "1" if name == "WORLD_SIZE" else "0")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "1")
    with checked_process_group():
        for num_ranks in (1, 2):
            # Ranks do not meet under torch's fake backend.
            dist.init_process_group("fake", store=fake_pg.FakeStore(), rank=0, world_size=num_ranks)
            dist.destroy_process_group()


def test_the_check_is_put_back(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in STARTED.items():
        monkeypatch.setenv(name, value)
    stock = distributed_c10d.init_process_group
    with checked_process_group():
        assert dist.init_process_group is not stock
        with pytest.raises(OperationError, match="rank 0 of 2"):
            dist.init_process_group("gloo", rank=0, world_size=2)
    assert dist.init_process_group is distributed_c10d.init_process_group is stock
