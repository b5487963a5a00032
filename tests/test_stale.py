"""What numba kept of other sources is removed; of the same sources it stays."""

from pathlib import Path

import pytest

from autosync.stale import drop_stale


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """A package with a source file and a subpackage, and what numba compiled of both."""
    for folder in (tmp_path, tmp_path / "inner"):
        (folder / "__pycache__").mkdir(parents=True)
        (folder / "one.py").write_text("def f(): return 1\n")
        (folder / "__pycache__" / "one.f-1.py311.nbi").write_bytes(b"index")
        (folder / "__pycache__" / "one.f-1.py311.1.nbc").write_bytes(b"code")
    return tmp_path


def kept(package: Path) -> int:
    return len(list(package.rglob("*.nb[ic]")))


def compiled(package: Path) -> None:
    """What numba does after it was told to begin anew."""
    (package / "inner" / "__pycache__" / "one.f-1.py311.nbi").write_bytes(b"index")


def test_what_nobody_vouches_for_is_removed_once(package: Path) -> None:
    drop_stale(package)
    assert kept(package) == 0
    compiled(package)
    drop_stale(package)
    assert kept(package) == 1


@pytest.mark.parametrize("change", ["edited", "added", "removed", "renamed"])
def test_what_was_compiled_of_other_sources_is_removed(package: Path, change: str) -> None:
    drop_stale(package)
    compiled(package)
    source = package / "one.py"
    if change == "edited":
        source.write_text("def f(): return 2\n")
    elif change == "added":
        (package / "two.py").write_text("")
    elif change == "removed":
        source.unlink()
    else:
        source.rename(package / "three.py")
    drop_stale(package)
    assert kept(package) == 0


def test_the_first_compilation_of_all_is_kept(tmp_path: Path) -> None:
    (tmp_path / "inner" / "__pycache__").mkdir(parents=True)
    drop_stale(tmp_path)
    compiled(tmp_path)
    drop_stale(tmp_path)
    assert kept(tmp_path) == 1


def test_where_no_stamp_can_be_written_nothing_old_is_used_and_nobody_is_bothered(package: Path) -> None:
    (package / "__pycache__" / "sources.sha256").mkdir()
    drop_stale(package)
    assert kept(package) == 0
