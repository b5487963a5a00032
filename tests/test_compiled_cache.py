"""What numba kept of other sources is removed; of the same sources it stays."""

import shutil
from pathlib import Path

import numba
import pytest

from autosync.compiled_cache import CompiledCache, drop_stale, find_cache


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


def test_marks_go_with_what_they_mark(package: Path) -> None:
    drop_stale(package)
    mark = package / "__pycache__" / "compiled-0123456789abcdef"
    mark.touch()
    drop_stale(package)
    assert mark.is_file()
    (package / "one.py").write_text("def f(): return 2\n")
    drop_stale(package)
    assert not mark.exists()


def test_the_first_compilation_of_all_is_enabled(tmp_path: Path) -> None:
    (tmp_path / "inner" / "__pycache__").mkdir(parents=True)
    drop_stale(tmp_path)
    compiled(tmp_path)
    drop_stale(tmp_path)
    assert kept(tmp_path) == 1


def test_where_no_stamp_can_be_written_nothing_old_is_used_and_nobody_is_bothered(package: Path) -> None:
    (package / "__pycache__" / "sources.sha256").mkdir()
    drop_stale(package)
    assert kept(package) == 0


@pytest.fixture
def closed(package: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package beside whose sources nothing can be written, and a user without caches."""
    shutil.rmtree(package / "__pycache__")
    (package / "__pycache__").touch()
    monkeypatch.delenv("NUMBA_CACHE_DIR", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(package / "one.py"))
    return package


def test_beside_the_sources_is_the_first_place(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NUMBA_CACHE_DIR", raising=False)
    assert find_cache(package) == CompiledCache(is_enabled=True)
    assert kept(package) == 0


def test_where_nothing_may_be_written_nothing_is_enabled(closed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert find_cache(closed) == CompiledCache(is_enabled=False)
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", "/proc")
    assert find_cache(closed) == CompiledCache(is_enabled=False)
    assert CompiledCache(is_enabled=False).compiled(_more, {})(1) == 2


def test_a_user_without_a_home_is_no_mistake(closed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def none() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr(Path, "home", none)
    assert find_cache(closed) == CompiledCache(is_enabled=False)


@pytest.mark.parametrize("name", ["XDG_CACHE_HOME", "NUMBA_CACHE_DIR"])
def test_other_sources_have_another_folder_among_the_caches(
    name: str, closed: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    caches = tmp_path_factory.mktemp("caches")
    monkeypatch.setenv(name, str(caches))
    first = find_cache(closed)
    assert first.is_enabled
    assert first.folder is not None
    assert first.folder.parent == caches
    (closed / "one.py").write_text("def f(): return 2\n")
    assert find_cache(closed) != first
    before = numba.config.CACHE_DIR
    more = first.compiled(_more, {})
    assert before == numba.config.CACHE_DIR
    assert more(1) == 2
    assert list(first.folder.rglob("*.nbc"))


def test_what_numba_finds_no_place_for_is_compiled_all_the_same(closed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(numba.config, "CACHE_DIR", "")
    assert CompiledCache(is_enabled=True, folder=closed / "one.py").compiled(_more, {})(1) == 2


def _more(number: int) -> int:
    return number + 1
