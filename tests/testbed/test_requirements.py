"""Without root, and where a testbed cannot be: exactly what is missing is told."""

import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from autosync.errors import OperationError
from autosync.specs.cluster_file import load_cluster
from autosync.testbed import live, namespace_holder, requirements, up
from autosync.testbed.commands import Runner, ToolCall


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    """Nothing that was found in another test counts here."""
    requirements.find_folders.cache_clear()
    yield
    requirements.find_folders.cache_clear()


def test_a_tool_that_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    which = shutil.which
    monkeypatch.setattr(shutil, "which", lambda tool, path: None if tool == "tc" else which(tool, path=path))
    with pytest.raises(OperationError, match="no testbed can be made here: tc is not installed \\(package iproute2\\)"):
        requirements.find_folders()


def test_a_user_without_capabilities_and_namespaces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requirements, "_lacking_capabilities", lambda: ["CAP_NET_ADMIN"])
    monkeypatch.setattr(requirements, "_reads", lambda path, value: path.endswith("max_user_namespaces"))
    failed = subprocess.CompletedProcess([], 1, stdout="", stderr="unshare: unshare failed: Operation not permitted")
    monkeypatch.setattr(requirements.subprocess, "run", lambda *arguments, **options: failed)
    with pytest.raises(OperationError, match=r"has not CAP_NET_ADMIN, and .* no user namespace: /proc/.* is 0"):
        requirements.find_folders()


def test_a_kernel_without_a_module_is_named() -> None:
    runner = Runner(enter=("sh", "-c", "echo 'Error: Specified qdisc kind is unknown.' >&2; exit 2", "sh"))
    with pytest.raises(OperationError, match=r"tc in net failed: .* \(the kernel has no token bucket filter"):
        runner.run(ToolCall(tool="tc", namespace="net", lines=("qdisc add",)))


@pytest.fixture
def rootless(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Testbeds are made as by a user without capabilities, whoever runs the tests; the folder of their records."""
    if requirements._missing_tools() or requirements._missing_user_namespaces(["root"]):
        pytest.skip("no tools, or no user namespaces, for a testbed without root")
    monkeypatch.setattr(requirements, "_lacking_capabilities", lambda: ["CAP_NET_ADMIN"])
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    return tmp_path / "autosync"


def _holders(folder: Path) -> list[str]:
    shown = subprocess.run(["ps", "-ww", "-eo", "args"], capture_output=True, text=True, check=True).stdout
    return [line for line in shown.splitlines() if str(folder) in line]


def test_without_root_in_a_user_namespace(rootless: Path) -> None:
    with up(load_cluster("2-hosts")) as bed:
        assert bed.faults() == ()
        with up(load_cluster("2-hosts")) as again:
            assert again.layout == bed.layout
        shown = subprocess.run(
            [*bed.enter("host-1"), "sh", "-c", "pwd; ip -brief address; exit 5"],
            capture_output=True,
            text=True,
            check=False,
        )
        assert shown.returncode == 5, shown.stderr
        assert shown.stdout.splitlines()[0] == str(Path.cwd())
        assert f"{bed.address('host-1')}/24" in shown.stdout
        sleeper = subprocess.Popen([*bed.enter("host-0"), "sleep", "60"])
        assert set(bed.counters()) == {"host-0", "host-1"}
    assert sleeper.wait(5) != 0
    assert [path.name for path in rootless.iterdir()] == ["lock"]
    assert _holders(rootless) == []


def test_a_holder_that_was_killed_is_replaced(rootless: Path) -> None:
    cluster = load_cluster("2-hosts")
    bed = up(cluster, keep=True)
    os.kill(int((rootless / f"{bed.layout.key}.holder").readlink().name), signal.SIGKILL)
    while _holders(rootless):
        pass
    assert bed.faults()[0].startswith("namespaces are gone: ")
    assert up(cluster, keep=True).faults() == ()
    assert live.down(cluster) == ["2-hosts"]
    assert _holders(rootless) == []


def test_a_holder_without_a_record_is_swept(rootless: Path) -> None:
    cluster = load_cluster("2-hosts")
    bed = up(cluster, keep=True)
    for name in (f"{bed.layout.key}.json", f"{bed.layout.key}.holder"):
        (rootless / name).unlink()
    assert live.down(cluster) == []
    assert _holders(rootless) == []


def test_no_user_namespace_of_its_own(rootless: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(namespace_holder, "_HOLD", "echo mount: permission denied; exit 1")
    with pytest.raises(OperationError, match="no user namespace could be made: mount: permission denied"):
        up(load_cluster("2-hosts"))
    assert [path.name for path in rootless.iterdir()] == ["lock"]


def test_a_folder_that_others_may_write_is_refused(rootless: Path) -> None:
    rootless.mkdir()
    rootless.chmod(0o777)
    with pytest.raises(OperationError, match="must belong to this user, and no other user may write to it"):
        up(load_cluster("2-hosts"))
