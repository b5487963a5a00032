"""A rank ends although a thread of torch waits for the interpreter's lock when the process group goes."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch.distributed as dist
from torch.distributed import distributed_c10d

from autosync.script.group_end import unhurried_group_end

NUM_RUNS = 12


def test_other_threads_have_the_lock_before_a_group_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    may_begin, is_done = threading.Event(), threading.Event()

    def free_sum() -> None:
        may_begin.wait()
        is_done.set()

    seen = []
    monkeypatch.setattr(distributed_c10d, "destroy_process_group", lambda group: seen.append((group, is_done.is_set())))
    monkeypatch.setattr(dist, "destroy_process_group", distributed_c10d.destroy_process_group)
    stock = dist.destroy_process_group
    thread = threading.Thread(target=free_sum)
    thread.start()
    with unhurried_group_end():
        may_begin.set()
        dist.destroy_process_group("one")
    thread.join()
    assert seen == [("one", True)]
    assert dist.destroy_process_group is distributed_c10d.destroy_process_group is stock


def test_scripts_that_drop_their_model_with_the_group_end(ranks: Any) -> None:
    """Without the pause, 3 of 14 such runs stood still."""
    for number in range(NUM_RUNS):
        found = ranks.run("does", None, key=f"ends-{number}", arguments=("averages",), repeats=0)
        assert found.codes == (0, 0), (number, found.logs)
