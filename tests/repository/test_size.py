"""A file above 500 lines holds more than one idea."""

from pathlib import Path

MAX_LINES = 500


def test_no_file_holds_more_than_one_idea(root: Path, package_dirs: dict[str, Path]) -> None:
    others = [root / name for name in ("benchmarks", "examples", "tests", "tools")]
    lengths = {
        str(path.relative_to(root)): len(path.read_text(encoding="utf-8").splitlines())
        for folder in [*package_dirs.values(), *others]
        for path in folder.rglob("*.py")
    }
    assert lengths, "the folders are where this test looks for them"
    assert not {path: lines for path, lines in lengths.items() if lines > MAX_LINES}
