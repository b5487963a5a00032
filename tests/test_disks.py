"""What is said of full disks; `tests/trials/test_full_disk.py` has disks that are."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from autosync import disks
from autosync.errors import OperationError


def test_an_error_in_writing_names_the_file(tmp_path: Path) -> None:
    path = tmp_path / "f"
    with pytest.raises(OSError, match=rf"No space left on device: '{path}'") as raised, disks.naming(path):
        Path("/dev/full").write_text("x", encoding="utf-8")
    assert raised.value.filename == str(path)


def test_an_error_that_names_a_file_is_left_alone(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError) as raised, disks.naming(tmp_path / "f"):
        (tmp_path / "nowhere").read_bytes()
    assert raised.value.filename == str(tmp_path / "nowhere")


@pytest.mark.parametrize("place", ["/proc/self/status", "/nowhere/at/all", "."])
def test_what_has_room_or_needs_none_is_not_full(place: str) -> None:
    assert not disks.is_full(Path(place))
    assert disks.full_note(Path(place)) == ""


def test_files_on_full_disks_are_named_that_are_being_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disks, "is_full", lambda path: path.parent == tmp_path)
    (tmp_path / "read").write_text("", encoding="utf-8")
    no_room = OperationError("it did not work")
    no_room.__cause__ = OSError(errno.ENOSPC, "No space left on device")
    other = OSError(errno.EIO, "Input/output error")
    with (tmp_path / "written").open("ab"), (tmp_path / "read").open("rb"):
        assert disks.told(no_room) == f": the disk of {tmp_path / 'written'} is full"
        assert disks.told(other) == ""
    assert disks.told(no_room) == ""
