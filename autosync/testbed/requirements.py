"""Checks whether this machine meets the requirements of testbeds."""

from __future__ import annotations

import functools
import shutil
import subprocess
import sys
from pathlib import Path

from autosync.errors import OperationError
from autosync.testbed.commands import tool_environment
from autosync.testbed.folders import NamespaceFolders, root_folders, user_folders

_TOOLS = {
    "ip": "iproute2",
    "tc": "iproute2",
    "nsenter": "util-linux",
    "unshare": "util-linux",
    "chrt": "util-linux",
    "mount": "mount",
}
_CAPABILITIES = {"CAP_NET_ADMIN": 12, "CAP_SYS_ADMIN": 21}
_FORBIDDING = {
    "/proc/sys/user/max_user_namespaces": "0",
    "/proc/sys/kernel/unprivileged_userns_clone": "0",
    "/proc/sys/kernel/apparmor_restrict_unprivileged_userns": "1",
}


@functools.cache
def find_folders() -> NamespaceFolders:
    """Return the folders of this user's testbeds; raise OperationError with a list of all unmet requirements."""
    missing = _missing_tools()
    lacking = _lacking_capabilities()
    if lacking and not missing:
        missing += _missing_user_namespaces(lacking)
    if missing:
        raise OperationError("no testbed can be made here: " + "; ".join(missing))
    return user_folders() if lacking else root_folders()


def _missing_tools() -> list[str]:
    if sys.platform != "linux":
        return [f"it takes Linux, not {sys.platform}"]
    path = tool_environment()["PATH"]
    absent = [tool for tool in _TOOLS if shutil.which(tool, path=path) is None]
    return [f"{tool} is not installed (package {_TOOLS[tool]})" for tool in absent]


def _lacking_capabilities() -> list[str]:
    try:
        status = Path("/proc/self/status").read_text(encoding="utf-8")
    except OSError:
        return list(_CAPABILITIES)
    effective = next(int(line.split()[1], 16) for line in status.splitlines() if line.startswith("CapEff:"))
    return [name for name, bit in _CAPABILITIES.items() if not effective >> bit & 1]


def _missing_user_namespaces(lacking: list[str]) -> list[str]:
    """Return why this user cannot be root in a user namespace; empty if the kernel allows it."""
    result = subprocess.run(
        ["unshare", "--user", "--map-root-user", "--net", "--mount", "true"],
        capture_output=True,
        text=True,
        check=False,
        env=tool_environment(),
        timeout=10,
    )
    if result.returncode == 0:
        return []
    why = [f"{path} is {value}" for path, value in _FORBIDDING.items() if _reads(path, value)]
    said = " ".join(result.stderr.split())
    reason = ", ".join(why) or said or "unshare failed"
    return [f"this user has not {' and '.join(lacking)}, and the kernel gives it no user namespace: {reason}"]


def _reads(path: str, value: str) -> bool:
    try:
        return Path(path).read_text(encoding="utf-8").strip() == value
    except OSError:
        return False
