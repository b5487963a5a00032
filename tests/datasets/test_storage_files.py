"""Storages of studies: what is none is refused before a byte of it is changed."""

from __future__ import annotations

import json
import os
import random
import sqlite3
import sys
from collections.abc import Callable
from pathlib import Path

import optuna
import pytest

from autosync.datasets import storage
from autosync.datasets.storage import check_storage, close_storage, lock_of, open_storage
from autosync.datasets.store import RecordStore
from autosync.errors import InputError
from autosync.search.study_folder import StudyFolder

_OPERATION = b'{"op_code":0,"worker_id":"w-1","study_name":"s","directions":[1]}\n'


def _photo() -> bytes:
    return random.Random(1).randbytes(60_000)


FOREIGN: dict[str, bytes] = {
    "photo": b"\xff\xd8" + _photo().replace(b"\n", b""),
    "photo_with_lines": b"\xff\xd8" + _photo(),
    "text_without_newline": b"my thesis, first line\nlast line",
    "text": b"my thesis\n",
    "one_line_without_newline": b"thesis",
    "empty_lines": b"\n\n",
    "other_json": b'{"name": "me"}\n',
    "other_json_without_newline": b'{"name": "me"}',
    "other_json_lines": b'{"schema":"autosync.record/1"}\n{"schema":"autosync.record/1"}\n',
    "list": b"[1, 2]\n",
    "unknown_operation": b'{"op_code":11,"worker_id":"w"}\n',
    "operation_of_no_worker": b'{"op_code":0}\n',
    "journal_and_text": _OPERATION + b"and then my thesis\n",
    "journal_and_text_without_newline": _OPERATION + b"and then my thesis",
    "journal_and_bytes": _OPERATION + b"\0" * 100,
}


@pytest.mark.parametrize("name", FOREIGN)
def test_what_is_no_journal_stays_as_it_is(name: str, tmp_path: Path) -> None:
    path = tmp_path / "file.bin"
    path.write_bytes(FOREIGN[name])
    for tried in (check_storage, open_storage):
        with pytest.raises(InputError, match=r"file\.bin:\d+: the storage is no journal"):
            tried(f"journal:{path}")
    assert path.read_bytes() == FOREIGN[name]
    assert [one.name for one in tmp_path.iterdir()] == ["file.bin"]


def _folder(path: Path) -> None:
    path.mkdir()


def _pipe(path: Path) -> None:
    os.mkfifo(path)


def _device(path: Path) -> None:
    path.symlink_to("/dev/zero")


@pytest.mark.parametrize(("make", "words"), [(_folder, "a folder"), (_pipe, "a pipe"), (_device, "a device")])
@pytest.mark.parametrize("scheme", ["journal:", "sqlite:///"])
def test_what_is_no_file_is_no_storage(scheme: str, make: Callable[[Path], None], words: str, tmp_path: Path) -> None:
    make(tmp_path / "odd")
    with pytest.raises(InputError, match=f"the storage is {words}, not a file"):
        open_storage(f"{scheme}{tmp_path / 'odd'}")
    assert [one.name for one in tmp_path.iterdir()] == ["odd"]


