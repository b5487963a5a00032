"""Free memory is what the machine has free, within the limits of this process's groups."""

from pathlib import Path

import pytest

from autosync.specs.free_memory import free_bytes


def _group(folder: Path, **files: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / f"memory.{name}").write_text(text, encoding="utf-8")


@pytest.fixture
def meminfo(tmp_path: Path) -> Path:
    path = tmp_path / "meminfo"
    path.write_text("MemTotal: 9000 kB\nMemAvailable: 1000 kB\n", encoding="utf-8")
    return path


def _free(meminfo: Path, groups: str) -> int | None:
    listed = meminfo.with_name("cgroup")
    listed.write_text(groups, encoding="utf-8")
    return free_bytes(meminfo, groups=listed, groups_folder=meminfo.with_name("groups"))


def test_a_group_and_those_around_it_limit_what_is_free(meminfo: Path) -> None:
    root = meminfo.with_name("groups")
    _group(root / "job" / "step", max="max", current="5", stat="inactive_file 0\n")
    assert _free(meminfo, "0::/job/step\n") == 1000 * 1024
    _group(root / "job", max="900000", current="800000", stat="anon 1\ninactive_file 300000\nfile 2\n")
    assert _free(meminfo, "0::/job/step\n") == 400_000
    _group(root / "job" / "step", max="500000", current="600000")
    assert _free(meminfo, "0::/job/step\n") == 0


def test_groups_of_the_old_kind_count_too(meminfo: Path) -> None:
    root = meminfo.with_name("groups")
    _group(
        root / "memory" / "docker",
        limit_in_bytes="700000",
        usage_in_bytes="100000",
        stat="inactive_file 1\ntotal_inactive_file 50000\n",
    )
    lines = "12:cpu:/docker\n11:hugetlb,memory:/docker\n0::/\n"
    assert _free(meminfo, lines) == 650_000
    # A container sees its own group as the outermost one.
    _group(root / "memory", limit_in_bytes="600000", usage_in_bytes="500000", stat="total_inactive_file 0\n")
    assert _free(meminfo, "11:memory:/elsewhere\n") == 100_000


def test_without_groups_the_machine_counts(meminfo: Path) -> None:
    assert _free(meminfo, "") == 1000 * 1024
    assert free_bytes(meminfo, groups=meminfo.with_name("none")) == 1000 * 1024
    assert free_bytes(meminfo.with_name("none")) is None
