"""Records in files on each rank's disk: the same result, reused by later runs, and never trusted blindly."""

import errno
import os
import queue
from collections import defaultdict
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from autosync.errors import OperationError
from autosync.loops import rank_program, rank_work
from autosync.loops.declarations import Records, SerialLoop
from autosync.loops.load import load_loop
from autosync.loops.peers import send_value
from autosync.loops.rank_program import LoopResult
from autosync.loops.rank_run import LoopSettings
from autosync.loops.shards import receive_records, send_records, shard_path
from tests.helpers import loop_ranks
from tests.helpers.loop_ranks import run_threads

_FILE = """import numpy as np

import autosync


def records():
    chance = np.random.default_rng(3)
    found = np.zeros({num}, dtype=[("i", "i8"), ("small", "i4"), ("j", "i8"), ("x", "f8")])
    found["i"] = chance.integers(0, 9, size={num})
    found["j"] = chance.integers(0, 7, size={num})
    found["x"] = {shift} + chance.normal(size={num})
    return found


@autosync.loop(records=records, tables={{
    "left": autosync.Table(shape=(9,), initial=1.0), "right": autosync.Table(shape=(7,), initial=1.0)
}})
def step(r, left, right):
    {line}
    left[r.i] = 0.5 * left[r.i] + r.x * right[r.j]
    right[r.j] += 0.1 * left[r.i]
"""


def _loop(folder: Path, *, num: int = 60, shift: float = 0.0, line: str = "pass") -> SerialLoop:
    path = folder / "loop.py"
    path.write_text(_FILE.format(num=num, shift=shift, line=line), encoding="utf-8")
    return load_loop(str(path))


def _run(loop: SerialLoop, shards: str, num_ranks: int = 3) -> LoopResult:
    return run_threads(loop, num_ranks, LoopSettings(num_epochs=2, compiled=False, shards=shards))


