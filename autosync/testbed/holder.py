"""The process that keeps a testbed alive without root: root in a user namespace of its own, with a /run of its own.

It waits for a line that never comes. Its command line says whose it is, so that one is found whose start was cut off.
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
from autosync.testbed.places import Places

_MARK = "autosync-testbed"
_START_SECONDS = 10.0
_POLL_SECONDS = 0.005
# netns comes last: once it is there, the holder is ready.
_HOLD = "mount -t tmpfs tmpfs /run && mkfifo /run/hold && exec 3<>/run/hold && mkdir /run/netns && read -r line <&3"
_START = 'setsid unshare --user --map-root-user --net --mount sh -c "$1" "$2" "$3" "$4" </dev/null >"$5" 2>&1 & echo $!'


def start(places: Places, key: str) -> None:
    """Start the holder of a testbed and wait until namespaces can be named in it."""
    words = (_HOLD, _MARK, key, str(places.folder))
    began = subprocess.run(
        ["sh", "-c", _START, "sh", *words, str(places.log(key))],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=True,
        env=tool_environment(),
        timeout=_START_SECONDS,
    )
    pid = int(began.stdout)
    link = places.holder(key)
    link.unlink(missing_ok=True)
    link.symlink_to(f"/proc/{pid}")
    deadline = time.monotonic() + _START_SECONDS
    while not _is_ready(places, key):
        if processes.start_time(pid) is None or time.monotonic() > deadline:
            said = " ".join(places.log(key).read_text(encoding="utf-8", errors="replace").split())
            raise OperationError(f"no user namespace could be made: {said or 'it did not start in time'}")
        time.sleep(_POLL_SECONDS)


def is_alive(places: Places, key: str) -> bool:
    """Whether the link leads to the holder, not to another process with its pid."""
    try:
        pid = int(places.holder(key).readlink().name)
    except (OSError, ValueError):
        return False
    return _is_ours(pid, places, key) and _is_ready(places, key)


def keys(places: Places) -> set[str]:
    """The testbeds of which there are holders."""
    return {words[-1] for pid in processes.all_pids() if (words := _marked(pid, places))} if places.rootless else set()


def end(places: Places, key: str) -> None:
    """End the holders of a testbed, begun or whole; its namespaces go with them."""
    deadline = time.monotonic() + _START_SECONDS
    while pids := [pid for pid in processes.all_pids() if _is_ours(pid, places, key)]:
        if time.monotonic() > deadline:
            raise OperationError(f"the holders {', '.join(map(str, pids))} do not end")
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(_POLL_SECONDS)
    places.holder(key).unlink(missing_ok=True)
    places.log(key).unlink(missing_ok=True)


def _is_ready(places: Places, key: str) -> bool:
    """Its /run is its own: the machine's may have a netns too."""
    return (places.holder(key) / "root/run/hold").exists() and (places.holder(key) / "root/run/netns").is_dir()


def _is_ours(pid: int, places: Places, key: str) -> bool:
    return _marked(pid, places) == [_MARK, key]


def _marked(pid: int, places: Places) -> list[str]:
    """The mark and the key, where the process is a holder of this folder's (or becomes one)."""
    words = processes.command_line(pid)
    for position in range(len(words) - 2):
        if words[position] == _MARK and words[position + 2] == str(places.folder):
            return words[position : position + 2] if processes.start_time(pid) is not None else []
    return []
