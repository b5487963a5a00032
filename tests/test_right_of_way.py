"""Reads and messages of a rank give way to each other, over memory that the rank's processes share."""

from __future__ import annotations

import multiprocessing
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from autosync import right_of_way
from autosync.right_of_way import RankMarks, adopt, marks

LONG_SECONDS = 20.0
"""Longer than anything takes here, on a busy machine too."""


@pytest.fixture
def ours() -> RankMarks:
    return RankMarks()


def _reading(ours: RankMarks) -> threading.Event:
    """Begin a read; the event says that it has the links."""
    went_on = threading.Event()

    def read() -> None:
        ours.give_way()
        went_on.set()

    threading.Thread(target=read, daemon=True).start()
    return went_on


def test_a_read_goes_on_where_nothing_travels(ours: RankMarks) -> None:
    went_on = _reading(ours)
    assert went_on.wait(LONG_SECONDS)


@pytest.mark.parametrize("end", ["no message", "an awaited batch"])
def test_a_read_gives_way_to_messages_until_the_step_waits_for_its_batch(ours: RankMarks, end: str) -> None:
    ours.messages_travel = True
    went_on = _reading(ours)
    assert not went_on.wait(0.1)
    if end == "no message":
        ours.messages_travel = False
        assert went_on.wait(LONG_SECONDS)
    else:
        with ours.awaiting_batch():
            assert went_on.wait(LONG_SECONDS)


def test_a_read_gives_way_for_a_limited_time(ours: RankMarks, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(right_of_way, "_LONGEST_SECONDS", 0.05)
    ours.messages_travel = True
    began = time.monotonic()
    ours.give_way()
    assert time.monotonic() - began >= 0.05


def test_messages_give_way_only_while_a_batch_is_awaited_by_reads_that_go_first(ours: RankMarks) -> None:
    seen = [ours.messages_give_way]
    for reads_first in (False, True):
        with ours.awaiting_batch(reads_first=reads_first):
            seen.append(ours.messages_give_way)
        seen.append(ours.messages_give_way)
    assert seen == [False, False, False, True, False]


@pytest.fixture
def _forgets() -> Iterator[None]:
    before = dict(right_of_way._OF_PROCESS)
    yield
    right_of_way._OF_PROCESS.clear()
    right_of_way._OF_PROCESS.update(before)


def _in_a_worker(shared: Any, *, adopts: bool) -> None:
    if adopts:
        adopt(shared)
    marks().messages_travel = True


@pytest.mark.usefixtures("_forgets")
@pytest.mark.parametrize("method", ["fork", "spawn"])
@pytest.mark.parametrize("adopts", [True, False])
def test_a_worker_has_the_marks_of_its_rank_once_it_adopts_them(*, adopts: bool, method: str) -> None:
    ours = marks()
    assert marks() is ours
    ours.messages_travel = False
    worker = multiprocessing.get_context(method).Process(
        target=_in_a_worker, args=(ours.shared,), kwargs={"adopts": adopts}
    )
    worker.start()
    worker.join(60)
    assert worker.exitcode == 0
    assert ours.messages_travel is adopts
    ours.messages_travel = False