def _sent_records(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    sizes: list[int] = []
    post_send = loop_ranks.ThreadPeers.post_send

    def noting(self: loop_ranks.ThreadPeers, array: np.ndarray, to: int, tag: int) -> loop_ranks.Sent:
        if tag == 4:
            sizes.append(array.nbytes)
        return post_send(self, array, to, tag)

    monkeypatch.setattr(loop_ranks.ThreadPeers, "post_send", noting)
    return sizes


@pytest.mark.parametrize("line", ["pass", "r.x = 0.5 * r.x"])
def test_records_on_disk_give_the_same_result(line: str, tmp_path: Path) -> None:
    loop = _loop(tmp_path, line=line)
    shards = str(tmp_path / "shards")
    expected = _run(loop, "")
    for _ in range(2):
        found = _run(loop, shards)
        for name, table in expected.tables.items():
            assert found.tables[name].tobytes() == table.tobytes(), name
        assert all(np.array_equal(found.records[name], expected.records[name]) for name in ("i", "j", "x"))
    assert sorted(path.name for path in Path(shards).iterdir()) == [f"records-{rank}-of-3.npy" for rank in range(3)]


@pytest.mark.parametrize("line", ["pass", "r.x = 0.5 * r.x"])
def test_a_later_run_finds_its_records(line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shards = str(tmp_path / "shards")
    sizes = _sent_records(monkeypatch)
    _run(_loop(tmp_path, line=line), shards)
    assert len(sizes) == 2
    kept = [shard_path(shards, rank, 3).read_bytes() for rank in range(3)]
    _run(_loop(tmp_path, line=line), shards)
    assert len(sizes) == 2, "the records have travelled again"
    assert kept == [shard_path(shards, rank, 3).read_bytes() for rank in range(3)]
    _run(_loop(tmp_path, line=line, shift=1.0), shards)
    assert len(sizes) == 4, "other records have not travelled"


@pytest.mark.parametrize(
    ("room", "name", "num_ranks"), [(rank_program, "keep_records", 1), (rank_work, "receive_records", 2)]
)
def test_runs_that_share_a_folder_do_not_see_each_others_fields(
    room: ModuleType, name: str, num_ranks: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop, shards = _loop(tmp_path, line="r.x = 0.5 * r.x"), str(tmp_path / "shards")
    expected = _run(loop, "", num_ranks)
    others: list[LoopResult] = []
    mapped = getattr(room, name)

    def mapping(*arguments: Any, **options: Any) -> Records:
        """The records, which another run of the same loop maps and changes before this one begins."""
        records: Records = mapped(*arguments, **options)
        with monkeypatch.context() as patch:
            patch.setattr(room, name, mapped)
            others.append(_run(loop, shards, num_ranks))
        return records

    monkeypatch.setattr(room, name, mapping)
    for found in (_run(loop, shards, num_ranks), *others):
        assert np.array_equal(found.records["x"], expected.records["x"])
        assert all(found.tables[key].tobytes() == table.tobytes() for key, table in expected.tables.items())
    assert len(others) == 1


def test_a_file_gets_its_name_when_it_is_complete(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    queues: defaultdict[Any, queue.Queue[Any]] = defaultdict(queue.Queue)
    first, second = (loop_ranks.ThreadPeers(rank, 2, queues) for rank in range(2))
    # Rank 1 has no records from an earlier run.
    send_value(second, False, 0)
    send_records(first, _loop(tmp_path).load_records(), 1, keeps=True)
    shards = tmp_path / "shards"
    post_receive = loop_ranks.ThreadPeers.post_receive

    def losing(self: loop_ranks.ThreadPeers, array: np.ndarray, source: int, tag: int) -> loop_ranks.Arriving:
        if tag == 4:
            assert not shard_path(str(shards), 1, 2).exists()
            raise OperationError("the link has ended")
        return post_receive(self, array, source, tag)

    monkeypatch.setattr(loop_ranks.ThreadPeers, "post_receive", losing)
    with pytest.raises(OperationError, match="the link has ended"):
        receive_records(second, str(shards), are_changed=False)
    assert not list(shards.iterdir())


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"\x93NUMPY\x01\x00v\x00{'descr': '|O'",
        b"\x93NUMPY\x01\x00\x0c\x00{'descr': (\n",
        b"text",
    ],
)
def test_a_damaged_file_is_replaced(raw: bytes, tmp_path: Path) -> None:
    loop, shards = _loop(tmp_path), str(tmp_path / "shards")
    expected = _run(loop, shards)
    for rank in range(3):
        shard_path(shards, rank, 3).write_bytes(raw)
    found = _run(loop, shards)
    assert all(found.tables[name].tobytes() == table.tobytes() for name, table in expected.tables.items())


def test_more_ranks_than_records(tmp_path: Path) -> None:
    found = _run(_loop(tmp_path, num=2), str(tmp_path / "shards"), num_ranks=4)
    assert len(found.records) == 2


def test_compiled_functions_change_records_in_files(tmp_path: Path) -> None:
    loop = _loop(tmp_path, line="r.x = 0.5 * r.x")
    results = [
        run_threads(loop, 2, LoopSettings(num_epochs=2, shards=shards)) for shards in ("", str(tmp_path / "shards"))
    ]
    assert all(result.is_compiled for result in results)
    assert np.array_equal(results[0].records["x"], results[1].records["x"])


def test_a_folder_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("a file", encoding="utf-8")
    with pytest.raises(OperationError, match="records cannot be kept there"):
        _run(_loop(tmp_path), str(tmp_path / "taken"), num_ranks=1)


def test_a_full_disk_is_noticed_before_records_are_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_file: int, _begin: int, size: int) -> None:
        assert size > 60 * np.dtype("i8,i4,i8,f8").itemsize
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(OperationError, match="No space left on device: records cannot be kept there"):
        _run(_loop(tmp_path), str(tmp_path / "shards"), num_ranks=1)
    assert not list((tmp_path / "shards").iterdir())
