"""Commands on a full disk: exit code 1, the name of the file, and existing files unchanged."""

from collections.abc import Callable
from pathlib import Path

import pytest

from autosync.datasets.dataset import SHIPPED
from tests.cli.conftest import Shell

MountDisk = Callable[[int], Path]
FillDisk = Callable[[Path], Path]


def listed(folder: Path) -> list[str]:
    """The names of what is in a folder."""
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize(
    "command",
    [
        ("export", SHIPPED),
        ("profile", "model.py"),
        ("tune", "model.yaml", "--cluster", "cluster.yaml", "--trials", "1"),
        ("strategy", "build", "ddp", "model.yaml", "--cluster", "cluster.yaml"),
    ],
    ids=lambda command: command[0],
)
def test_a_full_disk_is_named_and_nothing_changes(
    command: tuple[str | Path, ...], shell: Shell, mount_disk: MountDisk, fill_disk: FillDisk
) -> None:
    Path("model.py").write_text("def make_task():\n    raise AssertionError\n", encoding="utf-8")
    disk = mount_disk(256)
    old = disk / f"out{'.jsonl' if command[0] == 'export' else '.yaml'}"
    old.write_text("old", encoding="utf-8")
    fill_disk(disk)
    before = listed(disk), listed(Path())
    assert shell.run(*command, "-o", old, "--force") == 1
    assert shell.err.startswith(f"error: {old}: No space left on device")
    assert old.read_text(encoding="utf-8") == "old"
    assert (listed(disk), listed(Path())) == before


@pytest.mark.parametrize("ending", ["parquet", "csv", "jsonl"])
def test_a_disk_that_fills_while_records_are_written(ending: str, shell: Shell, mount_disk: MountDisk) -> None:
    disk = mount_disk(512)
    old = disk / f"out.{ending}"
    old.write_text("old", encoding="utf-8")
    assert shell.run("export", SHIPPED, "-o", old, "--force") == 1
    assert shell.err.splitlines()[-1] == f"error: {old}: No space left on device"
    assert old.read_text(encoding="utf-8") == "old"
    assert listed(disk) == [old.name]


def test_a_folder_that_has_no_room_is_not_left_half(shell: Shell, mount_disk: MountDisk) -> None:
    disk = mount_disk(512)
    assert shell.run("export", SHIPPED, "--format", "autodist", "-o", disk / "new") == 1
    assert shell.err.splitlines()[-1] == f"error: {disk / 'new'}: No space left on device"
    assert listed(disk) == []


def test_a_study_without_room_is_not_begun(
    shell: Shell, mount_disk: MountDisk, fill_disk: FillDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = mount_disk(256)
    for name in ("model.yaml", "cluster.yaml"):
        (disk / name).write_bytes(Path(name).read_bytes())
    fill_disk(disk)
    before = listed(disk)
    monkeypatch.chdir(disk)
    assert shell.run("tune", "model.yaml", "--cluster", "cluster.yaml", "--trials", "1", "--study", "s") == 1
    assert shell.err.startswith("error: autosync-studies/s")
    assert "No space left on device" in shell.err
    assert listed(disk) == before
