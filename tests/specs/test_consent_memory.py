"""What is remembered of what this user typed: in a file of the user's alone, or nowhere."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from autosync.specs import consent_memory


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where a user with nothing remembered would remember it."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    found = consent_memory.trusted_file()
    assert found == tmp_path / "state" / "autosync" / "trusted.json"
    return found


def test_what_is_remembered_is_there_again_and_for_this_user_alone(file: Path) -> None:
    assert consent_memory.recall() == frozenset()
    previous = os.umask(0o002)
    try:
        consent_memory.remember(["a", "b"])
        consent_memory.remember(["b", "c"])
    finally:
        os.umask(previous)
    assert consent_memory.recall() == {"a", "b", "c"}
    assert json.loads(file.read_text()) == {"schema": "autosync.trusted/1", "hashes": ["a", "b", "c"]}
    assert file.stat().st_mode & 0o777 == 0o600


def test_the_oldest_are_forgotten(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(consent_memory, "MAX_REMEMBERED", 3)
    consent_memory.remember(["a", "b", "c"])
    consent_memory.remember(["d"])
    assert consent_memory.recall() == {"b", "c", "d"}


@pytest.mark.parametrize("mode", [0o620, 0o602])
def test_a_file_that_others_may_write_is_not_believed(file: Path, mode: int) -> None:
    consent_memory.remember(["a"])
    file.chmod(mode)
    assert consent_memory.recall() == frozenset()


def test_a_file_of_another_user_is_not_believed(file: Path) -> None:
    consent_memory.remember(["a"])
    try:
        os.chown(file, 12345, -1)
    except PermissionError:
        pytest.skip("only root can give a file away")
    assert consent_memory.recall() == frozenset()


def test_a_link_or_a_pipe_is_not_read(file: Path, tmp_path: Path) -> None:
    consent_memory.remember(["a"])
    moved = file.rename(tmp_path / "elsewhere.json")
    file.symlink_to(moved)
    assert consent_memory.recall() == frozenset()
    file.unlink()
    os.mkfifo(file)
    assert consent_memory.recall() == frozenset()


@pytest.mark.parametrize(
    "text", ["", "no JSON", "[]", '{"schema": "autosync.trusted/2", "hashes": ["a"]}', "[" * 100_000, '{"hashes": "a"}']
)
def test_what_is_no_such_file_is_as_good_as_none(file: Path, text: str) -> None:
    file.parent.mkdir(parents=True)
    file.write_text(text)
    file.chmod(0o600)
    assert consent_memory.recall() == frozenset()
    consent_memory.remember(["b"])
    assert consent_memory.recall() == {"b"}


def test_without_a_folder_for_it_nothing_is_remembered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    consent_memory.remember(["a"])
    assert consent_memory.recall() == frozenset()


def test_it_lies_in_the_users_own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    # A relative folder is none of the specification's.
    for given in ("", "here"):
        monkeypatch.setenv("XDG_STATE_HOME", given)
        assert consent_memory.trusted_file() == tmp_path / ".local" / "state" / "autosync" / "trusted.json"