@pytest.mark.parametrize("scheme", ["journal:", "sqlite:///"])
def test_storages_that_cannot_be_written_to_are_refused(
    scheme: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(InputError, match="its folder is not there"):
        check_storage(f"{scheme}{tmp_path / 'nowhere' / 'file'}")
    path = tmp_path / "file"
    path.touch()
    # The superuser may write anywhere, so the system is asked by way of this.
    monkeypatch.setattr(os, "access", lambda _, mode: not mode & os.W_OK)
    with pytest.raises(InputError, match="may not be read and written"):
        check_storage(f"{scheme}{path}")
    with pytest.raises(InputError, match="may not be written to"):
        check_storage(f"{scheme}{tmp_path / 'new'}")
    check_storage(f"{scheme}{path}", is_new_allowed=False)


def test_an_own_journal_is_gone_on_with_and_mended(tmp_path: Path) -> None:
    path = tmp_path / "shared.log"
    optuna.create_study(storage=open_storage(f"journal:{path}"), study_name="s")
    whole = path.read_bytes()
    path.write_bytes(whole + whole.rstrip(b"\n")[:-3])
    check_storage(f"journal:{path}")
    assert path.read_bytes() != whole
    open_storage(f"journal:{path}")
    assert path.read_bytes() == whole
    # The first tuner was killed within its first line.
    path.write_bytes(b'{"op_')
    open_storage(f"journal:{path}")
    assert path.read_bytes() == b""


def test_what_came_behind_a_journal_meanwhile_is_not_cut_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "shared.log"
    path.write_bytes(FOREIGN["journal_and_text_without_newline"])
    monkeypatch.setattr(storage, "check_journal", lambda _: None)
    open_storage(f"journal:{path}")
    assert path.read_bytes() == FOREIGN["journal_and_text_without_newline"]


def test_others_cannot_lock_what_they_may_not_write(tmp_path: Path) -> None:
    """A user who can open a file, if only to read it, can lock it for as long as they like."""
    path = tmp_path / "shared.log"
    before = os.umask(0)
    try:
        open_storage(f"journal:{path}")
        with StudyFolder(tmp_path).hold(), RecordStore(tmp_path / "store").held():
            held = [lock_of(path), StudyFolder(tmp_path).lock, tmp_path / "store" / "lock"]
            assert [oct(one.stat().st_mode & 0o777) for one in held] == [oct(0o660)] * 3
    finally:
        os.umask(before)


def test_a_lock_that_is_a_pipe_keeps_nobody_waiting(tmp_path: Path) -> None:
    path = tmp_path / "shared.log"
    os.mkfifo(lock_of(path))
    open_storage(f"journal:{path}")


@pytest.mark.parametrize(
    "content", [b"my thesis", b"SQLite format 2\0" + bytes(2000), b"SQLite format 3\0" + b"x" * 5000]
)
def test_what_is_no_database_stays_as_it_is(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "file.db"
    path.write_bytes(content)
    with pytest.raises(InputError, match=r"file\.db: the storage (is no SQLite|cannot be read)"):
        open_storage(f"sqlite:///{path}")
    assert path.read_bytes() == content
    assert [one.name for one in tmp_path.iterdir()] == ["file.db"]


def test_the_database_of_another_program_gets_no_tables(tmp_path: Path) -> None:
    path = tmp_path / "places.db"
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE places (id INTEGER)")
        connection.execute("CREATE TABLE trials (id INTEGER)")
    connection.close()
    before = path.read_bytes()
    with pytest.raises(InputError, match="a database of something else"):
        open_storage(f"sqlite:///{path}")
    assert path.read_bytes() == before


def test_databases_of_optuna_are_gone_on_with(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'shared.db'}"
    for _ in range(2):
        close_storage(open_storage(url))
        check_storage(url)


def test_operations_are_read_whatever_they_say(tmp_path: Path) -> None:
    """A journal that another program of Optuna's wrote is a journal."""
    path = tmp_path / "other.log"
    study = optuna.create_study(
        storage=optuna.storages.JournalStorage(optuna.storages.journal.JournalFileBackend(str(path)))
    )
    study.optimize(lambda trial: trial.suggest_float("x", 0, 1), n_trials=2)
    check_storage(f"journal:{path}")
    assert {json.loads(line)["op_code"] for line in path.read_bytes().splitlines()} >= {0, 4, 5, 6}


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("sqlite+one+two://x/y", "is no storage"),
        ("postgresql://x:port/y", "is no storage"),
        ("mysql+nodriverxyz://x/y", "is no storage"),
        ("nosuchdatabase://x/y", "is no storage"),
        ("firebird://:secret@x/y", "is no storage"),
    ],
)
def test_a_database_that_cannot_be_reached_is_refused_before_it_is_opened(url: str, words: str) -> None:
    with pytest.raises(InputError, match=words) as caught:
        check_storage(url)
    assert "secret" not in str(caught.value)


def test_a_missing_driver_is_named_with_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    for package in ("psycopg", "psycopg2"):
        monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(InputError, match=r"the Python package psycopg2? is not installed") as caught:
        check_storage("postgresql://tuner:secret@host/name")
    assert caught.value.problems[0].hint == "pip install 'autosync-torch[postgresql]'"
    assert "secret" not in str(caught.value)
