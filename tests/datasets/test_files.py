"""Outputs that cannot be written are told before the work whose result they are to hold."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from autosync import disk_errors
from autosync.datasets import files
from autosync.datasets.files import check_writable, new_folder, refuse_folder, refuse_overwrite
from autosync.errors import InputError


@pytest.mark.parametrize("name", ["/proc/out.yaml", "/proc/none/at/all.yaml"])
def test_outputs_that_cannot_be_made_are_refused_at_once(name: str) -> None:
    with pytest.raises(OSError, match=r"No such file|Permission") as raised:
        refuse_overwrite(Path(name), force=False)
    assert raised.value.filename == name
    with pytest.raises(OSError, match=r"No such file|Permission"):
        refuse_folder(Path(name))


def test_below_a_file_nothing_can_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match="Not a directory"):
        check_writable(tmp_path / "file" / "deep" / "out.yaml")


def test_a_full_disk_is_told_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "is_full", lambda _: True)
    with pytest.raises(OSError, match="No space left") as raised:
        check_writable(tmp_path / "out.yaml")
    assert (raised.value.errno, raised.value.filename) == (errno.ENOSPC, str(tmp_path / "out.yaml"))


def test_what_can_be_made_leaves_nothing(tmp_path: Path) -> None:
    refuse_overwrite(tmp_path / "not" / "there" / "yet.yaml", force=False)
    refuse_folder(tmp_path / "new")
    assert not list(tmp_path.iterdir())
    refuse_overwrite(Path("/dev/full"), force=False)
    assert disk_errors.is_full(tmp_path) is False


def test_folders_are_never_replaced(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="a folder is never replaced"):
        refuse_folder(tmp_path)
    with pytest.raises(InputError, match="a folder is never replaced"), new_folder(tmp_path):
        pass
