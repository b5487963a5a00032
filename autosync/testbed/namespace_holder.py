"""The process that keeps the namespaces of a testbed without root: it is root in a user namespace with its own /run.

It waits for input that never comes. Its command line names its testbed, so a holder is found even if its start was
interrupted.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time

from autosync.errors import OperationError
from autosync.testbed import processes
from autosync.testbed.commands import tool_environment
from autosync.testbed.folders import NamespaceFolders

_MARK = "autosync-testbed"
_START_SECONDS = 10.0
_POLL_SECONDS = 0.005
# netns comes last: when it exists, the holder is ready.
_HOLD = "mount -t tmpfs tmpfs /run && mkfifo /run/hold && exec 3<>/run/hold && mkdir /run/netns && read -r line <&3"
_START = 'setsid unshare --user --map-root-user --net --mount sh -c "$1" "$2" "$3" "$4" </dev/null >"$5" 2>&1 & echo $!'


def start(folders: NamespaceFolders, key: str) -> None:
    """Start the holder of a testbed and wait until it is ready to have namespaces."""
    words = (_HOLD, _MARK, key, str(folders.folder))
    began = subprocess.run(
        ["sh", "-c", _START, "sh", *words, str(folders.log(key))],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=True,
        env=tool_environment(),
        timeout=_START_SECONDS,
    )
    pid = int(began.stdout)
    link = folders.holder(key)
    link.unlink(missing_ok=True)
    link.symlink_to(f"/proc/{pid}")
    deadline = time.monotonic() + _START_SECONDS
    while not _is_ready(folders, key):
        if processes.start_time(pid) is None or time.monotonic() > deadline:
            said = " ".join(folders.log(key).read_text(encoding="utf-8", errors="replace").split())
            raise OperationError(f"no user namespace could be made: {said or 'it did not start in time'}")
        time.sleep(_POLL_SECONDS)


def is_alive(folders: NamespaceFolders, key: str) -> bool:
    """Whether the holder is alive and ready; another process with its pid does not count."""
    try:
        pid = int(folders.holder(key).readlink().name)
    except (OSError, ValueError):
        return False
    return _is_ours(pid, folders, key) and _is_ready(folders, key)


def keys(folders: NamespaceFolders) -> set[str]:
    """Return the keys of testbeds that have holders."""
    return (
        {words[-1] for pid in processes.all_pids() if (words := _marked(pid, folders))} if folders.rootless else set()
    )


def end(folders: NamespaceFolders, key: str) -> None:
    """End the holders of a testbed, and so its namespaces. A holder whose start was interrupted is ended too."""
    deadline = time.monotonic() + _START_SECONDS
    while pids := [pid for pid in processes.all_pids() if _is_ours(pid, folders, key)]:
        if time.monotonic() > deadline:
            raise OperationError(f"the holders {', '.join(map(str, pids))} do not end")
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(_POLL_SECONDS)
    folders.holder(key).unlink(missing_ok=True)
    folders.log(key).unlink(missing_ok=True)


def _is_ready(folders: NamespaceFolders, key: str) -> bool:
    """Whether the holder has mounted its own /run and is ready. The machine's /run may have a netns folder too."""
    return (folders.holder(key) / "root/run/hold").exists() and (folders.holder(key) / "root/run/netns").is_dir()


def _is_ours(pid: int, folders: NamespaceFolders, key: str) -> bool:
    return _marked(pid, folders) == [_MARK, key]


def _marked(pid: int, folders: NamespaceFolders) -> list[str]:
    """Return the mark and the key in the command line of a holder of these folders; empty for other processes."""
    words = processes.command_line(pid)
    for position in range(len(words) - 2):
        if words[position] == _MARK and words[position + 2] == str(folders.folder):
            return words[position : position + 2] if processes.start_time(pid) is not None else []
    return []
