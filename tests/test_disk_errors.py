"""What is said of full disks; `tests/trials/test_full_disk.py` has disks that are."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from autosync import disk_errors, documents
from autosync.errors import DocumentError, OperationError


def test_an_error_in_writing_names_the_file(tmp_path: Path) -> None:
    path = tmp_path / "f"
    with pytest.raises(OSError, match=rf"No space left on device: '{path}'") as raised, disk_errors.naming_file(path):
        Path("/dev/full").write_text("x", encoding="utf-8")
    assert raised.value.filename == str(path)


def test_an_error_that_names_a_file_is_left_alone(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError) as raised, disk_errors.naming_file(tmp_path / "f"):
        (tmp_path / "nowhere").read_bytes()
    assert raised.value.filename == str(tmp_path / "nowhere")


@pytest.mark.parametrize("place", ["/proc/self/status", "/nowhere/at/all", "."])
def test_what_has_room_or_needs_none_is_not_full(place: str) -> None:
    assert not disk_errors.is_full(Path(place))
    assert disk_errors.full_disk_note(Path(place)) == ""


def test_files_on_full_disks_are_named_that_are_being_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk_errors, "is_full", lambda path: path.parent == tmp_path)
    (tmp_path / "read").write_text("", encoding="utf-8")
    no_room = OperationError("it did not work")
    no_room.__cause__ = OSError(errno.ENOSPC, "No space left on device")
    other = OSError(errno.EIO, "Input/output error")
    with (tmp_path / "written").open("ab"), (tmp_path / "read").open("rb"):
        assert disk_errors.full_disk_cause(no_room) == f": the disk of {tmp_path / 'written'} is full"
        assert disk_errors.full_disk_cause(other) == ""
    assert disk_errors.full_disk_cause(no_room) == ""


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (os.mkfifo, "it is a pipe, not a file"),
        (lambda path: path.symlink_to("/dev/zero"), "it is a device, not a file"),
        (Path.mkdir, "Is a directory"),
        (lambda _: None, "No such file"),
    ],
)
def test_only_files_are_opened_to_read(make: Callable[[Path], object], words: str, tmp_path: Path) -> None:
    """A pipe that nobody writes to would keep us waiting, a device never ends."""
    make(tmp_path / "input")
    with pytest.raises(OSError, match=words) as raised:
        disk_errors.open_input(tmp_path / "input")
    assert raised.value.filename == str(tmp_path / "input")
    # What reads documents says it with file and line.
    with pytest.raises(DocumentError, match=r"input: cannot be read: "):
        documents.read_document(tmp_path / "input")


def test_what_the_shell_hands_over_is_read() -> None:
    reader, writer = os.pipe()
    os.write(writer, b"text")
    os.close(writer)
    try:
        with disk_errors.open_input(Path(f"/dev/fd/{reader}")) as file:
            assert file.read() == b"text"
    finally:
        os.close(reader)
